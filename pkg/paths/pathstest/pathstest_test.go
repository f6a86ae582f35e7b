package pathstest

import "testing"

// The table is as large and as free of repetition as it claims to be.
func TestTable(t *testing.T) {
	refused, taken := Refused(), Taken()
	if len(refused) < 300 || len(taken) < 200 {
		t.Errorf("only %d refused and %d taken", len(refused), len(taken))
	}
	seen := map[string]bool{}
	for _, c := range append(refused, taken...) {
		if c.Intent == "" {
			t.Errorf("%q has no intent", c.Path)
		}
		if seen[c.Path] {
			t.Errorf("%s: %q is there twice", c.Intent, c.Path)
		}
		seen[c.Path] = true
	}
}
