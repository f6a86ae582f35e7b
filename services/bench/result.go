package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"text/tabwriter"
)

// result is one entry of the results file. Ratio is Value to BaselineValue: the
// smaller the better for times (us), the larger for throughputs
// (1/s, MB/s).
type result struct {
	Name          string  `json:"name"`
	Value         float64 `json:"value"`
	Unit          string  `json:"unit"`
	Baseline      string  `json:"baseline"`
	BaselineValue float64 `json:"baselineValue"`
	Ratio         float64 `json:"ratio"`

	low, high float64 // quartiles of the rounds' ratios
	how       string
}

// samples are a row's values, one of each for every round.
type samples struct{ base, ours []float64 }

func (s *samples) add(base, ours float64) {
	s.base, s.ours = append(s.base, base), append(s.ours, ours)
}

func (s *samples) result(r row) result {
	unit := "us"
	switch {
	case r.bytes > 0:
		unit = "MB/s"
	case r.callers > 1:
		unit = "1/s"
	}
	ratios := make([]float64, len(s.ours))
	for i := range ratios {
		ratios[i] = s.ours[i] / s.base[i]
	}
	base, ours := median(s.base), median(s.ours)
	return result{
		Name: r.name, Value: rounded(ours, 1), Unit: unit, Baseline: r.baseline, BaselineValue: rounded(base, 1),
		Ratio: rounded(ours/base, 3), low: quantile(ratios, 0.25), high: quantile(ratios, 0.75), how: r.how,
	}
}

// quantile is the nearest value at or below which a share q of the values lies.
func quantile(values []float64, q float64) float64 {
	s := slices.Sorted(slices.Values(values))
	return s[max(int(math.Ceil(q*float64(len(s))))-1, 0)]
}

func rounded(v float64, digits int) float64 {
	p := math.Pow10(digits)
	return math.Round(v*p) / p
}

func printTable(out io.Writer, results []result) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "NAME\tTOOLBUS\tUNIT\tBASELINE\tNATS\tRATIO\tMIDDLE HALF\t")
	for _, r := range results {
		fmt.Fprintf(w, "%s\t%.1f\t%s\t%s\t%.1f\t%.2f\t%.2f–%.2f\t\n", r.Name, r.Value, r.Unit, r.Baseline, r.BaselineValue, r.Ratio, r.low, r.high)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprint(out, `
RATIO is TOOLBUS to NATS: of times (us) 2.00 is twice as slow, of throughputs (1/s) 0.50 is half as much.
MIDDLE HALF: of all rounds' ratios a quarter lies below it, a quarter above.

`)
	w = tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, r := range results {
		fmt.Fprintf(w, "%s\t%s\n", r.Name, r.how)
	}
	return w.Flush()
}

// writeResults replaces the file at path.
func writeResults(path string, results []result) error {
	b, err := json.MarshalIndent(results, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o644)
}
