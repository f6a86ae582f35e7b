package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestMedianAndQuantile(t *testing.T) {
	for _, c := range []struct {
		values          []float64
		median, low, hi float64
	}{
		{[]float64{7}, 7, 7, 7},
		{[]float64{3, 1}, 2, 1, 3},
		{[]float64{9, 1, 5}, 5, 1, 9},
		{[]float64{4, 1, 3, 2}, 2.5, 1, 3},
		{[]float64{9, 8, 7, 6, 5, 4, 3, 2, 1}, 5, 3, 7},
		{[]float64{1, 1, 1, 1, 1000}, 1, 1, 1},
	} {
		before := slices.Clone(c.values)
		if m, l, h := median(c.values), quantile(c.values, 0.25), quantile(c.values, 0.75); m != c.median || l != c.low || h != c.hi {
			t.Errorf("%v: median %v, quartiles %v and %v", c.values, m, l, h)
		}
		if !slices.Equal(before, c.values) {
			t.Errorf("%v was sorted", before)
		}
	}
	if m := median([]time.Duration{}); m != 0 {
		t.Errorf("the median of nothing is %v", m)
	}
}

func TestPlanKeepsToItsTime(t *testing.T) {
	for _, c := range []struct {
		budget time.Duration
		rows   int
	}{{time.Minute, len(rows())}, {time.Minute, 1}, {2 * time.Second, 9}, {45 * time.Second, 20}} {
		p, err := newPlan(c.budget, c.rows)
		if err != nil {
			t.Errorf("%+v: %v", c, err)
		}
		if took := p.slice * time.Duration((p.rounds+1)*2*c.rows); took > c.budget || p.slice > maxSlice || p.rounds%2 == 0 {
			t.Errorf("%+v: %+v takes %s", c, p, took)
		}
	}
	if p, err := newPlan(time.Millisecond, 9); err == nil {
		t.Errorf("a millisecond was enough: %+v", p)
	}
}

func TestStepsOfABaseline(t *testing.T) {
	if us := together([]float64{70, 45}, false); us != 115 {
		t.Errorf("70 and 45 µs are %v", us)
	}
	if n := together([]float64{60_000, 30_000}, true); n != 20_000 {
		t.Errorf("60,000 and 30,000 a second are %v", n)
	}
}

// constant is an operation that always takes as long, in no time.
func constant(d time.Duration) setup {
	return func(context.Context, *testbed) (op, error) {
		return func(context.Context, int) (time.Duration, error) { return d, nil }, nil
	}
}

// oneCaller is an operation that fails for any caller but the first.
func oneCaller(context.Context, *testbed) (op, error) {
	return func(_ context.Context, caller int) (time.Duration, error) {
		if caller > 0 {
			return 0, errors.New("the baseline has one caller")
		}
		return 1, nil
	}, nil
}

func TestMeasure(t *testing.T) {
	p := plan{rounds: 3, slice: 10 * time.Millisecond}
	results, err := p.measure(t.Context(), nil, []row{
		{name: "a.c1", baseline: "b.c1", callers: 1, base: []setup{constant(time.Millisecond), constant(3 * time.Millisecond)}, ours: constant(6 * time.Millisecond), how: "how"},
		{name: "a.c64", baseline: "b.c64", callers: 64, base: []setup{constant(1)}, ours: constant(1)},
		{name: "a.c8", baseline: "b.c1", callers: 8, alone: true, base: []setup{oneCaller}, ours: constant(1)},
		{name: "a.bytes", baseline: "b.bytes", callers: 1, bytes: 1e6, every: 2, base: []setup{constant(2 * time.Millisecond)}, ours: constant(time.Millisecond)},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := result{Name: "a.c1", Value: 6000, Unit: "us", Baseline: "b.c1", BaselineValue: 4000, Ratio: 1.5, low: 1.5, high: 1.5, how: "how"}
	if results[0] != want {
		t.Errorf("got %+v", results[0])
	}
	if r := results[3]; r.Unit != "MB/s" || r.Value != 1000 || r.BaselineValue != 500 || r.Ratio != 2 {
		t.Errorf("got %+v", r)
	}
	for _, r := range results[1:3] {
		if r.Unit != "1/s" || r.Value <= 0 || r.BaselineValue <= 0 || r.Ratio <= 0 {
			t.Errorf("got %+v", r)
		}
	}

	fails := func(context.Context, *testbed) (op, error) {
		return func(context.Context, int) (time.Duration, error) { return 0, errors.New("refused") }, nil
	}
	if _, err := p.measure(t.Context(), nil, []row{{name: "a.c64", callers: 64, base: []setup{constant(1)}, ours: fails}}); err == nil || err.Error() != "a.c64: refused" {
		t.Errorf("a failing operation: %v", err)
	}
}

func TestResultsFile(t *testing.T) {
	s := samples{}
	for _, v := range [][2]float64{{70.21, 95.14}, {60, 200}, {80, 70}} {
		s.add(v[0], v[1])
	}
	results := []result{s.result(row{name: "call.c1", baseline: "nats.request.c1", callers: 1, how: "not in the file"})}
	path := filepath.Join(t.TempDir(), "bench-results.json")
	for range 2 { // the second replaces the first
		if err := writeResults(path, results); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const want = `[
  {
    "name": "call.c1",
    "value": 95.1,
    "unit": "us",
    "baseline": "nats.request.c1",
    "baselineValue": 70.2,
    "ratio": 1.355
  }
]
`
	if string(got) != want || !json.Valid(got) {
		t.Errorf("got %s", got)
	}
	var table strings.Builder
	if err := printTable(&table, results); err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{"call.c1", "95.1", "70.2", "1.35", "0.88–3.33", "not in the file"} {
		if !strings.Contains(table.String(), s) {
			t.Errorf("no %q in\n%s", s, &table)
		}
	}
}

// Names are what other programs look for in the file.
func TestRowsAreNamedOnceAndExplained(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range rows() {
		if seen[r.name] || r.how == "" || r.baseline == "" || r.callers < 1 || r.callers > maxCallers {
			t.Errorf("%+v", r)
		}
		seen[r.name] = true
	}
	for _, name := range []string{
		"call.c1", "call.c64", "toolstate.get.c1", "toolstate.get.c64", "toolstate.set.c1", "toolstate.append.c1",
		"toolstate.contended", "files.read.1k", "files.write.1k", "files.append", "files.append.100m", "files.read.appended",
		"files.read.100m", "files.write.100m", "wake.c1",
	} {
		if !seen[name] {
			t.Errorf("no %s", name)
		}
	}
}
