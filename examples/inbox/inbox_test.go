package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/examples/inbox"
	"github.com/toolbus/toolbus/pkg/tool/tooltest"
)

const file = "inbox.txt"

type story struct {
	t   *testing.T
	env *tooltest.Env
}

func begin(t *testing.T) story { return story{t, tooltest.New(t, inbox.Tools()...)} }

func (s story) add(text string) {
	s.t.Helper()
	if _, err := s.env.Files().Append(s.t.Context(), file, []byte(text)); err != nil {
		s.t.Fatal(err)
	}
}

func (s story) replace(text string) {
	s.t.Helper()
	if _, err := s.env.Files().Write(s.t.Context(), file, []byte(text)); err != nil {
		s.t.Fatal(err)
	}
}

func (s story) tick(opts ...tooltest.Option) tooltest.JobOutcome {
	s.t.Helper()
	out, err := s.env.RunJob(s.t.Context(), "readInbox", "inbox_new_lines", opts...)
	if err != nil {
		s.t.Fatal(err)
	}
	return out
}

// wakes checks what a tick wakes the agent with; "" for not at all.
func (s story) wakes(want string, opts ...tooltest.Option) tooltest.JobOutcome {
	s.t.Helper()
	out := s.tick(opts...)
	if out.Message != want || out.Woke() != (want != "") {
		s.t.Errorf("got %s %q, want %q", out.Action, out.Message, want)
	}
	return out
}

func (s story) offset() string {
	s.t.Helper()
	v, _, err := s.env.Store(tooltest.DefaultAgent, "readInbox").Get(s.t.Context(), "inbox_offset")
	if err != nil {
		s.t.Fatal(err)
	}
	return v
}

func TestNewLinesWakeOnce(t *testing.T) {
	s := begin(t)
	s.wakes("") // no file
	s.replace("")
	s.wakes("") // nothing in it
	s.add("one\ntwo\nthree\n")
	out := s.wakes("3 new lines:\n- one\n- two\n- three")
	if out.Action != message.ActionWake || out.Summary != "3 new lines" || s.offset() != "14" {
		t.Errorf("got %+v, offset %s", out, s.offset())
	}
	s.wakes("")
	s.add("four")
	s.wakes("") // not complete yet
	s.add(" and a half\r\n\n  \nfive\nsi")
	s.wakes("2 new lines:\n- four and a half\n- five")
	s.add("x\n")
	s.wakes("1 new line:\n- six")
	s.add("\n \n")
	if out := s.wakes(""); len(out.Writes) == 0 {
		t.Error("blank lines are read again and again")
	}
	s.wakes("")
}

func TestALostOutcomeIsToldAgain(t *testing.T) {
	s := begin(t)
	s.add("one\n")
	s.wakes("1 new line:\n- one", tooltest.OutcomeLost())
	if s.offset() != "" {
		t.Fatal("the offset ran ahead of the wake")
	}
	s.wakes("1 new line:\n- one", tooltest.Attempt(2))
	s.wakes("")
}

func TestAnotherFileIsReadFromItsStart(t *testing.T) {
	long := strings.Repeat("a line of some length\n", 40)
	for name, c := range map[string]struct{ then, want string }{
		"shorter":              {"new\n", "1 new line:\n- new"},
		"empty":                {"", ""},
		"empty, then longer":   {"", ""},
		"shorter, no newline":  {"new", ""},
		"of the same length":   {strings.ToUpper(long), "40 new lines"},
		"longer":               {strings.ToUpper(long) + "x\n", "41 new lines"},
		"other at the end":     {long[:len(long)-2] + "!\n", "40 new lines"},
		"longer, no newline":   {strings.Repeat("x", 2*len(long)), ""},
		"the same, and longer": {long + "more\n", "1 new line:\n- more"},
		"the very same":        {long, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := begin(t)
			s.add(long)
			s.tick()
			s.replace(c.then)
			if out := s.tick(); !strings.HasPrefix(out.Message, c.want) || out.Woke() != (c.want != "") {
				t.Errorf("got %q, want %q", out.Message, c.want)
			}
			s.add("\nafter\n")
			if out := s.tick(); !strings.Contains(out.Message, "- after") {
				t.Errorf("afterwards: %q", out.Message)
			}
			s.wakes("")
		})
	}
	t.Run("deleted and made anew", func(t *testing.T) {
		s := begin(t)
		s.add("one\n")
		s.tick()
		if _, err := s.env.Files().Delete(t.Context(), file); err != nil {
			t.Fatal(err)
		}
		s.wakes("")
		s.add("one\n")
		s.wakes("1 new line:\n- one")
	})
	t.Run("another path", func(t *testing.T) {
		s := begin(t)
		s.add("one\n")
		s.tick()
		if _, err := s.env.Files().Write(t.Context(), "b.txt", []byte("one\n")); err != nil {
			t.Fatal(err)
		}
		s.wakes("1 new line:\n- one", tooltest.Settings(map[string]string{"path": "b.txt"}))
	})
	t.Run("an unreadable offset", func(t *testing.T) {
		s := begin(t)
		s.add("one\n")
		for _, v := range []string{"x", "-1", "1e3", ""} {
			if err := s.env.Store(tooltest.DefaultAgent, "readInbox").Set(t.Context(), "inbox_offset", v); err != nil {
				t.Fatal(err)
			}
			s.wakes("1 new line:\n- one", tooltest.OutcomeLost())
		}
	})
}

func TestAHugeFileIsReadInBoundedSteps(t *testing.T) {
	s := begin(t)
	const n = 50_000
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "line %d\n", i)
	}
	s.add(b.String())
	told, ticks := 0, 0
	for {
		out := s.tick()
		if !out.Woke() {
			break
		}
		if ticks++; len(out.Message) > 64<<10 {
			t.Fatalf("a wake of %d bytes", len(out.Message))
		}
		k, err := strconv.Atoi(strings.Fields(out.Message)[0])
		if err != nil || !strings.Contains(out.Message, fmt.Sprintf("- line %d\n", told)) {
			t.Fatalf("after %d lines: %q", told, out.Message[:80])
		}
		told += k
	}
	if told != n || ticks < 5 {
		t.Errorf("%d lines in %d ticks", told, ticks)
	}

	s.add(strings.Repeat("ä", 100_000) + "\nend\n") // one line longer than a step
	var all strings.Builder
	for {
		out := s.tick()
		if !out.Woke() {
			break
		}
		all.WriteString(out.Message + "\n")
	}
	if got := all.String(); !strings.Contains(got, "…") || !strings.HasSuffix(got, "- end\n") || strings.Contains(got, "\uFFFD") {
		t.Errorf("got %.300q", got)
	}
}

func TestOddBytes(t *testing.T) {
	s := begin(t)
	s.add("a\xff\xfeb\nnul\x00\n")
	out := s.tick()
	if !utf8.ValidString(out.Message) || !strings.HasPrefix(out.Message, "2 new lines:\n- a\uFFFDb") {
		t.Errorf("got %q", out.Message)
	}
	s.add(strings.Repeat("\xff", 200_000))
	for range 10 {
		s.tick()
	}
	s.add("\nend\n")
	for range 10 {
		if out = s.tick(); strings.HasSuffix(out.Message, "- end") {
			return
		}
	}
	t.Errorf("stuck at %q", out.Message)
}

// However a file grows, and whichever outcomes are lost, each line is told once
// and in order.
func TestEachLineIsToldOnceInOrder(t *testing.T) {
	for seed := range uint64(50) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		s := begin(t)
		var want, got []string
		rest := ""
		for range 40 {
			switch rnd.IntN(3) {
			case 0:
				for range rnd.IntN(3) {
					want = append(want, fmt.Sprintf("line %d x%s", len(want), strings.Repeat("x", rnd.IntN(150))))
					rest += want[len(want)-1] + "\n"
				}
			case 1: // some of it arrives, maybe within a line
				n := rnd.IntN(len(rest) + 1)
				s.add(rest[:n])
				rest = rest[n:]
			case 2:
				lost := rnd.IntN(3) == 0
				var opts []tooltest.Option
				if lost {
					opts = append(opts, tooltest.OutcomeLost())
				}
				if out := s.tick(opts...); out.Woke() && !lost {
					got = append(got, strings.Split(out.Message, "\n- ")[1:]...)
				}
			}
		}
		s.add(rest)
		for out := s.tick(); out.Woke(); out = s.tick() {
			got = append(got, strings.Split(out.Message, "\n- ")[1:]...)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("seed %d: told %d lines, want %d", seed, len(got), len(want))
		}
	}
}

func TestReadInbox(t *testing.T) {
	s := begin(t)
	read := func(args any, want string) {
		t.Helper()
		res, err := s.env.Call(t.Context(), "readInbox", args)
		if err != nil || res.Content+res.ErrorMessage != want {
			t.Errorf("got %+v, %v; want %q", res, err, want)
		}
	}
	read(nil, "The inbox is empty.")
	for i := range 30_000 {
		if i%10_000 == 0 {
			s.add(strings.Repeat(fmt.Sprintf("old %d\n", i), 10_000))
		}
	}
	s.add("one\n100%d\nthree")
	read(map[string]int{"count": 3}, "one\n100%d\nthree")
	read(map[string]int{"count": 101}, "count must be from 1 to 100")
	if res, err := s.env.Call(t.Context(), "readInbox", nil); err != nil || strings.Count(res.Content, "\n") != 9 {
		t.Errorf("by default ten: %q, %v", res.Content, err)
	}
}

func TestBadSettings(t *testing.T) {
	s := begin(t)
	for _, v := range []any{map[string]int{"path": 1}, map[string]string{"path": "../x"}, map[string]string{"path": ""}} {
		if _, err := s.env.RunJob(t.Context(), "readInbox", "inbox_new_lines", tooltest.Settings(v)); !errors.Is(err, errcode.InvalidRequest) {
			t.Errorf("%v: got %v", v, err)
		}
	}
}

func TestConformance(t *testing.T) {
	tooltest.Conformance(t, inbox.ReadInbox, tooltest.GivenEnv(func(e *tooltest.Env) {
		if _, err := e.Files().Append(context.Background(), file, []byte("one\ntwo\n")); err != nil {
			t.Error(err)
		}
	}))
}
