package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"slices"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
)

// word is what somebody typed who forgot that values are JSON.
var word = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9 ._:-]{0,39}$`)

// value is a JSON value of the command line.
func (s *stateVerbs) value(field, arg string) (json.RawMessage, error) {
	text, err := s.argument(field, arg)
	if err != nil {
		return nil, err
	}
	if word.Match(text) && !json.Valid(text) {
		return nil, errcode.Field(field, `is not valid JSON; a string needs its quotes, '"text"'`)
	}
	return checkJSON(errcode.InvalidRequest, field, text)
}

func (s *stateVerbs) set(ctx context.Context, args []string) error {
	tenant, ref, err := s.document(args[0])
	if err != nil {
		return err
	}
	value, err := s.value("value", args[1])
	if err != nil {
		return err
	}
	var reply message.ToolStateWritten
	req := message.ToolStateSet{ToolStateRef: ref, Key: args[0], Value: value, TTL: s.ttl, IfRevision: s.ifRevision.at, OpID: bus.NewOpID()}
	if err := s.ask(ctx, subject.ToolState(tenant, "set"), req, &reply); err != nil {
		return err
	}
	return s.print(reply, func(w io.Writer) { line(w, stands(reply.Revision, reply.ExpiresAt)) })
}

func (s *stateVerbs) update(ctx context.Context, args []string) error {
	tenant, ref, err := s.document(s.drop...)
	if err != nil {
		return err
	}
	set := map[string]json.RawMessage{}
	if len(args) == 1 {
		raw, err := s.value("set", args[0])
		if err != nil {
			return err
		}
		if err := json.Unmarshal(raw, &set); err != nil || set == nil {
			return errcode.Field("set", "must be a JSON object, whose members are the keys")
		}
	}
	var reply message.ToolStateWritten
	req := message.ToolStateUpdate{ToolStateRef: ref, Set: set, Delete: s.drop, TTL: s.ttl, IfRevision: s.ifRevision.at, OpID: bus.NewOpID()}
	if err := s.ask(ctx, subject.ToolState(tenant, "update"), req, &reply); err != nil {
		return err
	}
	return s.print(reply, func(w io.Writer) { line(w, stands(reply.Revision, reply.ExpiresAt)) })
}

func (s *stateVerbs) append(ctx context.Context, args []string) error {
	tenant, ref, err := s.document(args[0])
	if err != nil {
		return err
	}
	if first := slices.Index(args[1:], "-"); first >= 0 && slices.Contains(args[first+2:], "-") {
		return &usageError{errcode.Field("values", "stdin can be read only once")}
	}
	var values []json.RawMessage
	for i, arg := range args[1:] {
		v, err := s.value(fmt.Sprintf("values[%d]", i), arg)
		if err != nil {
			return err
		}
		values = append(values, v)
	}
	var reply message.ToolStateAppended
	req := message.ToolStateAppend{ToolStateRef: ref, Key: args[0], Values: values, Unique: s.unique, TTL: s.ttl, OpID: bus.NewOpID()}
	if err := s.ask(ctx, subject.ToolState(tenant, "append"), req, &reply); err != nil {
		return err
	}
	return s.print(reply, func(w io.Writer) {
		fmt.Fprintf(w, "length %d, %s\n", reply.Length, stands(reply.Revision, reply.ExpiresAt))
	})
}

func (s *stateVerbs) increment(ctx context.Context, args []string) error {
	tenant, ref, err := s.document(args[0])
	if err != nil {
		return err
	}
	by, err := checkJSON(errcode.InvalidRequest, "by", []byte(s.by))
	if err != nil {
		return err
	}
	var n json.Number
	if err := json.Unmarshal(by, &n); err != nil || n == "" {
		return errcode.Field("by", "must be a number")
	}
	var reply message.ToolStateIncremented
	req := message.ToolStateIncrement{ToolStateRef: ref, Key: args[0], By: n, TTL: s.ttl, OpID: bus.NewOpID()}
	if err := s.ask(ctx, subject.ToolState(tenant, "increment"), req, &reply); err != nil {
		return err
	}
	return s.print(reply, func(w io.Writer) { line(w, reply.Value.String()) })
}

func (s *stateVerbs) delete(ctx context.Context, args []string) error {
	tenant, ref, err := s.document(args[0])
	if err != nil {
		return err
	}
	var reply message.ToolStateDeleted
	req := message.ToolStateDelete{ToolStateRef: ref, Key: args[0], OpID: bus.NewOpID()}
	if err := s.ask(ctx, subject.ToolState(tenant, "delete"), req, &reply); err != nil {
		return err
	}
	return s.print(reply, func(w io.Writer) { line(w, done(reply.Deleted, "deleted")) })
}

func (s *stateVerbs) clear(ctx context.Context, _ []string) error {
	tenant, ref, err := s.document()
	if err != nil {
		return err
	}
	var reply message.ToolStateCleared
	req := message.ToolStateClear{ToolStateRef: ref, OpID: bus.NewOpID()}
	if err := s.ask(ctx, subject.ToolState(tenant, "clear"), req, &reply); err != nil {
		return err
	}
	return s.print(reply, func(w io.Writer) { line(w, done(reply.Cleared, "cleared")) })
}

// stands is what a write left.
func stands(revision uint64, expiresAt string) string {
	if revision == 0 {
		return "there is no document"
	}
	return fmt.Sprintf("revision %d, expires %s", revision, expiresAt)
}

// done is a word for what happened, or that there was nothing to do.
func done(did bool, word string) string {
	if did {
		return word
	}
	return "there was nothing"
}
