package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/toolbus/toolbus/contracts/errcode"
)

const (
	outputTable = "table"
	outputJSON  = "json"
)

// print writes reply as one JSON document with -o json, or else what table
// writes. Nothing is written until all of it is there.
func (a *app) print(reply any, table func(w io.Writer)) error {
	var b bytes.Buffer
	if a.flags.output == outputJSON {
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		if err := enc.Encode(reply); err != nil {
			return errcode.Wrap(errcode.Internal, err, "the reply has no JSON form: %v", err)
		}
	} else {
		table(&b)
	}
	return a.write(b.Bytes())
}

func (a *app) write(b []byte) error {
	_, err := output{a.std.Out}.Write(b)
	return err
}

// output is stdout, whose failures have a code.
type output struct{ w io.Writer }

func (o output) Write(b []byte) (int, error) {
	n, err := o.w.Write(b)
	if err != nil {
		err = errcode.Wrap(errcode.Unavailable, err, "write the output: %v", err)
	}
	return n, err
}

// rows writes aligned columns under a head line. Cells are made safe for a
// terminal: what tenants store must not steer it.
func rows(w io.Writer, head string, lines [][]any) {
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(tw, strings.ReplaceAll(head, " ", "\t"))
	for _, l := range lines {
		cells := make([]string, len(l))
		for i, c := range l {
			cells[i] = printable(fmt.Sprint(c))
		}
		fmt.Fprintln(tw, strings.Join(cells, "\t"))
	}
	_ = tw.Flush() // into a buffer
}

// inZone is an RFC 3339 time for a table: to the second, in a time zone where it
// is known here.
func inZone(stamp, zone string) string {
	t, err := time.Parse(time.RFC3339, stamp)
	if err != nil {
		return stamp
	}
	if loc, err := time.LoadLocation(zone); err == nil {
		t = t.In(loc)
	}
	return t.Format(time.RFC3339)
}

// toSecond is an RFC 3339 time for a table, in UTC.
func toSecond(stamp string) string { return inZone(stamp, "UTC") }

// printable replaces what would break a line or steer a terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r < ' ', r >= 0x7f && r < 0xa0, r == '\u2028', r == '\u2029', r >= '\u202a' && r <= '\u202e', r >= '\u2066' && r <= '\u2069':
			return '\ufffd'
		}
		return r
	}, s)
}

// firstLine is a description's beginning, for a table.
func firstLine(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	if r := []rune(s); len(r) > 80 {
		s = string(r[:79]) + "…"
	}
	return s
}

// line writes text and ends it with a newline unless it has one.
func line(w io.Writer, text string) {
	if !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	_, _ = io.WriteString(w, text)
}
