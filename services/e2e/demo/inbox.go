package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/agent"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/pkg/files"
	"github.com/toolbus/toolbus/pkg/store"
	"github.com/toolbus/toolbus/services/e2e/proc"
)

const (
	inboxFile  = "inbox.txt"
	inboxJob   = "inbox-watch"
	inboxAgent = "support"
)

// inbox is a background job: it looks every second, and costs nothing until
// there is something to tell.
func (d *demo) inbox() {
	d.chapter("6. A job watches the inbox for free, and wakes the agent when something happened")
	l := d.listen(inboxAgent)
	defer l.leave()
	d.say("a process says that it is the agent %s, and waits to be woken", inboxAgent)
	o := d.toolbus("get", "jobs", "-t", tenant, "-a", inboxAgent)
	d.check(o.Code == 0 && strings.Contains(o.Stdout, inboxJob), "the agent has the job %s, every second", inboxJob)
	d.waitRuns(2)
	d.toolbus("job", "history", inboxJob, "-t", tenant, "-a", inboxAgent)
	d.check(len(l.heard()) == 0, "the job ran and found nothing: the agent is not woken")

	o = d.appendLines("The first parcel is late.", "Who signs for the second?", "Thanks for the third!")
	d.check(o.Code == 0, "three lines come into the inbox")
	d.waitFor("a wake", func() bool { return len(l.heard()) > 0 })
	d.waitRuns(2)
	woken := l.heard()
	d.show(woken)
	d.check(len(woken) == 1, "they wake the agent once")
	d.check(has(woken[0].Message, "3 new lines", "The first parcel is late.", "Who signs for the second?", "Thanks for the third!"),
		"the wake names all three")
	d.checkOffset()

	d.appendLines("A fourth line, and then the power fails.")
	d.kill()
	d.waitFor("the wake for the fourth line", func() bool { return len(l.heard()) > 1 })
	d.waitRuns(2)
	woken = l.heard()
	d.show(woken[1:])
	d.check(len(woken) == 2 && has(woken[1].Message, "1 new line", "A fourth line"), "the line wakes the agent once, in spite of the crash")
	d.check(woken[0].WakeID != woken[1].WakeID, "no wake came twice")
	d.checkOffset()
	d.absent(l)
}

// absent is an agent that is not there when it is woken.
func (d *demo) absent(l *listener) {
	l.leave()
	d.say("the agent's process ends")
	var sent []string
	for _, text := range []string{"one", "two", "three"} {
		o := d.toolbus("wake", "send", text, "-t", tenant, "-a", inboxAgent, "-c", "chat-1")
		d.check(o.Code == 0, "a wake is sent to the agent that is not there")
		sent = append(sent, strings.TrimSpace(o.Stdout))
	}
	d.kill()
	o := d.toolbus("get", "wakes", "-t", tenant, "-a", inboxAgent)
	d.check(o.Code == 0 && has(o.Stdout, sent...), "after the crash all three still wait")
	l = d.listen(inboxAgent)
	defer l.leave()
	d.waitFor("the wakes that waited", func() bool { return len(l.heard()) >= len(sent) })
	d.waitFor("the mailbox to be empty", func() bool { return len(d.pending()) == 0 })
	woken := l.heard()
	d.show(woken)
	ids := make([]string, len(woken))
	for i, w := range woken {
		ids[i] = w.WakeID
	}
	d.check(slices.Equal(ids, sent), "the agent is back and gets them, each once and in order")
}

func has(text string, parts ...string) bool {
	return !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(text, p) })
}

func (d *demo) show(wakes []agent.Wake) {
	for _, w := range wakes {
		d.say("woken by %s %s:\n%s", w.Source.Kind, w.Source.ID, w.Message)
	}
}

func (d *demo) appendLines(lines ...string) proc.Result {
	return d.pipe(strings.Join(lines, "\n")+"\n", "files", "put", inboxFile, "--mode", message.ModeAppend, "-t", tenant)
}

// kill ends toolbus up and starts it again.
func (d *demo) kill() {
	d.say("kill -9 of toolbus up")
	d.up.Kill()
	d.startUp(strings.TrimPrefix(d.url, "nats://"))
	d.connect()
}

// checkOffset compares what the job has told with what there is to tell.
func (d *demo) checkOffset() {
	info, _, err := files.New(d.nc, tenant).Stat(d.ctx, inboxFile)
	d.must(err, "stat the inbox")
	offset, _, err := store.New(d.nc, tenant, inboxAgent, "readInbox").Get(d.ctx, "inbox_offset")
	d.must(err, "read the job's offset")
	d.check(offset == strconv.FormatInt(info.Size, 10), "the job's stored offset is the file's size, %d", info.Size)
}

// waitRuns waits until so many runs of the job have ended after the one that
// may be under way now. Two, and the last has seen all that was there before.
func (d *demo) waitRuns(n int) {
	before := map[string]bool{}
	for _, s := range d.history() {
		before[s.TickID] = true
	}
	d.waitFor(fmt.Sprintf("%d runs of %s", n, inboxJob), func() bool {
		ran := 0
		for _, s := range d.history() {
			if s.Outcome == message.SlotRan && !before[s.TickID] {
				ran++
			}
		}
		return ran >= n
	})
}

// history is how the job's last slots ended, the newest first.
func (d *demo) history() []message.SlotEntry {
	var r message.SchedulerHistory
	ref := message.SchedulerEntryRef{AgentID: inboxAgent, EntryID: inboxJob}
	d.must(bus.Retry(d.ctx, d.nc, subject.Scheduler(tenant, "history"), ref, &r), "read the job's history")
	return r.Slots
}

// pending are the wakes that the agent has not accepted.
func (d *demo) pending() []message.PendingWake {
	var r message.SchedulerWakeList
	d.must(bus.Retry(d.ctx, d.nc, subject.Scheduler(tenant, "wakes"), message.SchedulerWakes{AgentID: inboxAgent}, &r), "list the wakes")
	return r.Wakes
}

// listener is an agent's process that accepts every wake. It stays connected
// when toolbus up is killed, and says that it is ready when that is back.
type listener struct {
	d     *demo
	nc    *nats.Conn
	agent *agent.Client
	wakes *agent.Wakes

	mu  sync.Mutex
	all []agent.Wake
}

func (d *demo) listen(name string) *listener {
	l := &listener{d: d}
	var err error
	l.nc, err = bus.Connect(d.ctx, bus.Config{Server: d.url, Wait: 5 * time.Second}, "demo-agent")
	d.must(err, "connect the agent")
	l.agent, err = agent.New(l.nc, tenant, name)
	d.must(err, "agent "+name)
	l.wakes, err = l.agent.Wakes(d.ctx, func(_ context.Context, w *agent.Wake) error {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.all = append(l.all, *w)
		return nil
	})
	d.must(err, "listen for wakes")
	return l
}

// heard are the wakes accepted so far.
func (l *listener) heard() []agent.Wake {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.all)
}

// leave ends the agent's process. Safe to call twice.
func (l *listener) leave() {
	if l.nc.IsClosed() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(l.d.ctx), 5*time.Second)
	defer cancel()
	if err := l.wakes.Stop(ctx); err != nil {
		l.d.check(false, "the agent stops listening: %v", err)
	}
	if err := l.agent.Close(); err != nil {
		l.d.check(false, "the agent's client closes: %v", err)
	}
	l.nc.Close()
}
