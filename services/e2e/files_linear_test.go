package e2e

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/nats-io/nats.go"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/natstest"
)

// fileHistory is what clients of one file asked and were told.
type fileHistory struct {
	nc    *nats.Conn
	path  string
	start time.Time
	next  atomic.Int64 // client ids

	mu        sync.Mutex
	ops       []porcupine.Operation
	unknown   int
	conflicts int
}

// answerWithin is how long a client tries, with the same opId, before it takes
// an operation's outcome for unknown.
const answerWithin = 25 * time.Second

// do asks for one operation and records it. It returns what was answered.
func (h *fileHistory) do(ctx context.Context, client int, op fileOp) (fileAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	call := time.Since(h.start)
	out, err := h.ask(ctx, op)
	end := int64(time.Since(h.start))
	var e *errcode.Error
	switch {
	case errors.Is(err, errcode.Conflict) && errors.As(err, &e) && e.Details != nil && e.Details.Revision != nil:
		out = fileAnswer{said: true, conflict: true, revision: *e.Details.Revision}
	case err != nil && !errcode.From(err).Retryable:
		return out, err
	case err != nil:
		if op.kind == "read" {
			return out, nil // as if never asked
		}
		out, end = fileAnswer{}, math.MaxInt64
	default:
		out.said = true
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if !out.said {
		h.unknown++
		client = int(h.next.Add(1)) // the client goes on while this one is open
	}
	if out.conflict {
		h.conflicts++
	}
	h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: op, Call: int64(call), Output: out, Return: end})
	return out, nil
}

func (h *fileHistory) ask(ctx context.Context, op fileOp) (fileAnswer, error) {
	to := func(op string) string { return subject.Files("acme", op) }
	switch op.kind {
	case "read":
		var r message.FileContent
		err := bus.Retry(ctx, h.nc, to("read"), message.FileRead{Path: h.path}, &r)
		if err != nil || !r.Exists {
			return fileAnswer{}, err
		}
		return fileAnswer{exists: true, content: *r.Content, revision: r.Revision}, nil
	case "delete":
		var r message.FileDeleted
		err := bus.Retry(ctx, h.nc, to("delete"), message.FileDelete{Path: h.path, IfRevision: op.ifRevision, OpID: bus.NewOpID()}, &r)
		return fileAnswer{exists: r.Deleted}, err
	}
	var r message.FileWritten
	q := message.FileWrite{Path: h.path, Content: op.content, Mode: op.kind, IfRevision: op.ifRevision, OpID: bus.NewOpID()}
	err := bus.Retry(ctx, h.nc, to("write"), q, &r)
	return fileAnswer{size: r.Size, revision: r.Revision}, err
}

// client does n operations at random.
func (h *fileHistory) client(ctx context.Context, n int) error {
	id := int(h.next.Add(1))
	var seen uint64 // the newest revision that this client was told
	for i := range n {
		op := fileOp{content: fmt.Sprintf("%d.%d ", id, i)}
		switch p := rand.IntN(100); {
		case p < 35:
			op.kind = message.ModeAppend
		case p < 50:
			op.kind = message.ModeOverwrite
		case p < 53:
			op.kind = message.ModeCreate
		case p < 56:
			op.kind = "delete"
		default:
			op = fileOp{kind: "read"}
		}
		if op.kind != "read" && op.kind != message.ModeCreate && rand.IntN(2) == 0 {
			revision := seen
			op.ifRevision = &revision
		}
		if op.kind == "delete" {
			op.content = ""
		}
		out, err := h.do(ctx, id, op)
		if err != nil {
			return fmt.Errorf("%v: %w", op, err)
		}
		if out.said {
			seen = out.revision
		}
	}
	return nil
}

func (h *fileHistory) check(t *testing.T) {
	t.Helper()
	switch porcupine.CheckOperationsTimeout(fileModel.ToModel(), h.ops, 2*time.Minute) {
	case porcupine.Illegal:
		t.Errorf("%s is not linearizable", h.path)
		for _, op := range h.ops {
			t.Logf("%3d %12d %20d %s", op.ClientId, op.Call, op.Return, fileModel.DescribeOperation(op.Input, op.Output))
		}
	case porcupine.Unknown:
		t.Errorf("%s: the check of %d operations did not end", h.path, len(h.ops))
	}
}

// playLinear lets clients work on a fresh file per round, while disturb kills
// something, and checks what they were told. object checks that any NATS client
// reads what is left in the end.
func playLinear(t *testing.T, nc *nats.Conn, rounds, clients, each int, object func(path, content string), disturb func(round int) (repair func())) {
	t.Helper()
	var ops, unknown, conflicts int
	for round := range rounds {
		h := &fileHistory{nc: nc, path: fmt.Sprintf("f%d", round), start: time.Now()}
		var wg sync.WaitGroup
		for range clients {
			wg.Go(func() {
				if err := h.client(t.Context(), each); err != nil {
					t.Error(err)
				}
			})
		}
		repair := disturb(round)
		wg.Wait()
		h.check(t)
		if t.Failed() {
			return
		}
		repair()
		ops, unknown, conflicts = ops+len(h.ops), unknown+h.unknown, conflicts+h.conflicts
		final, err := h.ask(t.Context(), fileOp{kind: "read"})
		if err != nil {
			t.Fatal(err)
		}
		if final.exists {
			object(h.path, final.content)
		}
	}
	t.Logf("%d operations, %d refused for their revision, %d with unknown outcome", ops, conflicts, unknown)
	if conflicts == 0 {
		t.Error("no compare-and-set ever missed")
	}
}

// Writes, compare-and-set writes, appends and reads of one file over three
// replicas that are killed are linearizable.
func TestFilesAreLinearizable(t *testing.T) {
	s := natstest.Start(t)
	nc := s.Connect()
	fleet := startFiles(t, nc, s.URL(), 3)
	object := func(path, content string) {
		if natsObject(t, nc, "acme", path) != content {
			t.Fatalf("%s: nats.go reads another content", path)
		}
	}
	playLinear(t, nc, linearRounds, 8, 40, object, func(round int) func() {
		time.Sleep(rand.N(100 * time.Millisecond)) // a random point of the round
		victim := round % 3
		fleet.kill(victim)
		return func() { fleet.start(victim); fleet.await(3) }
	})
}
