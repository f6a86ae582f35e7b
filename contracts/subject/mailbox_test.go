package subject_test

import (
	"testing"

	"github.com/toolbus/toolbus/contracts/subject"
)

func TestMailboxSubjects(t *testing.T) {
	parsers := map[string]func(string) (string, string, error){
		subject.Mailbox("acme", "dead"):        subject.ParseMailbox,
		subject.DeadMailbox("acme", "dead"):    subject.ParseDeadMailbox,
		subject.ChangesMailbox("acme", "dead"): subject.ParseChangesMailbox,
	}
	for s, mine := range parsers {
		for of, parse := range parsers {
			tenant, agent, err := parse(s)
			if ok := err == nil; ok != (s == of) || ok && (tenant != "acme" || agent != "dead") {
				t.Errorf("%s as %s: %q %q %v", s, of, tenant, agent, err)
			}
		}
		for _, bad := range []string{"", s + ".x", "x." + s, s[:len(s)-1] + "é"} {
			if _, _, err := mine(bad); err == nil {
				t.Errorf("%q is taken for a %s", bad, s)
			}
		}
	}
	if _, _, err := subject.ParseMailbox(subject.Mailbox("_all", "a")); err == nil {
		t.Error("a reserved tenant has a mailbox")
	}
}
