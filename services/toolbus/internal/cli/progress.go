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
	bar   *progressbar.ProgressBar // nil: nobody is watching
	begin time.Time
	moved int64
	shown bool
}

// transfer begins one; size is in bytes, -1 when it is not known.
func (a *app) transfer(name string, size int64) *transfer {
	if !a.terminal() {
		return &transfer{}
	}
	return newTransfer(a.std.Err, name, size)
}

func newTransfer(to io.Writer, name string, size int64) *transfer {
	t := &transfer{begin: time.Now(), bar: progressbar.NewOptions64(size,
		progressbar.OptionSetWriter(to), progressbar.OptionSetDescription(printable(name)),
		progressbar.OptionShowBytes(true), progressbar.OptionShowCount(), progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionSetSpinnerChangeInterval(0), // no goroutine that draws, also before its time
		progressbar.OptionFullWidth(), progressbar.OptionClearOnFinish(),
	)}
	t.bar.StartWithoutRender() // its rate counts from here, not from when it is shown
	return t
}

func (t *transfer) add(n int) {
	t.moved += int64(n)
	if t.bar == nil || !t.shown && time.Since(t.begin) < barAfter {
		return
	}
	t.shown = true
	_ = t.bar.Set64(t.moved) // a bar that cannot be drawn is no fault of the transfer
}

// end takes the bar away.
func (t *transfer) end() {
	if t.shown {
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
