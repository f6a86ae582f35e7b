package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/services/e2e/harness"
)

func TestFilesVerbs(t *testing.T) {
	_, cli := up(t)
	do := func(stdin string, args ...string) harness.Result {
		t.Helper()
		return cli.Pipe(t, strings.NewReader(stdin), append(append([]string{"files"}, args...), "-t", "acme")...)
	}
	stat := func(path string) (info message.FileInfo) {
		t.Helper()
		cli.JSON(t, &info, "files", "stat", path, "-t", "acme")
		return info
	}
	refused := func(r harness.Result, code int, want ...string) {
		t.Helper()
		if r.Code != code || r.Stdout != "" {
			t.Errorf("exit %d, want %d; stdout %q", r.Code, code, r.Stdout)
		}
		for _, w := range want {
			if !strings.Contains(r.Stderr, w) {
				t.Errorf("stderr %q does not contain %q", r.Stderr, w)
			}
		}
	}
	holds := func(path, content string) {
		t.Helper()
		if got := cli.OK(t, "files", "cat", path, "-t", "acme"); got != content {
			t.Errorf("%s: %q, want %q", path, got, content)
		}
	}

	var info message.FileInfo
	cli.JSON(t, &info, "files", "put", "notes.txt", file(t, "n", "one\n"), "--create", "-t", "acme")
	if info.Path != "notes.txt" || !info.Exists || info.Size != 4 || info.Revision == 0 || info.Modified == "" {
		t.Errorf("put: %+v", info)
	}
	refused(do("x", "put", "notes.txt", "--create"), 1, "conflict: ", fmt.Sprintf("revision: %d stands", info.Revision))
	refused(do("x", "put", "notes.txt", "--if-revision", "0"), 1, `conflict: "notes.txt" exists already`)
	refused(do("x", "put", "none.txt", "--if-revision", "3"), 1, `conflict: there is no file "none.txt"`)
	refused(do("x", "put", "notes.txt", "--if-revision", fmt.Sprint(info.Revision+1)), 1, "conflict: ", "stands")
	refused(do("x", "append", "notes.txt", "--if-revision", fmt.Sprint(info.Revision+1)), 1, "conflict: ")
	refused(do("x", "rm", "notes.txt", "--if-revision", fmt.Sprint(info.Revision+1)), 1, "conflict: ")
	holds("notes.txt", "one\n")
	if r := do("two\n", "append", "notes.txt", "--if-revision", fmt.Sprint(info.Revision)); r.Code != 0 {
		t.Errorf("%+v", r)
	}
	holds("notes.txt", "one\ntwo\n")
	// More than one message, on the condition that stands.
	large := strings.Repeat("0123456789abcdef", 100_000)
	refused(do(large, "put", "notes.txt", "--if-revision", fmt.Sprint(info.Revision)), 1, "conflict: ")
	holds("notes.txt", "one\ntwo\n")
	if r := do(large, "put", "notes.txt", "--if-revision", fmt.Sprint(stat("notes.txt").Revision)); r.Code != 0 {
		t.Errorf("%+v", r)
	}
	if info = stat("notes.txt"); info.Size != int64(len(large)) || len(info.SHA256) != 64 {
		t.Errorf("stat: %+v", info)
	}
	if r := do("made", "append", "by/append", "-"); r.Code != 0 {
		t.Errorf("%+v", r)
	}
	holds("by/append", "made")
	var removed message.FileDeleted
	if cli.JSON(t, &removed, "files", "rm", "notes.txt", "--if-revision", fmt.Sprint(info.Revision), "-t", "acme"); !removed.Deleted {
		t.Errorf("%+v", removed)
	}
	for _, verb := range []string{"cat", "get", "stat", "rm"} {
		refused(do("", verb, "notes.txt"), 1, "not_found: ", `"notes.txt"`)
	}
	for _, c := range [][]string{
		{"put", "x", "--create", "--mode", "append"}, {"put", "x", "--mode", "truncate"}, {"put", "x", "--if-revision", "-1"}, {"append", "x", "--if-revision", "new"},
		{"put"}, {"append"}, {"rm"}, {"rm", "a", "b"}, {"ls", "--limit", "-1"}, {"ls", "a", "b"}, {"bogus"},
	} {
		refused(do("x", c...), 2, "toolbus: invalid_request: ", "--help")
	}
	refused(do("", "put", "x", "/nowhere/at/all"), 1, "invalid_request: file: ", "/nowhere/at/all")
	refused(do("", "put", "x", t.TempDir()), 1, "invalid_request: file: ", "is a folder")
	refused(do("", "get", "by/append", "/nowhere/at/all"), 1, "invalid_request: file: /nowhere/at/all: ")
	refused(do("", "ls", "/abs"), 1, "invalid_request: prefix: ")
	refused(do("", "ls", "../"), 1, "invalid_request: prefix: ")
	for _, cursor := range []string{"!", "page2"} {
		refused(do("", "ls", "--cursor", cursor), 1, "invalid_request: cursor: ")
	}
}

func TestFilesListPages(t *testing.T) {
	_, cli := up(t)
	var want []string
	for i := range 7 {
		path := fmt.Sprintf("d/%d", i)
		if r := cli.Pipe(t, strings.NewReader(strings.Repeat("x", i)), "files", "put", path, "-t", "acme"); r.Code != 0 {
			t.Fatalf("%+v", r)
		}
		want = append(want, path)
	}
	var got []string
	cursor := ""
	for pages := 1; ; pages++ {
		var page message.FileListing
		cli.JSON(t, &page, "files", "ls", "d/", "--limit", "3", "--cursor", cursor, "-t", "acme")
		for _, f := range page.Files {
			if f.Size != int64(len(got)) {
				t.Errorf("%+v", f)
			}
			got = append(got, f.Path)
		}
		if cursor = page.Cursor; cursor == "" {
			if pages != 3 {
				t.Errorf("%d pages", pages)
			}
			break
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
	r := cli.Run(t, "files", "ls", "--limit", "2", "-t", "acme")
	if r.Code != 0 || strings.Count(r.Stdout, "\n") != 3 || !strings.Contains(r.Stderr, "--cursor ") {
		t.Errorf("%+v", r)
	}
	if r := cli.Run(t, "files", "ls", "d/7", "-t", "acme"); r.Code != 0 || r.Stdout != "SIZE  MODIFIED  REVISION  PATH\n" || r.Stderr != "" {
		t.Errorf("%+v", r)
	}
}
