package envtest

import (
	"errors"
	"sync"
	"testing"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/pkg/tool"
)

var fileChecks = []check{
	{"files/move", filesMove},
	{"files/moves at once", filesMovesAtOnce},
	{"files/refuses", filesRefuse},
}

func content(t *testing.T, f tool.Files, path string) string {
	t.Helper()
	b, _, exists, err := f.Read(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	if !exists {
		return "(none)"
	}
	return string(b)
}

func filesMove(t *testing.T, h Harness) {
	ctx, f := t.Context(), h.Files()
	old, err := f.Write(ctx, "move/a", []byte("one\n"))
	if err != nil {
		t.Fatal(err)
	}
	info, err := f.Move(ctx, "move/a", "move/to/b")
	if err != nil || info.Path != "move/to/b" || info.Size != 4 || info.Revision <= old.Revision || info.Modified.IsZero() {
		t.Errorf("moved: %+v, %v", info, err)
	}
	if stat, exists, err := f.Stat(ctx, "move/to/b"); !exists || err != nil || stat.Size != 4 || stat.Revision != info.Revision {
		t.Errorf("stat: %+v, %v, %v", stat, exists, err)
	}
	if _, err := f.Append(ctx, "move/to/b", []byte("two\n")); err != nil {
		t.Error(err)
	}
	if _, err := f.Create(ctx, "move/a", []byte("new\n")); err != nil {
		t.Error(err)
	}
	if _, err := f.Move(ctx, "move/a", "move/to/b"); !errors.Is(err, errcode.Conflict) {
		t.Errorf("onto a file: %v", err)
	}
	for path, want := range map[string]string{"move/a": "new\n", "move/to/b": "one\ntwo\n"} {
		if got := content(t, f, path); got != want {
			t.Errorf("%s is %q, want %q", path, got, want)
		}
	}
	if l, err := f.List(ctx, "move/"); err != nil || len(l) != 2 || l[0].Path != "move/a" || l[1].Path != "move/to/b" {
		t.Errorf("listed: %+v, %v", l, err)
	}
}

// Of many that move a file one wins.
func filesMovesAtOnce(t *testing.T, h Harness) {
	ctx, f := t.Context(), h.Files()
	if _, err := f.Write(ctx, "race/from", []byte("x")); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var won []string
	for _, to := range []string{"race/a", "race/b", "race/c", "race/d"} {
		wg.Go(func() {
			_, err := f.Move(ctx, "race/from", to)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				won = append(won, to)
			case !errors.Is(err, errcode.NotFound):
				t.Error(err)
			}
		})
	}
	wg.Wait()
	l, err := f.List(ctx, "race/")
	if err != nil || len(won) != 1 || len(l) != 1 || l[0].Path != won[0] {
		t.Errorf("%q won, listed are %+v: %v", won, l, err)
	}
}

func filesRefuse(t *testing.T, h Harness) {
	ctx, f := t.Context(), h.Files()
	move := func(from, to string) error { _, err := f.Move(ctx, from, to); return err }
	refused(t, []refusal{
		{"move nothing", move("refuse/none", "refuse/to"), errcode.NotFound, "", 0},
		{"move from nowhere", move("", "refuse/to"), errcode.InvalidRequest, "path", 0},
		{"move out", move("refuse/a", "../a"), errcode.InvalidRequest, "to", 0},
		{"move to itself", move("refuse/a", "refuse/a"), errcode.InvalidRequest, "to", 0},
	})
}
