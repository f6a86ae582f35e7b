package cli

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/toolbus/toolbus/contracts/errcode"
)

const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

// usageError is a command line that makes no sense.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// toolError is a tool that ran and failed: a result, with no code.
type toolError struct{ message string }

func (e *toolError) Error() string { return e.message }

// missing is a required flag or argument that was left out.
func missing(field, how string) error {
	return &usageError{errcode.Field(field, "is required (%s)", how)}
}

// report prints err and returns the exit code.
func report(w io.Writer, command string, err error) int {
	var failed *toolError
	if errors.As(err, &failed) {
		line(w, "toolbus: "+failed.message)
		return exitFailed
	}
	var usage *usageError
	isUsage := errors.As(err, &usage)
	var e *errcode.Error
	if !errors.As(err, &e) {
		if isUsage {
			e = errcode.New(errcode.InvalidRequest, "%v", err)
		} else {
			e = errcode.From(err)
		}
	}
	msg, faults := text(err, e), faultLines(e)
	if joined := printable(errcode.Fields(e.Code, fields(e)...).Message); len(faults) > 0 && strings.HasSuffix(msg, joined) {
		// The message is nothing but the faults: say them once.
		if len(faults) == 1 {
			faults = nil
		} else {
			msg = strings.TrimSuffix(msg, joined) + fmt.Sprintf("%d faults", len(faults))
		}
	}
	fmt.Fprintf(w, "toolbus: %s: %s\n", e.Code, msg)
	for _, f := range faults {
		fmt.Fprintf(w, "  %s\n", f)
	}
	if e.Details != nil {
		if r := e.Details.Revision; r != nil {
			fmt.Fprintf(w, "  revision: %d stands\n", *r)
		}
	}
	if isUsage {
		fmt.Fprintf(w, "Run '%s --help' for usage.\n", command)
		return exitUsage
	}
	return exitFailed
}

func fields(e *errcode.Error) []errcode.FieldFault {
	if e.Details == nil {
		return nil
	}
	return e.Details.Fields
}

// faultLines are the fields at fault, a line each.
func faultLines(e *errcode.Error) []string {
	var lines []string
	for _, f := range fields(e) {
		if f.Field == "" {
			f.Field = "(whole)"
		}
		lines = append(lines, printable(f.Field)+": "+printable(f.Message))
	}
	return lines
}

// text is the message on one line, with what was said around the error.
func text(err error, e *errcode.Error) string {
	msg := e.Message
	if whole := err.Error(); strings.Contains(whole, e.Error()) {
		msg = strings.Replace(whole, e.Error(), e.Message, 1)
	}
	return printable(strings.ReplaceAll(msg, "\n", "; "))
}

// flagError says what a flag's value must be, where its type alone tells: pflag
// quotes Go's parsers.
func flagError(err error) error {
	var bad *pflag.InvalidValueError
	if !errors.As(err, &bad) {
		return err
	}
	if own := new(errcode.Error); errors.As(err, &own) {
		return own
	}
	f := bad.GetFlag()
	return errcode.Field(f.Name, "%s", flagText(f, bad.GetValue(), errors.Unwrap(bad)))
}

func flagText(f *pflag.Flag, value string, err error) string {
	switch f.Value.Type() {
	case "uint64":
		return fmt.Sprintf("%q must be a whole number, not negative", value)
	case "int", "int64":
		return fmt.Sprintf("%q must be a whole number", value)
	case "duration":
		return fmt.Sprintf("%q must be a duration with its unit, such as 90s or 1h30m", value)
	case "bool":
		return fmt.Sprintf("%q must be true or false", value)
	}
	return fmt.Sprintf("%q: %v", value, err)
}

// needsVerb is the RunE of a command that only groups others.
func needsVerb(cmd *cobra.Command, args []string) error {
	var verbs []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() && c.Name() != "help" && c.Name() != "completion" {
			verbs = append(verbs, c.Name())
		}
	}
	if len(args) > 0 {
		return fmt.Errorf("unknown verb %q of %s: must be one of %s", args[0], cmd.CommandPath(), strings.Join(verbs, ", "))
	}
	return fmt.Errorf("%s needs a verb: one of %s", cmd.CommandPath(), strings.Join(verbs, ", "))
}

// args checks the number of arguments; names are what they mean, in order, and
// least of them are required.
func args(least int, names ...string) cobra.PositionalArgs {
	return func(_ *cobra.Command, got []string) error {
		switch {
		case len(got) < least:
			return errcode.Field(names[len(got)], "is required")
		case len(got) > len(names):
			return fmt.Errorf("unexpected argument %q", got[len(names)])
		}
		return nil
	}
}

// atLeast checks that each of the names has an argument; the last may have
// several.
func atLeast(names ...string) cobra.PositionalArgs {
	return func(_ *cobra.Command, got []string) error {
		if len(got) < len(names) {
			return errcode.Field(names[len(got)], "is required")
		}
		return nil
	}
}
