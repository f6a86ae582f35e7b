package files

import (
	"context"
	"encoding/base64"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
)

const (
	windowBytes  = 4 << 20 // of one window; two are under way, which is what a direct read holds in memory
	windowChunks = 1024    // most of one window
	firstChunks  = 8       // of the first window, when the size of chunks is not known

	silence     = time.Second // after which a window counts as lost; doubles each time
	silentTries = 3           // windows without a chunk before the rest goes through the service
)

// direct reads one version's content straight from where it is stored: the
// service only has windows of chunks sent to this client's inbox. The next window
// is asked for when half of one has come, so that the line is never idle.
type direct struct {
	c     *Client
	first message.FileContent // of the version
	end   int64               // byte before which to stop
	sink  func([]byte) error

	off      int64              // next byte wanted
	next     *message.FilePlace // where the next chunk stands; nil: the service finds out
	numbered bool               // the last chunk had a number, so that a gap would be seen
	inbox    string
	asked    int // windows
	ahead    *window
	msgs     chan *nats.Msg
}

// window is some chunks in a row, which the service was asked for.
type window struct {
	to     string // where they come to
	chunks int    // at most
	came   int
	answer chan answer
	held   []*nats.Msg // came before their turn
}

type answer struct {
	r   message.FileContent
	err error
}

// readDirect hands the bytes from off to end of first's version to sink, in
// order, and returns how far it came: to end, or to where reading must go on
// through the service. An error is conflict when the version is gone, and
// otherwise sink's or the service's.
func (c *Client) readDirect(ctx context.Context, first message.FileContent, off, end int64, sink func([]byte) error) (int64, error) {
	ctx, cancel := context.WithCancel(ctx) // ends what is asked for in vain
	defer cancel()
	d := &direct{
		c: c, first: first, end: end, sink: sink, off: off,
		inbox: c.nc.NewInbox(), msgs: make(chan *nats.Msg, 4*windowChunks),
	}
	sub, err := c.nc.ChanSubscribe(d.inbox+".*", d.msgs)
	if err != nil {
		return off, nil
	}
	defer func() { _ = sub.Unsubscribe() }()
	chunks := firstChunks
	for tries := 0; d.off < d.end; {
		w := d.ahead
		if d.ahead = nil; w == nil {
			w = d.ask(ctx, d.off, d.next, chunks)
		}
		before, from := d.off, d.next
		if done, err := d.receive(ctx, w, silence<<tries); done || err != nil {
			return d.off, err
		}
		if d.off > before {
			tries = 0
			if from != nil && d.next != nil && d.next.Chunk > from.Chunk {
				chunks = d.fitting((d.next.Offset - from.Offset) / int64(d.next.Chunk-from.Chunk))
			}
			continue
		}
		// Lost, or compacted away, or a replica that is behind.
		d.ahead, d.next = nil, nil
		if tries++; tries == silentTries {
			break
		}
		select {
		case <-ctx.Done():
			return d.off, ctx.Err()
		case <-time.After(10 * time.Millisecond << tries):
		}
	}
	return d.off, nil
}

// fitting is how many chunks of a size make a window.
func (d *direct) fitting(size int64) int {
	return int(min(max(windowBytes/max(size, 1), 1), windowChunks))
}

// ask asks for a window without waiting for the answer.
func (d *direct) ask(ctx context.Context, off int64, from *message.FilePlace, chunks int) *window {
	d.asked++
	w := &window{to: d.inbox + "." + strconv.Itoa(d.asked), chunks: chunks, answer: make(chan answer, 1)}
	left := d.end - off
	q := message.FileRead{
		Path: d.first.Path, Encoding: message.EncodingBase64, Offset: off, Length: &left, Revision: &d.first.Revision,
		Direct: &message.FileDirect{DeliverTo: w.to, MaxBytes: 2 * windowBytes, MaxChunks: chunks, From: from},
	}
	go func() {
		var a answer
		a.err = d.c.request(ctx, "read", q, &a.r)
		w.answer <- a
	}()
	return w
}

// receive takes what comes of a window. done is that the service does not
// deliver directly.
func (d *direct) receive(ctx context.Context, w *window, patience time.Duration) (done bool, err error) {
	var a answer
	select {
	case a = <-w.answer:
	case <-ctx.Done():
		return false, ctx.Err()
	}
	switch {
	case a.err != nil:
		return false, a.err
	case !a.r.Exists:
		return false, errcode.New(errcode.Conflict, "%q was removed while it was read", d.first.Path)
	case a.r.Direct == nil:
		return true, d.inline(a.r)
	case d.next == nil || d.next.ID != a.r.Direct.ID:
		d.next = a.r.Direct
	}
	for _, m := range w.held {
		if more, err := d.take(ctx, w, m); !more || err != nil {
			return false, err
		}
	}
	quiet := time.NewTimer(patience)
	defer quiet.Stop()
	for d.off < d.end {
		select {
		case m := <-d.msgs:
			switch {
			case m.Subject == w.to:
				quiet.Reset(patience)
				if more, err := d.take(ctx, w, m); !more || err != nil {
					return false, err
				}
			case d.ahead != nil && m.Subject == d.ahead.to:
				d.ahead.held = append(d.ahead.held, m)
			} // else of a window that was given up
		case <-quiet.C:
			d.ahead = nil
			return false, nil
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
	return false, nil
}

// inline takes what came in the reply after all.
func (d *direct) inline(r message.FileContent) error {
	if r.Content == nil || r.Offset != d.off {
		return nil
	}
	data, err := base64.StdEncoding.DecodeString(*r.Content)
	if err != nil || int64(len(data)) > d.end-d.off {
		return errcode.New(errcode.Internal, "the files service sent unreadable content")
	}
	d.off += int64(len(data))
	return d.sink(data)
}

// take handles one message of a window; more is false when the window is at its
// end, or of no more use. What the server says of a stored message comes last in
// its headers: whoever stored it may have set the same ones.
func (d *direct) take(ctx context.Context, w *window, m *nats.Msg) (more bool, err error) {
	seq, err := strconv.ParseUint(last(m.Header, "Nats-Sequence"), 10, 64)
	if err != nil {
		return false, nil // a status
	}
	w.came++
	if seq < d.next.Sequence {
		return true, nil // came before
	}
	number := m.Header.Get(message.HeaderChunk)
	at, size := d.next.Offset, int64(len(m.Data))
	if number != "" && number != strconv.Itoa(d.next.Chunk) || at > d.off {
		d.ahead, d.next = nil, nil // one is missing
		return false, nil
	}
	d.numbered = number != ""
	d.next = &message.FilePlace{ID: d.next.ID, Chunk: d.next.Chunk + 1, Offset: at + size, Sequence: seq + 1}
	if at+size > d.off {
		part := m.Data[d.off-at : min(size, d.end-at)]
		if err := d.sink(part); err != nil {
			return false, err
		}
		d.off += int64(len(part))
	}
	d.askAhead(ctx, w, size)
	return w.came < w.chunks, nil
}

// askAhead asks for the window after w when half of w has come. Where it begins
// is not known yet, but a sequence that is not above it is: w's last chunk has at
// least as many before it as are missing. Chunks that come twice are left out.
func (d *direct) askAhead(ctx context.Context, w *window, size int64) {
	missing := w.chunks - w.came
	off := d.off + int64(missing)*size
	if d.ahead != nil || !d.numbered || missing > w.chunks/2 || off >= d.end {
		return
	}
	d.ahead = d.ask(ctx, off, &message.FilePlace{
		ID: d.next.ID, Chunk: d.next.Chunk + missing, Offset: off, Sequence: d.next.Sequence + uint64(missing),
	}, max(d.fitting(size), w.chunks))
}

func last(h nats.Header, key string) string {
	if v := h.Values(key); len(v) > 0 {
		return v[len(v)-1]
	}
	return ""
}
