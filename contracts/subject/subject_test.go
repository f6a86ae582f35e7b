package subject

import (
	"errors"
	"strings"
	"testing"

	"github.com/toolbus/toolbus/contracts/errcode"
)

var badNames = []string{"", "a.b", "*", ">", "a b", " a", "a\n", "a/b", "ä", "租户", "a\x00", "..", strings.Repeat("a", 65), "a=b", "$x"}

func TestCheckName(t *testing.T) {
	for _, ok := range []string{"a", "A-b_9", "_all", "-", strings.Repeat("a", 64)} {
		if err := CheckName("x", ok); err != nil {
			t.Errorf("%q refused: %v", ok, err)
		}
	}
	for _, bad := range badNames {
		err := CheckName("agent", bad)
		var e *errcode.Error
		if !errors.As(err, &e) || e.Code != errcode.InvalidRequest || e.Details.Fields[0].Field != "agent" {
			t.Errorf("%q: got %v, want invalid_request naming the field", bad, err)
		}
	}
	if CheckTenant("_all") == nil {
		t.Error("reserved tenants must be refused")
	}
}

func TestCheckFree(t *testing.T) {
	for _, ok := range []string{"a", "Chat mit Ümläut 🙂", "a.b*>", strings.Repeat("x", 256)} {
		if err := CheckFree("chatId", ok); err != nil {
			t.Errorf("%q refused: %v", ok, err)
		}
	}
	for _, bad := range []string{"", "a\nb", "\x00", "a\u0085b", "\xff", strings.Repeat("x", 257)} {
		if !errors.Is(CheckFree("chatId", bad), errcode.InvalidRequest) {
			t.Errorf("%q accepted", bad)
		}
	}
}

func TestParse(t *testing.T) {
	a, err := ParseAgent(AgentCall("acme", "support", "addTrackingCode"))
	if err != nil || a != (Agent{FamilyAgent, "acme", "support", "call", "addTrackingCode"}) {
		t.Errorf("got %+v, %v", a, err)
	}
	if a, err = ParseAgent(AgentTools("acme", "support")); err != nil || a.Verb != VerbTools || a.ID != "" {
		t.Errorf("got %+v, %v", a, err)
	}
	if tenant, op, err := ParseTenantOp(FamilyFiles, Files("acme", "write"), false); err != nil || tenant != "acme" || op != "write" {
		t.Errorf("got %s %s %v", tenant, op, err)
	}
	if _, _, err := ParseTenantOp(FamilyRegistry, Registry("_all", "tenants"), false); err == nil {
		t.Error("reserved tenant accepted")
	}
	if _, _, err := ParseTenantOp(FamilyRegistry, Registry("_all", "tenants"), true); err != nil {
		t.Error(err)
	}
	if _, _, _, _, err := ParseStore(Store("t", "a", "tool", "get")); err != nil {
		t.Error(err)
	}
	for _, want := range []string{"support", ""} {
		s := strings.TrimSuffix(ChangesAgent("acme", want), ".")
		if tenant, agent, err := ParseChangesAgent(s); err != nil || tenant != "acme" || agent != want {
			t.Errorf("%s: got %s %s %v", s, tenant, agent, err)
		}
	}
	if _, _, err := ParseChangesAgent(ChangesTool("a", "b")); err == nil {
		t.Error("a tool's change taken for an agent's")
	}
	if tenant, agent, op, tool, err := ParseResult(Result("acme", "support", "get")); err != nil || tenant != "acme" || agent != "support" || op != "get" || tool != "" {
		t.Errorf("got %s %s %s %s %v", tenant, agent, op, tool, err)
	}
	if tenant, agent, op, tool, err := ParseResult(SubmitsConsumer("addTrackingCode")); err != nil || tenant+agent+op != "" || tool != "addTrackingCode" {
		t.Errorf("got %s %s %s %s %v", tenant, agent, op, tool, err)
	}
	for _, bad := range []string{Result("_all", "support", "get"), SubmitsConsumer("a="), SubmitsConsumer("a.b"), Store("a", "b", "c", "get")} {
		if _, _, _, _, err := ParseResult(bad); err == nil {
			t.Errorf("%s accepted", bad)
		}
	}
	if tenant, agent, call, err := ParseChangesResult(ChangesResult("acme", "support", Escape("c_1"))); err != nil || tenant != "acme" || agent != "support" || call != "c_1" {
		t.Errorf("got %s %s %s %v", tenant, agent, call, err)
	}
	for _, bad := range badNames {
		for _, s := range []string{AgentCall(bad, "a", "t"), AgentCall("t", bad, "t"), AgentCall("t", "a", bad)} {
			if _, err := ParseAgent(s); err == nil {
				t.Errorf("%q accepted", s)
			}
		}
	}
}

func FuzzEscape(f *testing.F) {
	for _, s := range []string{"chat1", "a.b", "ä", "=41", "]C1 \u00a0", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		e := Escape(s)
		if strings.ContainsAny(e, ".*> \t\r\n_/\\") {
			t.Fatalf("%q escapes to %q, not a token", s, e)
		}
		if back, err := Unescape(e); err != nil || back != s {
			t.Fatalf("%q -> %q -> %q, %v", s, e, back, err)
		}
		// Whatever Unescape takes has exactly one spelling.
		if u, err := Unescape(s); err == nil && Escape(u) != s {
			t.Fatalf("%q and %q are two spellings of %q", s, Escape(u), u)
		}
	})
}

func FuzzParseAgent(f *testing.F) {
	f.Add(AgentCall("acme", "support", "x"))
	f.Fuzz(func(t *testing.T, s string) {
		a, err := ParseAgent(s)
		if err != nil {
			return
		}
		want := join(a.Family, a.Tenant, a.Agent, a.Verb)
		if a.ID != "" {
			want += "." + a.ID
		}
		if want != s {
			t.Fatalf("%q parsed to %+v", s, a)
		}
	})
}

func FuzzParseResult(f *testing.F) {
	f.Add(Result("acme", "support", "get"))
	f.Add(SubmitsConsumer("x"))
	f.Fuzz(func(t *testing.T, s string) {
		tenant, agent, op, tool, err := ParseResult(s)
		if err != nil {
			return
		}
		want := Result(tenant, agent, op)
		if tool != "" {
			want = SubmitsConsumer(tool)
		}
		if want != s {
			t.Fatalf("%q parsed to %q %q %q %q", s, tenant, agent, op, tool)
		}
	})
}

func FuzzParseChangesResult(f *testing.F) {
	f.Add(ChangesResult("acme", "support", "c=5F1"))
	f.Fuzz(func(t *testing.T, s string) {
		tenant, agent, call, err := ParseChangesResult(s)
		if err == nil && ChangesResult(tenant, agent, Escape(call)) != s {
			t.Fatalf("%q parsed to %q %q %q", s, tenant, agent, call)
		}
	})
}
