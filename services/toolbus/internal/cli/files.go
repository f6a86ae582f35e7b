package cli

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"unicode/utf8"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/files"
	"github.com/toolbus/toolbus/pkg/paths"
)

func (a *app) files() *cobra.Command {
	cmd := &cobra.Command{Use: "files", Short: "Read and write the tenant's files", RunE: needsVerb}
	var version version
	cat := &cobra.Command{
		Use: "cat PATH", Short: "Print a file's bytes; not_found when it is missing", Args: args(1, "path"),
		Long: `Print a file's bytes; not_found when it is missing. With -o json, one document with its particulars
and the content, in base64 when it is not UTF-8.`,
		RunE: a.do(func(ctx context.Context, args []string) error { return a.filesCat(ctx, version.revision, args) }),
	}
	version.register(cat)
	get := &cobra.Command{
		Use: "get PATH [FILE|-]", Short: "Write a file's bytes to FILE, or to stdout; not_found when it is missing", Args: args(1, "path", "file"),
		Long: `Write a file's bytes to FILE, which is replaced when all of them are there, or to stdout, as they are
also with -o json; not_found when it is missing.`,
		RunE: a.do(func(ctx context.Context, args []string) error { return a.filesGet(ctx, version.revision, args) }),
	}
	version.register(get)
	overwrite := false
	mv := &cobra.Command{
		Use: "mv FROM TO", Short: "Give a file another path; conflict when there is a file already", Args: args(2, "from", "to"),
		RunE: a.do(func(ctx context.Context, args []string) error { return a.filesMove(ctx, overwrite, args) }),
	}
	mv.Flags().BoolVar(&overwrite, "overwrite", false, "replace a file at TO")
	cmd.AddCommand(
		mv,
		a.filesPut(),
		a.filesAppend(),
		get,
		a.filesList(),
		cat,
		&cobra.Command{Use: "versions PATH", Short: "List the versions of a file that can be read and restored", Args: args(1, "path"), RunE: a.do(a.filesVersions)},
		&cobra.Command{Use: "restore PATH REVISION", Short: "Make a kept version of a file the current one", Args: args(2, "path", "revision"), RunE: a.do(a.filesRestore)},
		&cobra.Command{Use: "stat PATH", Short: "Print a file's particulars", Args: args(1, "path"), RunE: a.do(a.filesStat)},
		a.filesRemove(),
	)
	return cmd
}

func (a *app) filesList() *cobra.Command {
	var limit int
	var cursor string
	cmd := &cobra.Command{
		Use: "ls [PREFIX]", Short: "List the files whose path starts with PREFIX", Args: args(0, "prefix"),
		Long: `List the files whose path starts with PREFIX, sorted by path; sizes are bytes. All of them, or with
--limit a page: its cursor, for the next page's --cursor, stands in the JSON, and on stderr else.`,
	}
	cmd.Flags().IntVar(&limit, "limit", 0, "at most this `number`; 0 for all")
	cmd.Flags().StringVar(&cursor, "cursor", "", "go on after the page that ended with this `cursor`")
	cmd.RunE = a.do(func(ctx context.Context, args []string) error {
		if limit < 0 {
			return &usageError{errcode.Field("limit", "must not be negative")}
		}
		tenant, err := a.tenant()
		if err != nil {
			return err
		}
		q := message.FileList{Cursor: cursor}
		if len(args) == 1 {
			q.Prefix = args[0]
		}
		if err := paths.CheckPrefix(q.Prefix); err != nil {
			return err
		}
		nc, err := a.connect(ctx)
		if err != nil {
			return err
		}
		defer nc.Close()
		found, err := listFiles(ctx, nc, tenant, q, limit)
		if err != nil {
			return err
		}
		if found.Cursor != "" && a.flags.output != outputJSON {
			fmt.Fprintf(a.std.Err, "toolbus: more files follow: --cursor %s\n", printable(found.Cursor))
		}
		return a.print(found, func(w io.Writer) { fileRows(w, found.Files...) })
	})
	return cmd
}

func fileRows(w io.Writer, infos ...message.FileInfo) {
	var lines [][]any
	for _, f := range infos {
		lines = append(lines, []any{f.Size, toSecond(f.Modified), f.Revision, f.Path})
	}
	rows(w, "SIZE MODIFIED REVISION PATH", lines)
}

// filesCat streams: a file need not fit into memory. Only -o json gathers it.
func (a *app) filesCat(ctx context.Context, revision uint64, args []string) error {
	tenant, err := a.tenant()
	if err != nil {
		return err
	}
	if err := paths.Check(args[0]); err != nil {
		return err
	}
	nc, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer nc.Close()
	var whole bytes.Buffer
	var to io.Writer = output{a.std.Out}
	if a.flags.output == outputJSON {
		to = &whole
	}
	info, err := read(ctx, nc, tenant, args[0], revision, to)
	if err != nil {
		return err
	}
	if a.flags.output != outputJSON {
		return nil
	}
	text, encoding := whole.String(), message.EncodingUTF8
	if !utf8.ValidString(text) {
		text, encoding = base64.StdEncoding.EncodeToString(whole.Bytes()), message.EncodingBase64
	}
	return a.print(message.FileContent{
		Exists: true, Path: info.Path, Content: &text, Encoding: encoding,
		Length: info.Size, Size: info.Size, Modified: info.Modified, Revision: info.Revision,
	}, nil)
}

// version is the flag --revision; 0 is the current one.
type version struct{ revision uint64 }

func (v *version) register(cmd *cobra.Command) {
	cmd.Flags().Var(v, "revision", "the version with this `revision`, the current one or one that is kept; conflict when it is neither")
}

// Set implements pflag.Value.
func (v *version) Set(s string) (err error) {
	v.revision, err = parseRevision(s)
	return err
}

// String implements pflag.Value.
func (v *version) String() string {
	if v.revision == 0 {
		return ""
	}
	return strconv.FormatUint(v.revision, 10)
}

// Type implements pflag.Value.
func (v *version) Type() string { return "revision" }

func parseRevision(s string) (uint64, error) {
	revision, err := strconv.ParseUint(s, 10, 64)
	if err != nil || revision == 0 {
		return 0, errcode.Field("revision", "%q must be a revision, as versions, stat and ls show it", s)
	}
	return revision, nil
}

// read writes a file's bytes to w: of its current version when revision is 0.
// Then a file that is missing is not_found.
func read(ctx context.Context, nc *nats.Conn, tenant, path string, revision uint64, w io.Writer) (message.FileInfo, error) {
	if revision > 0 {
		info, err := files.New(nc, tenant).GetVersion(ctx, path, revision, w)
		return fileInfo(info), err
	}
	info, err := download(ctx, nc, tenant, path, w)
	if err == nil && !info.Exists {
		err = errcode.New(errcode.NotFound, "no file %q", path)
	}
	return info, err
}

// onlyIf is the flag --if-revision.
type onlyIf struct{ revision uint64 }

func (o *onlyIf) register(cmd *cobra.Command) {
	cmd.Flags().Uint64Var(&o.revision, "if-revision", 0, "conflict unless the file is at this `revision`; 0 for one that does not exist")
}

// given is the revision; nil when any will do.
func (o *onlyIf) given(cmd *cobra.Command) *uint64 {
	if !cmd.Flags().Changed("if-revision") {
		return nil
	}
	return &o.revision
}

func (a *app) filesPut() *cobra.Command {
	var cond onlyIf
	var create bool
	mode := message.ModeOverwrite
	cmd := &cobra.Command{
		Use: "put PATH [FILE|-]", Short: "Write a file from FILE, or from stdin", Args: args(1, "path", "file"),
		Example: `  toolbus files put members.json members.json -t acme --if-revision 17
  date | toolbus files put started.txt -t acme --create`,
	}
	cmd.Flags().StringVar(&mode, "mode", mode, "`mode`: overwrite, append, or create (conflict when the file exists)")
	cmd.Flags().BoolVar(&create, "create", false, "the same as --mode create")
	cond.register(cmd)
	cmd.RunE = a.do(func(ctx context.Context, args []string) error {
		switch {
		case create && cmd.Flags().Changed("mode") && mode != message.ModeCreate:
			return &usageError{errcode.Field("create", "does not go with --mode %s", mode)}
		case create:
			mode = message.ModeCreate
		case mode != message.ModeOverwrite && mode != message.ModeAppend && mode != message.ModeCreate:
			return &usageError{errcode.Field("mode", "%q must be overwrite, append or create", mode)}
		}
		return a.upload(ctx, mode, cond.given(cmd), args)
	})
	return cmd
}

func (a *app) filesAppend() *cobra.Command {
	var cond onlyIf
	cmd := &cobra.Command{
		Use: "append PATH [FILE|-]", Short: "Append FILE, or stdin, to a file, as a whole; the file is made when it is missing", Args: args(1, "path", "file"),
	}
	cond.register(cmd)
	cmd.RunE = a.do(func(ctx context.Context, args []string) error {
		return a.upload(ctx, message.ModeAppend, cond.given(cmd), args)
	})
	return cmd
}

// upload streams: what is written need not fit into memory.
func (a *app) upload(ctx context.Context, mode string, ifRevision *uint64, args []string) error {
	tenant, err := a.tenant()
	if err != nil {
		return err
	}
	path, from := args[0], "-"
	if len(args) == 2 {
		from = args[1]
	}
	if err := paths.Check(path); err != nil {
		return err
	}
	in, err := a.open("file", from)
	if err != nil {
		return err
	}
	defer in.Close()
	nc, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer nc.Close()
	bar := a.transfer(path, inputSize(in))
	info, err := files.New(nc, tenant).PutIf(ctx, path, bar.reader(in), mode, ifRevision)
	bar.end()
	if err != nil {
		return err
	}
	return a.print(fileInfo(info), func(w io.Writer) { fileRows(w, fileInfo(info)) })
}

// getTries is how often a download to a file begins again when the file is
// replaced meanwhile.
const getTries = 4

// filesGet streams. A local file is replaced when all of it is there; to stdout
// goes what has come, also when the rest does not.
func (a *app) filesGet(ctx context.Context, revision uint64, args []string) error {
	tenant, err := a.tenant()
	if err != nil {
		return err
	}
	if err := paths.Check(args[0]); err != nil {
		return err
	}
	nc, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer nc.Close()
	get := func(to io.Writer) (message.FileInfo, error) {
		size := int64(-1)
		if a.terminal() && revision == 0 { // the size is for the bar only
			var stat message.FileInfo
			if err := bus.Retry(ctx, nc, subject.Files(tenant, "stat"), message.FileStat{Path: args[0]}, &stat); err != nil {
				return stat, err
			}
			size = stat.Size
		}
		bar := a.transfer(args[0], size)
		defer bar.end()
		return read(ctx, nc, tenant, args[0], revision, bar.writer(to))
	}
	if len(args) == 1 || args[1] == "-" {
		_, err := get(output{a.std.Out})
		return err
	}
	var info message.FileInfo
	err = replaceFile(args[1], func(f *os.File) error {
		for try := 1; ; try++ {
			info, err = get(f)
			if !errors.Is(err, errcode.Conflict) || revision > 0 || try == getTries {
				return err
			}
			if err := rewind(f); err != nil {
				return err
			}
		}
	})
	if err != nil {
		return err
	}
	return a.print(info, func(w io.Writer) { fileRows(w, info) })
}

func (a *app) filesStat(ctx context.Context, args []string) error {
	tenant, err := a.tenant()
	if err != nil {
		return err
	}
	if err := paths.Check(args[0]); err != nil {
		return err
	}
	var reply message.FileInfo
	if err := a.ask(ctx, subject.Files(tenant, "stat"), message.FileStat{Path: args[0]}, &reply); err != nil {
		return err
	}
	if !reply.Exists {
		return errcode.New(errcode.NotFound, "no file %q", args[0])
	}
	return a.print(reply, func(w io.Writer) { fileRows(w, reply) })
}

func (a *app) filesMove(ctx context.Context, overwrite bool, args []string) error {
	tenant, err := a.tenant()
	if err != nil {
		return err
	}
	if err := paths.CheckMove(args[0], args[1]); err != nil {
		return err
	}
	var reply message.FileMoved
	q := message.FileMove{Path: args[0], To: args[1], Overwrite: overwrite, OpID: bus.NewOpID()}
	if err := a.ask(ctx, subject.Files(tenant, "move"), q, &reply); err != nil {
		return err
	}
	return a.print(reply, func(w io.Writer) { rows(w, "SIZE REVISION PATH", [][]any{{reply.Size, reply.Revision, reply.Path}}) })
}

func (a *app) filesRemove() *cobra.Command {
	var cond onlyIf
	cmd := &cobra.Command{Use: "rm PATH", Short: "Remove a file; not_found when it is missing", Args: args(1, "path")}
	cond.register(cmd)
	cmd.RunE = a.do(func(ctx context.Context, args []string) error {
		tenant, err := a.tenant()
		if err != nil {
			return err
		}
		if err := paths.Check(args[0]); err != nil {
			return err
		}
		var reply message.FileDeleted
		q := message.FileDelete{Path: args[0], IfRevision: cond.given(cmd), OpID: bus.NewOpID()}
		if err := a.ask(ctx, subject.Files(tenant, "delete"), q, &reply); err != nil {
			return err
		}
		if !reply.Deleted {
			return errcode.New(errcode.NotFound, "no file %q", args[0])
		}
		return a.print(reply, func(w io.Writer) { line(w, "removed") })
	})
	return cmd
}

func (a *app) filesVersions(ctx context.Context, args []string) error {
	tenant, err := a.tenant()
	if err != nil {
		return err
	}
	var reply message.FileVersionList
	if err := a.ask(ctx, subject.Files(tenant, "versions"), message.FileVersions{Path: args[0]}, &reply); err != nil {
		return err
	}
	if len(reply.Versions) == 0 {
		return errcode.New(errcode.NotFound, "no file %q", args[0])
	}
	return a.print(reply, func(w io.Writer) {
		var lines [][]any
		for _, v := range reply.Versions {
			lines = append(lines, []any{v.Size, toSecond(v.Modified), v.Revision, v.SHA256})
		}
		rows(w, "SIZE MODIFIED REVISION SHA256", lines)
	})
}

func (a *app) filesRestore(ctx context.Context, args []string) error {
	tenant, err := a.tenant()
	if err != nil {
		return err
	}
	revision, err := parseRevision(args[1])
	if err != nil {
		return &usageError{err}
	}
	var reply message.FileRestored
	q := message.FileRestore{Path: args[0], Revision: revision, OpID: bus.NewOpID()}
	if err := a.ask(ctx, subject.Files(tenant, "restore"), q, &reply); err != nil {
		return err
	}
	return a.print(reply, func(w io.Writer) { rows(w, "SIZE REVISION PATH", [][]any{{reply.Size, reply.Revision, reply.Path}}) })
}
