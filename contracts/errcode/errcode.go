// Package errcode holds the error codes of the wire contract and the Error
// that carries them.
//
// An error means that a request could not be served. A tool that ran and
// failed is a result, not an error (see message.CallReply). Codes are
// append-only: match them by code, never by text:
//
//	if errors.Is(err, errcode.NotFound) { … }
package errcode

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// Code names a kind of failure. It is itself an error, so that
// errors.Is(err, errcode.NotFound) asks for the code of any wrapped Error.
type Code string

// The codes. The list only ever grows.
const (
	InvalidRequest   Code = "invalid_request"   // the request itself is malformed: names, JSON, fields
	InvalidArguments Code = "invalid_arguments" // a tool's arguments do not fit its schema
	NotAllowed       Code = "not_allowed"       // the agent's configuration does not grant it
	NotFound         Code = "not_found"         // no such agent, call, file …, or another tenant's
	Conflict         Code = "conflict"          // compare-and-set missed; details.revision is the current one
	TooLarge         Code = "too_large"         // over a size limit; details.limit names it
	QuotaExceeded    Code = "quota_exceeded"    // over a tenant's quota
	Timeout          Code = "timeout"           // the deadline passed
	Cancelled        Code = "cancelled"         // somebody cancelled it
	Overloaded       Code = "overloaded"        // no free slot now; try again later
	Unavailable      Code = "unavailable"       // nobody answers: no worker hosts the tool, or the service is down
	WorkerLost       Code = "worker_lost"       // the worker vanished while the call ran
	Internal         Code = "internal"          // a fault of ours, or a tool that panicked
)

// All lists every code in the order of the contract.
func All() []Code {
	return []Code{InvalidRequest, InvalidArguments, NotAllowed, NotFound, Conflict, TooLarge, QuotaExceeded,
		Timeout, Cancelled, Overloaded, Unavailable, WorkerLost, Internal}
}

// Error makes a Code usable as the target of errors.Is.
func (c Code) Error() string { return string(c) }

// Status is the HTTP-like number sent in the header Nats-Service-Error-Code.
func (c Code) Status() int {
	switch c {
	case InvalidRequest, InvalidArguments:
		return 400
	case NotAllowed:
		return 403
	case NotFound:
		return 404
	case Conflict:
		return 409
	case TooLarge:
		return 413
	case QuotaExceeded:
		return 507
	case Overloaded:
		return 429
	case Cancelled:
		return 499
	case Unavailable:
		return 503
	case Timeout:
		return 504
	case WorkerLost:
		return 502
	}
	return 500
}

// Retryable tells whether the same request may succeed later without being
// changed. It does not promise that the first try had no effect.
func (c Code) Retryable() bool {
	switch c {
	case Timeout, Overloaded, Unavailable, WorkerLost:
		return true
	}
	return false
}

// FieldFault is one wrong field of a request, configuration or argument list.
type FieldFault struct {
	Field   string `json:"field"`   // dotted path, for example agents[0].toolJobs[1].cron
	Message string `json:"message"` // what is wrong and what was expected
}

// Details are the machine-readable particulars of an Error.
type Details struct {
	Fields     []FieldFault `json:"fields,omitempty"`     // every wrong field
	Revision   *uint64      `json:"revision,omitempty"`   // conflict: the current revision
	Limit      *int64       `json:"limit,omitempty"`      // too_large, quota_exceeded: the limit, in the unit the message names
	Actual     *int64       `json:"actual,omitempty"`     // too_large, quota_exceeded: what was asked for
	RetryAfter string       `json:"retryAfter,omitempty"` // overloaded: a Go duration
	NotStarted bool         `json:"notStarted,omitempty"` // the tool has not begun: calling again repeats nothing
}

// Error is a request that could not be served. Its JSON form is the value of
// "error" in an error reply's body.
type Error struct {
	Code      Code     `json:"code"`
	Message   string   `json:"message"`
	Retryable bool     `json:"retryable"`
	Details   *Details `json:"details,omitempty"`

	cause error
}

// Body is the whole body of an error reply.
type Body struct {
	Error *Error `json:"error"`
}

// New makes an Error with a formatted message.
func New(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...), Retryable: code.Retryable()}
}

// Wrap makes an Error whose cause is err; errors.Is and errors.As see through
// it. The cause stays on this side of the wire: only the message travels.
func Wrap(code Code, err error, format string, args ...any) *Error {
	e := New(code, format, args...)
	e.cause = err
	return e
}

// Field makes an invalid_request that names the one field at fault.
func Field(field, format string, args ...any) *Error {
	return Fields(InvalidRequest, FieldFault{Field: field, Message: fmt.Sprintf(format, args...)})
}

// Fields makes an error that names every field at fault.
func Fields(code Code, faults ...FieldFault) *Error {
	var msg strings.Builder
	for i, f := range faults {
		if i > 0 {
			msg.WriteString("; ")
		}
		if f.Field != "" {
			msg.WriteString(f.Field + ": ")
		}
		msg.WriteString(f.Message)
	}
	return &Error{Code: code, Message: msg.String(), Retryable: code.Retryable(), Details: &Details{Fields: faults}}
}

// ConflictAt is a missed compare-and-set; current is the revision that stands.
func ConflictAt(current uint64, format string, args ...any) *Error {
	e := New(Conflict, format, args...)
	e.Details = &Details{Revision: &current}
	return e
}

// OverLimit is a too_large or quota_exceeded that names the limit.
func OverLimit(code Code, limit, actual int64, format string, args ...any) *Error {
	e := New(code, format, args...)
	e.Details = &Details{Limit: &limit, Actual: &actual}
	return e
}

// Error says the code and the message.
func (e *Error) Error() string { return string(e.Code) + ": " + e.Message }

// Is matches by code: against a Code, or another Error of the same code.
func (e *Error) Is(target error) bool {
	switch t := target.(type) {
	case Code:
		return e.Code == t
	case *Error:
		return e.Code == t.Code
	}
	return false
}

// Unwrap returns the local cause, if any.
func (e *Error) Unwrap() error { return e.cause }

// From turns any error into an Error: one found in the chain as it is, a
// context's end into timeout or cancelled, anything else into internal.
// From(nil) is nil.
func From(err error) *Error {
	if err == nil {
		return nil
	}
	var e *Error
	var c Code
	switch {
	case errors.As(err, &e):
		return e
	case errors.As(err, &c):
		return Wrap(c, err, "%s", err.Error())
	case errors.Is(err, context.DeadlineExceeded):
		return Wrap(Timeout, err, "the deadline passed")
	case errors.Is(err, context.Canceled):
		return Wrap(Cancelled, err, "cancelled")
	}
	return Wrap(Internal, err, "%s", err.Error())
}

// Of is the code of err, or "" for nil.
func Of(err error) Code {
	if err == nil {
		return ""
	}
	return From(err).Code
}

// Decode reads an error reply's body. A body that is none becomes an internal
// error with the given text, so that a broken peer still yields a code.
func Decode(body []byte, text string) *Error {
	var b Body
	if err := json.Unmarshal(body, &b); err != nil || b.Error == nil || b.Error.Code == "" {
		return New(Internal, "unreadable error reply: %s", text)
	}
	return b.Error
}
