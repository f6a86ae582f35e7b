package main

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"
)

// op performs an operation once and says how long it took. Callers are numbered
// from 0; one caller does one after the other.
type op func(ctx context.Context, caller int) (time.Duration, error)

// timed is an op that takes as long as f.
func timed(f func(ctx context.Context, caller int) error) op {
	return func(ctx context.Context, caller int) (time.Duration, error) {
		start := time.Now()
		err := f(ctx, caller)
		return time.Since(start), err
	}
}

// row is an operation beside its baseline. With one caller its value is the
// median time, or with bytes the throughput at the median time; with several the
// operations per second of all together.
type row struct {
	name     string
	baseline string
	callers  int
	alone    bool    // the baseline has one caller, whose operations per second count
	bytes    int64   // of content that one operation carries; its value is then MB/s
	every    int     // measured in every so many rounds: what takes long; 0: in each
	how      string  // one line: what is measured against what
	base     []setup // what the baseline does one after the other, each measured by itself
	ours     setup
}

// setup prepares an operation on a testbed.
type setup func(ctx context.Context, b *testbed) (op, error)

// together is the value of a baseline of several steps: the sum of their times,
// or the throughput of one after the other, each at the best that it reaches
// by itself.
func together(steps []float64, perSecond bool) float64 {
	sum := 0.0
	for _, v := range steps {
		if perSecond {
			v = 1 / v
		}
		sum += v
	}
	if perSecond {
		return 1 / sum
	}
	return sum
}

// plan says how the time is spent.
type plan struct {
	rounds int
	slice  time.Duration // of one operation in one round
}

const (
	rounds   = 9
	minSlice = 10 * time.Millisecond
	maxSlice = time.Second
	warmUp   = 5 // a fraction of each slice that does not count
)

// newPlan spends at most the budget on a number of rows.
func newPlan(budget time.Duration, rows int) (plan, error) {
	// One more round warms everything up and is thrown away.
	slice := min(budget/time.Duration((rounds+1)*2*rows), maxSlice).Truncate(time.Millisecond)
	if slice < minSlice {
		return plan{}, fmt.Errorf("%s is too short for %d measurements, at least %s is needed", budget, rows, minSlice*time.Duration((rounds+1)*2*rows))
	}
	return plan{rounds: rounds, slice: slice}, nil
}

// due tells whether a row is measured in a round. Round 0 warms up, and is left
// out of what takes long.
func (r row) due(round int) bool { return r.every == 0 || round%r.every == 1 }

// measureBase measures each step of a row's baseline by itself.
func (p plan) measureBase(ctx context.Context, r row, base []op) (float64, error) {
	callers := r.callers
	if r.alone {
		callers = 1
	}
	steps := make([]float64, len(base))
	for j, step := range base {
		var err error
		if steps[j], err = p.run(ctx, p.slice/time.Duration(len(steps)), callers, r.callers > 1, step); err != nil {
			return 0, fmt.Errorf("%s: %w", r.baseline, err)
		}
	}
	return together(steps, r.callers > 1), nil
}

// measure sets all rows up and measures them in turns.
func (p plan) measure(ctx context.Context, b *testbed, rows []row) ([]result, error) {
	type pair struct {
		base []op
		ours op
	}
	pairs := make([]pair, len(rows))
	for i, r := range rows { // one row's preparations do not disturb another's measurements
		var err error
		pairs[i].base = make([]op, len(r.base))
		for j, prepare := range r.base {
			if pairs[i].base[j], err = prepare(ctx, b); err != nil {
				return nil, fmt.Errorf("set up %s: %w", r.baseline, err)
			}
		}
		if pairs[i].ours, err = r.ours(ctx, b); err != nil {
			return nil, fmt.Errorf("set up %s: %w", r.name, err)
		}
	}
	taken := make([]samples, len(rows))
	for round := range p.rounds + 1 {
		for i, r := range rows {
			if !r.due(round) {
				continue
			}
			var base, ours float64
			var err error
			measureBase := func() { base, err = p.measureBase(ctx, r, pairs[i].base) }
			// In turns who is first: what one leaves to the disk the other waits for.
			first := len(taken[i].base)%2 == 0
			if first {
				measureBase()
			}
			if err == nil {
				if ours, err = p.run(ctx, p.slice, r.callers, r.callers > 1, pairs[i].ours); err != nil {
					err = fmt.Errorf("%s: %w", r.name, err)
				}
			}
			if err == nil && !first {
				measureBase()
			}
			if err != nil {
				return nil, err
			}
			if r.bytes > 0 {
				base, ours = float64(r.bytes)/base, float64(r.bytes)/ours // bytes in a microsecond are MB in a second
			}
			if round > 0 {
				taken[i].add(base, ours)
			}
		}
	}
	results := make([]result, len(rows))
	for i, r := range rows {
		results[i] = taken[i].result(r)
	}
	return results, nil
}

// run performs an operation for one slice and returns how many all callers do
// per second, or the median time in microseconds.
func (p plan) run(ctx context.Context, slice time.Duration, callers int, perSecond bool, do op) (float64, error) {
	runtime.GC() // nobody pays for the one before
	warm := time.Now().Add(slice / warmUp)
	end := warm.Add(slice - slice/warmUp)
	took := make([][]time.Duration, callers)
	errs := make([]error, callers)
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			for {
				d, err := do(ctx, c)
				if err != nil {
					errs[c] = err
					return
				}
				switch now := time.Now(); {
				case now.After(end):
					if len(took[c]) == 0 {
						took[c] = append(took[c], d) // slower than a slice is long
					}
					return
				case now.After(warm):
					took[c] = append(took[c], d)
				}
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return 0, err
		}
	}
	all := slices.Concat(took...)
	if perSecond {
		return float64(len(all)) / end.Sub(warm).Seconds(), nil
	}
	return microseconds(median(all)), nil
}

func microseconds(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// median is the middle value, the mean of the two middle ones of an even number,
// 0 of none.
func median[T ~int64 | ~float64](values []T) T {
	if len(values) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(values))
	m := len(s) / 2
	if len(s)%2 == 1 {
		return s[m]
	}
	return (s[m-1] + s[m]) / 2
}
