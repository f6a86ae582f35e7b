package mailbox

import (
	"container/heap"
	"time"

	"github.com/toolbus/toolbus/contracts/message"
)

// mostHeld is how many bytes of wakes a mailbox keeps in memory; of the others it
// keeps where they stand.
const mostHeld = 1 << 20

// lines are the wakes of one mailbox that are known, in a line for each chat: only
// the first of a line may be sent. A stateless wake has a line of its own.
type lines struct {
	known map[uint64]*item // by sequence
	chats map[chat]*line
	ready bySequence // first ones that may be sent now
	later byTime     // first ones that must wait
	held  int        // bytes of the wakes kept
}

// chat is what a line is for: wakes without a chat are one chat.
type chat struct {
	id    string
	alone bool // stateless: id is the wake's, so that a repeat of it waits for its end
}

type line struct {
	items []*item // in order
}

// item is a wake that waits or is out.
type item struct {
	seq   uint64
	chat  chat
	wake  *message.Wake // nil: not kept
	size  int
	out   bool
	after time.Time // not before

	// These belong to the delivery while the item is out.
	checked bool // it has not been accepted or given up before
	tries   int  // deliveries that have failed
	missed  int  // times that it was not found
}

func newLines() *lines { return &lines{known: map[uint64]*item{}, chats: map[chat]*line{}} }

func (l *lines) len() int { return len(l.known) }

// sendable tells whether there is one to take.
func (l *lines) sendable() bool { return len(l.ready) > 0 }

// add puts a wake at the end of its line; false for one that is known. Wakes come
// in the order of the mailbox.
func (l *lines) add(w Stored) bool {
	if l.known[w.Seq] != nil {
		return false
	}
	it := &item{seq: w.Seq, chat: chat{id: w.Wake.ChatID}}
	if w.Wake.Mode == message.WakeStateless {
		it.chat = chat{id: w.Wake.WakeID, alone: true}
	}
	if l.held+w.Size <= mostHeld || len(l.known) == 0 {
		it.wake, it.size = &w.Wake, w.Size
		l.held += it.size
	}
	l.known[it.seq] = it
	c := l.chats[it.chat]
	if c == nil {
		c = &line{}
		l.chats[it.chat] = c
	}
	if c.items = append(c.items, it); len(c.items) == 1 {
		heap.Push(&l.ready, it)
	}
	return true
}

// take takes the first of those that may be sent; nil when there is none.
func (l *lines) take() *item {
	if len(l.ready) == 0 {
		return nil
	}
	it := heap.Pop(&l.ready).(*item)
	it.out = true
	return it
}

// again lets one that was taken be sent once more, not before a time.
func (l *lines) again(it *item, after time.Time) {
	it.out, it.after = false, after
	heap.Push(&l.later, it)
}

// wake makes those ready whose time has come, and returns how long the next one
// must wait.
func (l *lines) wake(now time.Time) time.Duration {
	for len(l.later) > 0 {
		if d := l.later[0].after.Sub(now); d > 0 {
			return d
		}
		heap.Push(&l.ready, heap.Pop(&l.later).(*item))
	}
	return time.Hour
}

// remove takes one that was taken out of its line; the next may be sent.
func (l *lines) remove(it *item) {
	l.drop(it)
	c := l.chats[it.chat]
	c.items[0] = nil
	if c.items = c.items[1:]; len(c.items) == 0 {
		delete(l.chats, it.chat)
		return
	}
	heap.Push(&l.ready, c.items[0])
}

func (l *lines) drop(it *item) {
	delete(l.known, it.seq)
	l.held -= it.size
}

// forget drops all that are not out.
func (l *lines) forget() {
	l.ready, l.later = nil, nil
	for id, c := range l.chats {
		for i, it := range c.items {
			if !it.out {
				l.drop(it)
				c.items[i] = nil
			}
		}
		if first := c.items[0]; first != nil { // only the first can be out
			c.items = []*item{first}
		} else {
			delete(l.chats, id)
		}
	}
}

// bySequence is a heap: the oldest first.
type bySequence []*item

func (h bySequence) Len() int           { return len(h) }
func (h bySequence) Less(i, j int) bool { return h[i].seq < h[j].seq }
func (h bySequence) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *bySequence) Push(x any)        { *h = append(*h, x.(*item)) }
func (h *bySequence) Pop() any          { return pop((*[]*item)(h)) }

// byTime is a heap: the one that may be sent first comes first.
type byTime []*item

func (h byTime) Len() int           { return len(h) }
func (h byTime) Less(i, j int) bool { return h[i].after.Before(h[j].after) }
func (h byTime) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *byTime) Push(x any)        { *h = append(*h, x.(*item)) }
func (h *byTime) Pop() any          { return pop((*[]*item)(h)) }

func pop(h *[]*item) *item {
	last := len(*h) - 1
	it := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return it
}
