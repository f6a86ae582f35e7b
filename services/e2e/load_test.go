package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/agent"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/services/e2e/harness"
)

// load is calls of all kinds on several worker processes.
type load struct {
	t   *testing.T
	url string
	nc  *nats.Conn
	a   *agent.Client

	mu   sync.Mutex
	done map[string]string // id → its chat, of calls whose effects happened once
	pays map[string]error  // id → how a call ended that must not run again

	plain, failed, lost, again atomic.Int64
}

const (
	loadChats  = 40
	loadWithin = 3 * time.Second // of a plain call
)

func startLoad(t *testing.T, workers int) (*load, []*harness.Process) {
	t.Helper()
	p, cli := up(t)
	l := &load{t: t, url: p.URL, done: map[string]string{}, pays: map[string]error{}}
	cli.OK(t, "apply", file(t, "load.json", `{"agentId":"load","tools":{"plain":{},"note":{},"pay":{}}}`), "-t", "acme")
	var err error
	if l.nc, err = nats.Connect(p.URL); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.nc.Close)
	if l.a, err = agent.New(l.nc, "acme", "load"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.a.Close() })
	fleet := make([]*harness.Process, workers)
	for i := range fleet {
		fleet[i] = l.worker()
	}
	l.await(workers)
	return l, fleet
}

func (l *load) worker() *harness.Process {
	return harness.Start(l.t, builder.Build(l.t, "./e2e/load-worker"), "--server", l.url, "--log-level", "warn")
}

// await waits until at least so many workers are in the catalogue.
func (l *load) await(n int) {
	l.t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		var c message.CatalogueTools
		if err := bus.Request(l.t.Context(), l.nc, subject.Catalogue("tools"), nil, &c); err != nil {
			l.t.Fatal(err)
		}
		for _, e := range c.Tools {
			if e.Name == "note" && len(e.Workers) >= n {
				return
			}
		}
		if time.Now().After(deadline) {
			l.t.Fatalf("not %d workers: %+v", n, c)
		}
		<-time.After(50 * time.Millisecond)
	}
}

// run makes calls at about a rate until ctx ends, and waits for the last ones.
func (l *load) run(ctx context.Context, perSecond int) {
	kinds := []func(id, chat string){l.callPlain, l.callPlain, l.callKeyed, l.submitNote, l.submitPay}
	var wg sync.WaitGroup
	tick := time.NewTicker(time.Second / time.Duration(perSecond))
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-tick.C:
			id, chat := fmt.Sprint("id-", n), fmt.Sprint("chat-", n%loadChats)
			wg.Go(func() { kinds[n%len(kinds)](id, chat) })
		case <-ctx.Done():
			wg.Wait()
			return
		}
	}
}

// callPlain gets an answer or an error with a code, in time; a lost worker is known within
// seconds.
func (l *load) callPlain(id, chat string) {
	begin := time.Now()
	r, err := l.a.Call(context.Background(), "plain", map[string]string{"id": id}, agent.Chat(chat), agent.Timeout(loadWithin))
	took := time.Since(begin)
	l.plain.Add(1)
	switch {
	case err == nil && r.Content != id:
		l.t.Errorf("%s: answer %+v", id, r)
	case err != nil:
		l.failed.Add(1)
		if code := errcode.Of(err); code == errcode.Internal || code == errcode.NotAllowed || code == "" {
			l.t.Errorf("%s: %v", id, err)
		}
	}
	if took > loadWithin+5*time.Second {
		l.t.Errorf("%s: answered after %s", id, took)
	}
}

// callKeyed calls with a key until there is a result.
func (l *load) callKeyed(id, chat string) {
	end := time.Now().Add(60 * time.Second)
	for try := 0; ; try++ {
		r, err := l.a.Call(context.Background(), "note", map[string]string{"id": id}, agent.Chat(chat), agent.IdempotencyKey("key "+id), agent.Timeout(20*time.Second))
		switch {
		case err == nil && r.Content == id:
			l.finished(id, chat)
			return
		case errors.Is(err, errcode.WorkerLost):
			l.lost.Add(1)
		}
		if err == nil || !errcode.From(err).Retryable || time.Now().After(end) {
			l.t.Errorf("%s: %+v, %v", id, r, err)
			return
		}
		l.again.Add(1)
		<-time.After(20 * time.Millisecond << min(try, 5))
	}
}

func (l *load) submitNote(id, chat string) {
	if r, err := l.submit("note", id, chat); err != nil || r.Content != id {
		l.t.Errorf("%s: %+v, %v", id, r, err)
		return
	}
	l.finished(id, chat)
}

// submitPay ends with a result, or as worker_lost.
func (l *load) submitPay(id, chat string) {
	_, err := l.submit("pay", id, chat)
	if err != nil && !errors.Is(err, errcode.WorkerLost) {
		l.t.Errorf("%s: %v", id, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pays[id] = err
}

// submit submits until it is stored, and waits for the one end.
func (l *load) submit(tool, id, chat string) (message.CallReply, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	defer cancel()
	for {
		_, err := l.a.Submit(ctx, tool, map[string]string{"id": id}, agent.Chat(chat), agent.CallID(id))
		if err == nil {
			break
		}
		if !errors.Is(err, errcode.Unavailable) {
			return message.CallReply{}, err
		}
	}
	r, err := l.a.Wait(ctx, id)
	again, errAgain := l.a.Wait(ctx, id)
	if again.Content != r.Content || errcode.Of(err) != errcode.Of(errAgain) {
		l.t.Errorf("%s ended twice: %+v, %v, then %+v, %v", id, r, err, again, errAgain)
	}
	return r, err
}

func (l *load) finished(id, chat string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.done[id] = chat
}

// check reads back what the calls have changed: of each that ended once, and of those that
// must not run twice at most once.
func (l *load) check() {
	l.t.Helper()
	ctx := l.t.Context()
	seen := func(what string, ids []string) {
		count := map[string]int{}
		for _, id := range ids {
			count[id]++
		}
		for id, chat := range l.done {
			if n := count[id]; n != 1 {
				l.t.Errorf("%s: %s of %s is there %d times", what, id, chat, n)
			}
			delete(count, id)
		}
		for id, err := range l.pays {
			if n := count[id]; n > 1 || n == 0 && err == nil {
				l.t.Errorf("%s: %s, which ended with %v, is there %d times", what, id, err, n)
			}
			delete(count, id)
		}
		if len(count) > 0 {
			l.t.Errorf("%s: also there: %v", what, slices.Collect(maps.Keys(count)))
		}
	}
	var states, files []string
	for n := range loadChats {
		chat := fmt.Sprint("chat-", n)
		var all struct{ Data struct{ IDs []string } }
		ref := message.ToolStateRef{ChatID: chat, Namespace: "load"}
		if err := bus.Retry(ctx, l.nc, subject.ToolState("acme", "all"), message.ToolStateAll{ToolStateRef: ref}, &all); err != nil {
			l.t.Fatal(err)
		}
		states = append(states, all.Data.IDs...)
		var f message.FileContent
		if err := bus.Retry(ctx, l.nc, subject.Files("acme", "read"), message.FileRead{Path: "load/" + chat + ".log"}, &f); err != nil {
			l.t.Fatal(err)
		}
		if f.Content != nil {
			files = append(files, strings.Fields(*f.Content)...)
		}
	}
	seen("ToolState", states)
	seen("files", files)
	l.t.Logf("%d plain calls (%d with an error), %d calls and submits that happened once (%d calls again, %d workers lost), %d that must not run again",
		l.plain.Load(), l.failed.Load(), len(l.done), l.again.Load(), l.lost.Load(), len(l.pays))
	if len(l.done) == 0 || len(l.pays) == 0 || l.plain.Load() == 0 {
		l.t.Error("nothing was called")
	}
}

// Workers are killed, stopped in the middle and frozen for longer than anybody waits: no
// accepted call is lost or happens twice.
func TestCallsSurviveTheirWorkers(t *testing.T) {
	l, fleet := startLoad(t, 3)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { l.run(ctx, loadRate) })
	for round := range loadRounds {
		<-time.After(loadPause)
		i := round % len(fleet)
		switch round % 3 {
		case 0: // a crash
			fleet[i].Kill()
			fleet[i] = l.worker()
		case 1: // longer than leases, beats and acknowledgements wait
			fleet[i].Signal(syscall.SIGSTOP)
			<-time.After(12 * time.Second)
			fleet[i].Signal(syscall.SIGCONT)
		case 2: // a goodbye
			old := fleet[i]
			fleet[i] = l.worker()
			if code := old.Stop(syscall.SIGTERM); code != 0 {
				t.Errorf("a worker ended with %d", code)
			}
		}
	}
	<-time.After(loadPause)
	cancel()
	wg.Wait()
	l.check()
}

// Workers that are replaced one after the other lose no call.
func TestARollingRestartFailsNoCall(t *testing.T) {
	l, fleet := startLoad(t, 4)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { l.run(ctx, loadRate) })
	for i, old := range fleet {
		fleet[i] = l.worker()
		l.await(5)
		if code := old.Stop(syscall.SIGTERM); code != 0 {
			t.Errorf("a worker ended with %d", code)
		}
	}
	cancel()
	wg.Wait()
	l.check()
	if l.failed.Load() != 0 || l.again.Load() != 0 {
		t.Errorf("%d calls failed, %d had to be made again", l.failed.Load(), l.again.Load())
	}
	for id, err := range l.pays {
		if err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}
}
