package mailbox

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/toolbus/toolbus/contracts/message"
)

func wakeOf(seq uint64, chat string, size int) Stored {
	return Stored{Seq: seq, Size: size, Wake: message.Wake{WakeID: fmt.Sprint("w", seq), Mode: message.WakeChat, ChatID: chat}}
}

// Whatever happens to them, wakes of a chat leave in order, one is out at a time,
// and none is left over.
func TestLinesKeepTheOrderOfChats(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		l := newLines()
		now := time.Unix(0, 0)
		var out []*item
		last := map[string]uint64{}
		sent, n := 0, uint64(1)
		const all = 200
		read := func() {
			for range r.IntN(20) {
				if n <= all {
					l.add(wakeOf(n, fmt.Sprint("c", r.IntN(5)), r.IntN(mostHeld/2)))
					n++
				}
			}
		}
		for step := 0; sent < all; step++ {
			if step > 100_000 {
				t.Fatalf("seed %d: %d of %d left the lines", seed, sent, all)
			}
			read()
			now = now.Add(time.Duration(r.IntN(1000)) * time.Millisecond)
			l.wake(now)
			if it := l.take(); it != nil {
				for _, o := range out {
					if o.chat == it.chat {
						t.Fatalf("seed %d: two of chat %s are out", seed, it.chat.id)
					}
				}
				if it.after.After(now) {
					t.Fatalf("seed %d: sent too early", seed)
				}
				out = append(out, it)
			}
			if len(out) == 0 || r.IntN(3) == 0 {
				continue
			}
			i := r.IntN(len(out))
			it := out[i]
			out = append(out[:i], out[i+1:]...)
			if r.IntN(2) == 0 {
				l.again(it, now.Add(time.Duration(r.IntN(5000))*time.Millisecond))
				continue
			}
			if it.seq < last[it.chat.id] {
				t.Fatalf("seed %d: chat %s: %d after %d", seed, it.chat.id, it.seq, last[it.chat.id])
			}
			last[it.chat.id] = it.seq
			l.remove(it)
			sent++
		}
		if l.len() != 0 || l.held != 0 || len(l.chats) != 0 || l.sendable() || len(l.later) != 0 {
			t.Fatalf("seed %d: left over: %+v", seed, l)
		}
	}
}

// What is far behind in a mailbox is known by its place only.
func TestLinesKeepLittleInMemory(t *testing.T) {
	l := newLines()
	for seq := range uint64(1000) {
		l.add(wakeOf(seq+1, "c", mostHeld/4))
	}
	if l.held > mostHeld || l.len() != 1000 || l.known[1].wake == nil || l.known[1000].wake != nil {
		t.Errorf("%d bytes of %d wakes", l.held, l.len())
	}
	if l.add(wakeOf(1000, "c", 1)) {
		t.Error("one twice")
	}
	// One that is larger than all room is kept when it is alone.
	l = newLines()
	if l.add(wakeOf(1, "c", 2*mostHeld)); l.known[1].wake == nil {
		t.Error("not kept")
	}
}

// A parked mailbox keeps what is out, and nothing else.
func TestLinesForget(t *testing.T) {
	l := newLines()
	for seq := range uint64(6) {
		l.add(wakeOf(seq+1, fmt.Sprint("c", seq%2), 10))
	}
	it := l.take()
	l.forget()
	if l.len() != 1 || l.held != 10 || l.sendable() || len(l.chats) != 1 {
		t.Errorf("%+v", l)
	}
	for seq := range uint64(6) { // read again
		l.add(wakeOf(seq+1, fmt.Sprint("c", seq%2), 10))
	}
	if other := l.take(); other.seq != 2 || l.take() != nil {
		t.Errorf("sent %d, though one of each chat is out", other.seq)
	}
	l.remove(it)
	if next := l.take(); next.seq != 3 {
		t.Errorf("next is %d", next.seq)
	}
}

// A stateless wake waits for nothing but its own repeat.
func TestStatelessWakesAreAlone(t *testing.T) {
	l := newLines()
	for seq, id := range []string{"a", "b", "a"} {
		w := wakeOf(uint64(seq+1), "same", 1)
		w.Wake.Mode, w.Wake.WakeID = message.WakeStateless, id
		l.add(w)
	}
	if a, b := l.take(), l.take(); a.seq != 1 || b.seq != 2 || l.take() != nil {
		t.Error("the repeat is out beside the first")
	}
}
