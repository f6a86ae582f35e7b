package cli

import (
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// terminal tells whether somebody is watching stderr.
func (a *app) terminal() bool {
	f, ok := a.std.Err.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// barAfter is how long a transfer takes before it shows its progress.
const barAfter = time.Second

// transfer is the progress of one transfer on stderr: shown when stderr is a
// terminal and the transfer takes long, and gone when it ends.
type transfer struct {
	to    io.Writer // nil: nobody is watching
	name  string
	size  int64 // bytes; -1: not known
	begin time.Time
	moved int64
	bar   *progressbar.ProgressBar
}

func (a *app) transfer(name string, size int64) *transfer {
	t := &transfer{name: printable(name), size: size, begin: time.Now()}
	if a.terminal() {
		t.to = a.std.Err
	}
	return t
}

func (t *transfer) add(n int) {
	t.moved += int64(n)
	if t.to == nil || t.bar == nil && time.Since(t.begin) < barAfter {
		return
	}
	if t.bar == nil {
		t.bar = progressbar.NewOptions64(t.size,
			progressbar.OptionSetWriter(t.to), progressbar.OptionSetDescription(t.name),
			progressbar.OptionShowBytes(true), progressbar.OptionThrottle(100*time.Millisecond),
			progressbar.OptionFullWidth(), progressbar.OptionClearOnFinish(),
		)
	}
	_ = t.bar.Set64(t.moved) // a bar that cannot be drawn is no fault of the transfer
}

// end takes the bar away.
func (t *transfer) end() {
	if t.bar != nil {
		_ = t.bar.Clear()
		_ = t.bar.Close()
	}
}

func (t *transfer) reader(r io.Reader) io.Reader { return &transferReader{t, r} }
func (t *transfer) writer(w io.Writer) io.Writer { return &transferWriter{t, w} }

type transferReader struct {
	t *transfer
	r io.Reader
}

func (r *transferReader) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	r.t.add(n)
	return n, err
}

type transferWriter struct {
	t *transfer
	w io.Writer
}

func (w *transferWriter) Write(p []byte) (int, error) {
	n, err := w.w.Write(p)
	w.t.add(n)
	return n, err
}
