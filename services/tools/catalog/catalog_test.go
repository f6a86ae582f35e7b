package catalog

import (
	"errors"
	"testing"

	"github.com/toolbus/toolbus/contracts/errcode"
)

func TestSelect(t *testing.T) {
	seen := map[string]bool{}
	for _, tl := range All() {
		d := tl.Definition()
		if err := d.Validate(); err != nil {
			t.Errorf("%s: %v", d.Name, err)
		}
		if seen[d.Name] {
			t.Errorf("%s is listed twice", d.Name)
		}
		seen[d.Name] = true
	}
	for _, want := range []string{"writeFile", "readFile"} {
		got, err := Select([]string{want})
		if err != nil || len(got) != 1 || got[0].Definition().Name != want || !got[0].Definition().Internal {
			t.Errorf("%s: %v, %v", want, got, err)
		}
	}
	if all, err := Select(nil); err != nil || len(all) != len(seen) {
		t.Errorf("got %d tools, %v", len(all), err)
	}
	if _, err := Select([]string{"nope"}); !errors.Is(err, errcode.NotFound) {
		t.Errorf("got %v", err)
	}
}
