// Package envtest holds what every implementation of the capabilities ToolState,
// store and files must do, whether it keeps them in a cluster or in a test's memory:
// what they answer, what they refuse with which code and field, their limits,
// and that parallel writes lose nothing. Runtimes for tools run it in their
// tests.
//
// The package must not import a transport, nor an implementation.
package envtest

import (
	"errors"
	"testing"
	"time"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/pkg/tool"
)

// Harness is an implementation with the default limits: documents of 64 KiB and
// 1,024 keys, lives from 1 s to 720 h, store values of 256 KiB.
type Harness struct {
	// State is the scratch pad of a chat under a namespace, of one tenant that
	// has none yet.
	State func(chat, namespace string) tool.State
	// Store is the store of a tool of an agent of the same tenant.
	Store func(agent, tool string) tool.RevisionStore
	// Files is the file area of a tenant that has none yet.
	Files func() tool.Files
	// Pass lets time pass.
	Pass func(d time.Duration)
}

// Run checks an implementation, each point as a subtest. The subtests use chats,
// agents and folders of their own. What the harness has no function for is left to
// another Run.
func Run(t *testing.T, h Harness) {
	var checks []check
	if h.State != nil {
		checks = append(checks, stateChecks...)
	}
	if h.Store != nil {
		checks = append(checks, storeChecks...)
	}
	if h.Files != nil {
		checks = append(checks, fileChecks...)
	}
	if len(checks) == 0 {
		t.Fatal("the harness has nothing to check")
	}
	for _, c := range checks {
		t.Run(c.name, func(t *testing.T) { c.run(t, h) })
	}
}

type check struct {
	name string
	run  func(*testing.T, Harness)
}

// refusal is something that must fail, and how.
type refusal struct {
	name  string
	err   error
	code  errcode.Code
	field string // of the first fault; "" for none
	limit int64  // in the details; 0 for none
}

func refused(t *testing.T, cases []refusal) {
	t.Helper()
	for _, c := range cases {
		e := errcode.From(c.err)
		if !errors.Is(c.err, c.code) {
			t.Errorf("%s: want %s, got %v", c.name, c.code, c.err)
			continue
		}
		var field string
		var limit int64
		if d := e.Details; d != nil {
			if len(d.Fields) > 0 {
				field = d.Fields[0].Field
			}
			if d.Limit != nil {
				limit = *d.Limit
			}
		}
		if field != c.field || limit != c.limit {
			t.Errorf("%s: field %q and limit %d, want %q and %d: %v", c.name, field, limit, c.field, c.limit, c.err)
		}
	}
}
