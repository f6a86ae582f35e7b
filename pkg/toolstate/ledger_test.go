package toolstate

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"pgregory.net/rapid"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
)

var (
	noon = time.Date(2026, 5, 5, 12, 0, 0, 0, time.UTC)
	ref  = document{"n", "c"}
)

func written(sequence, before uint64) event {
	return event{Change: Change{Kind: Written, Namespace: "n", ChatID: "c", Revision: sequence, ExpiresAt: "2026-05-05T13:00:00.000Z"}, sequence: sequence, before: before}
}

func removed(kind ChangeKind, sequence, before uint64) event {
	return event{Change: Change{Kind: kind, Namespace: "n", ChatID: "c"}, sequence: sequence, before: before}
}

func found(revision uint64) message.ToolStateData {
	return message.ToolStateData{Found: true, Revision: revision, ExpiresAt: "2026-05-05T13:00:00.000Z"}
}

func TestLedger(t *testing.T) {
	type step struct {
		event event
		read  *message.ToolStateData
		at    time.Duration // after noon
		want  string
	}
	read := func(d message.ToolStateData) *message.ToolStateData { return &d }
	for name, steps := range map[string][]step{
		"in order":                            {{event: written(3, 0), want: "tell"}, {event: written(5, 3), want: "tell"}, {event: removed(Cleared, 6, 5), want: "tell"}, {event: written(9, 6), want: "tell"}},
		"twice":                               {{event: written(3, 0), want: "tell"}, {event: written(3, 0), want: "drop"}},
		"older":                               {{event: written(5, 3), want: "tell"}, {event: written(3, 0), want: "drop"}, {event: removed(Cleared, 4, 3), want: "drop"}},
		"one was missed":                      {{event: written(3, 0), want: "tell"}, {event: written(7, 5), want: "tell and a gap"}},
		"came and went unseen":                {{event: removed(Cleared, 4, 3), want: "drop"}},
		"cleared twice":                       {{event: written(3, 0), want: "tell"}, {event: removed(Cleared, 4, 3), want: "tell"}, {event: removed(Cleared, 5, 4), want: "drop"}},
		"expired before it began":             {{event: removed(Expired, 4, 3), want: "drop"}},
		"expired":                             {{event: written(3, 0), want: "tell"}, {event: removed(Expired, 4, 3), want: "tell"}},
		"a read that says nothing":            {{event: written(3, 0), want: "tell"}, {read: read(found(3)), want: ""}},
		"a read that was faster":              {{read: read(found(3)), want: "written"}, {event: written(3, 0), want: "drop"}, {event: written(4, 3), want: "tell"}},
		"a stream that began afresh":          {{event: written(30, 0), want: "tell"}, {read: read(found(2)), want: "written"}, {event: written(3, 2), want: "tell"}},
		"nothing, as before":                  {{read: &message.ToolStateData{}, want: ""}},
		"found cleared":                       {{event: written(3, 0), want: "tell"}, {read: &message.ToolStateData{}, at: 59 * time.Minute, want: "cleared"}},
		"found expired":                       {{event: written(3, 0), want: "tell"}, {read: &message.ToolStateData{}, at: time.Hour, want: "expired"}},
		"found expired by clocks that differ": {{event: written(3, 0), want: "tell"}, {read: &message.ToolStateData{}, at: time.Hour - time.Second, want: "expired"}},
		"events of what a read found gone": {
			{event: written(3, 0), want: "tell"}, {read: &message.ToolStateData{}, want: "cleared"},
			{event: written(4, 3), want: "read"}, {read: &message.ToolStateData{}, want: ""},
			{event: removed(Cleared, 5, 4), want: "drop"},
			{event: written(6, 5), want: "read"}, {read: read(found(7)), want: "written"},
			{event: written(7, 6), want: "drop"}, {event: removed(Cleared, 8, 7), want: "tell"},
		},
		"long after a read found it gone": {
			{event: written(3, 0), want: "tell"}, {read: &message.ToolStateData{}, want: "cleared"},
			{event: written(9, 0), at: lateEvents, want: "tell"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger()
			for i, s := range steps {
				var got string
				if s.read != nil {
					kind, err := l.read(ref, *s.read, noon.Add(s.at))
					if err != nil {
						t.Fatal(err)
					}
					got = string(kind)
				} else {
					v, gap, err := l.event(s.event, noon.Add(s.at))
					if err != nil {
						t.Fatal(err)
					}
					if got = []string{"drop", "tell", "read"}[v]; gap {
						got += " and a gap"
					}
				}
				if got != s.want {
					t.Fatalf("step %d: %s, want %s", i, got, s.want)
				}
			}
		})
	}
}

// Whatever is lost or late: states are told in their order, none twice, and
// after a comparison the last one told is the one that stands.
func TestLedgerKeepsTheOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := newLedger()
		history := []event{removed(Cleared, 0, 0)} // what stood, in order; nothing at first
		var underWay []event
		told := 0 // index into history
		say := func(at int) {
			if at <= told {
				t.Fatalf("state %d told after %d of %v", at, told, history)
			}
			told = at
		}
		look := func() {
			last := len(history) - 1
			d := message.ToolStateData{}
			if e := history[last]; e.Kind == Written {
				d = found(e.sequence)
			}
			kind, err := l.read(ref, d, noon)
			if err != nil {
				t.Fatal(err)
			}
			if kind != "" {
				say(last)
			} else if stands := history[last].Kind; (stands == Written) != (history[told].Kind == Written) {
				t.Fatalf("a read told nothing, though %d was told and %d stands of %v", told, last, history)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"write": func(t *rapid.T) {
				last := history[len(history)-1]
				e := written(last.sequence+rapid.Uint64Range(1, 3).Draw(t, "step"), last.sequence)
				if last.Kind == Written && rapid.Bool().Draw(t, "clear") {
					e = removed(Cleared, e.sequence, e.before)
				}
				history = append(history, e)
				if rapid.IntRange(0, 3).Draw(t, "lost") > 0 {
					underWay = append(underWay, e)
				}
			},
			"deliver": func(t *rapid.T) {
				if len(underWay) == 0 {
					return
				}
				e := underWay[0]
				underWay = underWay[1:]
				v, _, err := l.event(e, noon)
				if err != nil {
					t.Fatal(err)
				}
				switch v {
				case tell:
					for i, h := range history {
						if i > 0 && h.sequence == e.sequence {
							say(i)
						}
					}
				case read:
					look()
				}
			},
			"compare": func(*rapid.T) { look() },
		})
		look()
		if last := history[len(history)-1]; (last.Kind == Written) != (l.live[ref].revision == last.sequence && last.sequence > 0) {
			t.Fatalf("%+v is known, %+v stands", l.live[ref], last)
		}
	})
}

func TestLedgerDoubts(t *testing.T) {
	l := newLedger()
	entries := []message.ToolStateEntry{{Namespace: "n", ChatID: "same", Revision: 1}, {Namespace: "n", ChatID: "changed", Revision: 2}, {Namespace: "n", ChatID: "gone", Revision: 3}}
	if err := l.baseline(entries); err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	for _, d := range l.doubts([]message.ToolStateEntry{entries[0], {Namespace: "n", ChatID: "changed", Revision: 9}, {Namespace: "n", ChatID: "new", Revision: 8}}) {
		got[d.chat] = true
	}
	if fmt.Sprint(got) != "map[changed:true gone:true new:true]" {
		t.Errorf("%v", got)
	}
}

func TestLedgerIsBounded(t *testing.T) {
	l := newLedger()
	e := written(1, 0)
	for i := range MaxWatched {
		e.ChatID = fmt.Sprint(i)
		if v, _, err := l.event(e, noon); v != tell || err != nil {
			t.Fatal(v, err)
		}
	}
	e.ChatID = "one more"
	_, _, err := l.event(e, noon)
	if !errors.Is(err, errcode.TooLarge) || *errcode.From(err).Details.Limit != MaxWatched {
		t.Errorf("%v", err)
	}
	e = removed(Cleared, 2, 1)
	e.ChatID = "0"
	if v, _, err := l.event(e, noon); v != tell || err != nil {
		t.Fatal(v, err)
	}
	e = written(3, 0)
	if v, _, err := l.event(e, noon); v != tell || err != nil {
		t.Errorf("after one went: %v, %v", v, err)
	}
	for i := range 10 {
		if _, err := l.read(document{"n", fmt.Sprint(i)}, message.ToolStateData{}, noon); err != nil {
			t.Fatal(err)
		}
	}
	if l.forget(noon.Add(lateEvents)); len(l.gone) != 0 {
		t.Errorf("%d are remembered for ever", len(l.gone))
	}
}

func FuzzParseEvent(f *testing.F) {
	f.Add("toolbus.v1.changes.toolstate.acme.n.chat=201", "7", "3", "", "", []byte(`{"expires_at":"2026-05-05T13:00:00Z","data":{"k":1}}`))
	f.Add("toolbus.v1.changes.toolstate.acme.n.c", "7", "", "DEL", "Remove", []byte{})
	f.Add("toolbus.v1.changes.toolstate.acme.n.c", "7", "x", "", "MaxAge", []byte{})
	f.Add("a.b", "", "", "", "", []byte("{"))
	f.Fuzz(func(t *testing.T, to, sequence, before, operation, reason string, body []byte) {
		m := nats.NewMsg(to)
		m.Data = body
		for k, v := range map[string]string{headerSequence: sequence, headerBefore: before, "KV-Operation": operation, "Nats-Marker-Reason": reason} {
			if v != "" {
				m.Header.Set(k, v)
			}
		}
		e, ok := parseEvent(m)
		if !ok {
			return
		}
		if gone := operation != "" || reason != ""; gone == (e.Kind == Written) || gone && (e.Data != nil || e.Revision != 0) || !gone && e.Revision != e.sequence {
			t.Fatalf("%+v of %q %q", e, operation, reason)
		}
	})
}
