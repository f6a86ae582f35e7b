package cli

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"io"
	"os"
	"unicode/utf8"

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
	mode := message.ModeOverwrite
	put := &cobra.Command{
		Use: "put PATH [FILE|-]", Short: "Write a file from FILE, or from stdin", Args: args(1, "path", "file"),
		RunE: a.do(func(ctx context.Context, args []string) error { return a.filesPut(ctx, mode, args) }),
	}
	put.Flags().StringVar(&mode, "mode", mode, "`mode`: overwrite, append, or create (conflict when the file exists)")
	overwrite := false
	mv := &cobra.Command{
		Use: "mv FROM TO", Short: "Give a file another path; conflict when there is a file already", Args: args(2, "path", "to"),
		RunE: a.do(func(ctx context.Context, args []string) error { return a.filesMove(ctx, overwrite, args) }),
	}
	mv.Flags().BoolVar(&overwrite, "overwrite", false, "replace a file at TO")
	cmd.AddCommand(
		mv,
		put,
		&cobra.Command{Use: "get PATH [FILE|-]", Short: "Write a file's bytes to FILE, or to stdout; not_found when it is missing", Args: args(1, "path", "file"), RunE: a.do(a.filesGet)},
		&cobra.Command{Use: "ls [PREFIX]", Short: "List the files whose path starts with PREFIX", Args: args(0, "prefix"), RunE: a.do(a.filesList)},
		&cobra.Command{Use: "cat PATH", Short: "Print a file's bytes; not_found when it is missing", Args: args(1, "path"), RunE: a.do(a.filesCat)},
		&cobra.Command{Use: "stat PATH", Short: "Print a file's particulars", Args: args(1, "path"), RunE: a.do(a.filesStat)},
		&cobra.Command{Use: "rm PATH", Short: "Remove a file", Args: args(1, "path"), RunE: a.do(a.filesRemove)},
	)
	return cmd
}

func (a *app) filesList(ctx context.Context, args []string) error {
	tenant, err := a.tenant()
	if err != nil {
		return err
	}
	prefix := ""
	if len(args) == 1 {
		prefix = args[0]
	}
	nc, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer nc.Close()
	found, err := listFiles(ctx, nc, tenant, prefix)
	if err != nil {
		return err
	}
	return a.print(message.FileListing{Files: found}, func(w io.Writer) { fileRows(w, found...) })
}

func fileRows(w io.Writer, infos ...message.FileInfo) {
	var lines [][]any
	for _, f := range infos {
		lines = append(lines, []any{f.Size, toSecond(f.Modified), f.Revision, f.Path})
	}
	rows(w, "SIZE MODIFIED REVISION PATH", lines)
}

// filesCat streams: a file need not fit into memory. Only -o json gathers it.
func (a *app) filesCat(ctx context.Context, args []string) error {
	tenant, err := a.tenant()
	if err != nil {
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
	info, err := download(ctx, nc, tenant, args[0], to)
	if err != nil {
		return err
	}
	if !info.Exists {
		return errcode.New(errcode.NotFound, "no file %q", args[0])
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

// filesPut streams: what is written need not fit into memory.
func (a *app) filesPut(ctx context.Context, mode string, args []string) error {
	tenant, err := a.tenant()
	if err != nil {
		return err
	}
	path, from := args[0], "-"
	if len(args) == 2 {
		from = args[1]
	}
	if mode != message.ModeOverwrite && mode != message.ModeAppend && mode != message.ModeCreate {
		return &usageError{errcode.Field("mode", "%q must be overwrite, append or create", mode)}
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
	info, err := files.New(nc, tenant).PutMode(ctx, path, bar.reader(in), mode)
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
func (a *app) filesGet(ctx context.Context, args []string) error {
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
		if a.terminal() { // the size is for the bar only
			var stat message.FileInfo
			if err := bus.Retry(ctx, nc, subject.Files(tenant, "stat"), message.FileStat{Path: args[0]}, &stat); err != nil {
				return stat, err
			}
			size = stat.Size
		}
		bar := a.transfer(args[0], size)
		defer bar.end()
		info, err := download(ctx, nc, tenant, args[0], bar.writer(to))
		if err == nil && !info.Exists {
			err = errcode.New(errcode.NotFound, "no file %q", args[0])
		}
		return info, err
	}
	if len(args) == 1 || args[1] == "-" {
		_, err := get(output{a.std.Out})
		return err
	}
	var info message.FileInfo
	err = replaceFile(args[1], func(f *os.File) error {
		for try := 1; ; try++ {
			info, err = get(f)
			if !errors.Is(err, errcode.Conflict) || try == getTries {
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

func (a *app) filesRemove(ctx context.Context, args []string) error {
	tenant, err := a.tenant()
	if err != nil {
		return err
	}
	var reply message.FileDeleted
	if err := a.ask(ctx, subject.Files(tenant, "delete"), message.FileDelete{Path: args[0], OpID: bus.NewOpID()}, &reply); err != nil {
		return err
	}
	if !reply.Deleted {
		return errcode.New(errcode.NotFound, "no file %q", args[0])
	}
	return a.print(reply, func(w io.Writer) { line(w, "removed") })
}
