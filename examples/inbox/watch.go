package inbox

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/toolbus/toolbus/pkg/tool"
)

// What the job keeps in its store.
const (
	keyOffset = "inbox_offset" // bytes of the file that the agent knows of, decimal
	keyMark   = "inbox_mark"   // what stands before the offset, to recognise another file
)

const (
	watchWindow = 64 << 10 // bytes looked at in one run; the rest is for the next
	markWindow  = 256      // bytes before the offset that make the mark
	maxLines    = 20       // lines in a wake; more are only counted
	maxLine     = 200      // characters of a line in a wake
)

// newLines looks for complete lines behind the stored offset. The new offset is
// a store write: it counts if and when the wake does, so that a run that is
// repeated finds the same lines, and none is told twice or never.
//
// A file that is shorter than the offset, or has something else before it, is
// another file, and read from its start; so is one that comes back after it was
// missing. A last line without its newline waits until it is complete.
func newLines(ctx context.Context, call *tool.JobCall) (tool.JobResult, error) {
	path, err := path(call.BindSettings)
	if err != nil {
		return tool.JobResult{}, err
	}
	at, err := load(ctx, call.Store())
	if err != nil {
		return tool.JobResult{}, err
	}
	f, err := look(ctx, call.Files(), path, at)
	switch {
	case err != nil:
		return tool.JobResult{}, err
	case !f.exists:
		return tool.NoAction("there is no " + path), forget(ctx, call.Store(), at)
	case f.other:
		call.Log.Info("the inbox is another file now: reading it from its start", "path", path)
	}
	read := complete(f.fresh, f.more)
	if len(read) == 0 {
		if f.other {
			return tool.NoAction("nothing new"), forget(ctx, call.Store(), at)
		}
		return tool.NoAction("nothing new"), nil
	}
	next := position{f.offset + int64(len(read)), mark(path, append(f.before, read...))}
	if err := next.save(ctx, call.Store()); err != nil {
		return tool.JobResult{}, err
	}
	found := lines(read)
	if len(found) == 0 {
		return tool.NoAction("only blank lines"), nil
	}
	return tool.Wake(summary(found), tool.LogSummary("%s", count(len(found)))), nil
}

// position is how far the agent knows the file.
type position struct {
	offset int64
	mark   string
}

// load reads the position; one that is unreadable is the start.
func load(ctx context.Context, s tool.Store) (position, error) {
	offset, _, err := s.Get(ctx, keyOffset)
	if err != nil {
		return position{}, err
	}
	mark, _, err := s.Get(ctx, keyMark)
	if err != nil {
		return position{}, err
	}
	if n, err := strconv.ParseInt(offset, 10, 64); err == nil && n >= 0 {
		return position{n, mark}, nil
	}
	return position{}, nil
}

func (p position) save(ctx context.Context, s tool.Store) error {
	if err := s.Set(ctx, keyOffset, strconv.FormatInt(p.offset, 10)); err != nil {
		return err
	}
	return s.Set(ctx, keyMark, p.mark)
}

// forget goes back to the start.
func forget(ctx context.Context, s tool.Store, at position) error {
	if at == (position{}) {
		return nil
	}
	if _, err := s.Delete(ctx, keyOffset); err != nil {
		return err
	}
	_, err := s.Delete(ctx, keyMark)
	return err
}

// found is what stands in the file behind a position.
type found struct {
	exists bool
	other  bool   // not the file of the position: offset is 0
	offset int64  // where fresh begins
	before []byte // up to markWindow bytes before it
	fresh  []byte
	more   bool // the file goes on behind fresh
}

// look reads the file behind a position, in one piece with what stands before
// it, so that both are of one version.
func look(ctx context.Context, files tool.Files, path string, at position) (found, error) {
	from := max(at.offset-markWindow, 0)
	b, info, exists, err := files.ReadAt(ctx, path, from, at.offset-from+watchWindow)
	if err != nil || !exists {
		return found{}, err
	}
	n := at.offset - from // of what stands before
	if int64(len(b)) < n || at.offset > 0 && mark(path, b[:n]) != at.mark {
		if b, info, exists, err = files.ReadAt(ctx, path, 0, watchWindow); err != nil || !exists {
			return found{}, err
		}
		return found{exists: true, other: true, fresh: b, more: info.Size > int64(len(b))}, nil
	}
	return found{
		exists: true, offset: at.offset, before: b[:n:n], fresh: b[n:], more: info.Size > from+int64(len(b)),
	}, nil
}

// mark stands for the end of what was read, and for the file's name.
func mark(path string, read []byte) string {
	sum := sha256.Sum256(append([]byte(path+"\x00"), read[max(len(read)-markWindow, 0):]...))
	return hex.EncodeToString(sum[:8])
}

// complete is b up to its last newline. A line that is longer than b, with more
// to come, is cut: its parts count as lines.
func complete(b []byte, more bool) []byte {
	if i := bytes.LastIndexByte(b, '\n'); i >= 0 {
		return b[:i+1]
	}
	if !more {
		return nil
	}
	for cut := len(b); cut > len(b)-utf8.UTFMax; cut-- {
		if r, _ := utf8.DecodeLastRune(b[:cut]); r != utf8.RuneError {
			return b[:cut] // between two characters
		}
	}
	return b
}

// lines are those of b that are not blank, as text.
func lines(b []byte) []string {
	out := []string{}
	for l := range strings.Lines(strings.ToValidUTF8(string(b), "\uFFFD")) {
		if l = strings.TrimSpace(l); l != "" {
			out = append(out, l)
		}
	}
	return out
}

// summary is what the agent is woken with.
func summary(lines []string) string {
	var s strings.Builder
	s.WriteString(count(len(lines)) + ":")
	for _, l := range lines[:min(len(lines), maxLines)] {
		s.WriteString("\n- " + short(l))
	}
	if n := len(lines) - maxLines; n > 0 {
		fmt.Fprintf(&s, "\n… and %d more", n)
	}
	return s.String()
}

func short(l string) string {
	if n := 0; utf8.RuneCountInString(l) > maxLine {
		for i := range l {
			if n == maxLine {
				return l[:i] + "…"
			}
			n++
		}
	}
	return l
}

func count(n int) string {
	if n == 1 {
		return "1 new line"
	}
	return fmt.Sprintf("%d new lines", n)
}
