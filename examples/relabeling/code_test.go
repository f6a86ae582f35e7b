package relabeling

import (
	"strings"
	"testing"
	"unicode"
)

func TestClean(t *testing.T) {
	for in, want := range map[string]string{
		"00340434757211819883":               "00340434757211819883",
		"]C100340434757211819883":            "00340434757211819883",
		"]d2010401234567890110ABC":           "010401234567890110ABC",
		"]Q3123":                             "123",
		"]e0123":                             "123",
		" ]C1 0034 0434\t7572\r\n":           "003404347572",
		"\u00a0]C1\u00a08806096235386\u202f": "8806096235386",
		"]C10104012345678901\x1d10ABC\x1d":   "010401234567890110ABC",
		"\x1d]C1123":                         "123",
		"\ufeff\u200b123\u200d":              "123",
		"]C1]C1123":                          "123",
		"]123":                               "]123", // no identifier
		"]CX123":                             "]CX123",
		"12]C13":                             "12]C13", // not in front
		"]C1":                                "",
		" \t\u00a0":                          "",
		"":                                   "",
	} {
		if got := clean(in); got != want {
			t.Errorf("clean(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestCheck(t *testing.T) {
	for _, good := range []string{"00340434757211819883", "1Z999AA10123456784", "RR123456785DE", "(01)04012345678901", "A", strings.Repeat("1", maxCode)} {
		if err := check(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range []string{"", "=1+1", "@SUM(A1)", "+49", "-1", "---", "]", "größe", "12\ufffd3", strings.Repeat("1", maxCode+1)} {
		if check(bad) == nil {
			t.Errorf("%q passed", bad)
		}
	}
}

func FuzzClean(f *testing.F) {
	for _, s := range []string{"]C1123", " ]d2\x1d1 2", "\u00a0", "]C]C11", "\xff]e0", "] C 1 2"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := clean(s)
		if again := clean(got); again != got {
			t.Errorf("%q became %q, and that %q", s, got, again)
		}
		if hasIdentifier(got) {
			t.Errorf("%q keeps an identifier: %q", s, got)
		}
		if i := strings.IndexFunc(got, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }); i >= 0 {
			t.Errorf("%q keeps what cannot be seen: %q", s, got)
		}
		if check(got) == nil && (got == "" || strings.ContainsAny(got, ",;\n") && !strings.ContainsAny(s, ",;\n")) {
			t.Errorf("%q became %q", s, got)
		}
	})
}

func TestParseDirection(t *testing.T) {
	for in, want := range map[string]string{
		"DHL->DPD": "DHL->DPD", " DHL -> DPD ": "DHL->DPD", "DHL → DPD": "DHL->DPD", "DHL→DPD": "DHL->DPD", "DHL\u00a0-->\u00a0DPD": "DHL->DPD",
		"DHL => GLS24": "DHL->GLS24", "dhl –> dpd": "dhl->dpd",
		"": "", "DHL": "", "DHL DPD": "", "DHL->": "", "->DPD": "", "DHL->DPD->GLS": "", "DHL-DPD": "", "DHL Express->DPD": "",
		"DHL->dhl": "", "=A1->DPD": "", "DHL<-DPD": "", "DHL > DPD": "", strings.Repeat("A", 33) + "->DPD": "", "DHL->D\nPD": "",
	} {
		got, err := parseDirection(in)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("parseDirection(%q) = %q, %v; want %q", in, got, err, want)
		}
	}
}

func FuzzParseDirection(f *testing.F) {
	f.Add("DHL->DPD")
	f.Add("DHL → DPD")
	f.Fuzz(func(t *testing.T, s string) {
		got, err := parseDirection(s)
		if err != nil {
			return
		}
		if again, err := parseDirection(got); err != nil || again != got {
			t.Errorf("%q became %q, and that %q, %v", s, got, again, err)
		}
	})
}
