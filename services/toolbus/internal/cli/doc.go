// Package cli is the command line: one file per verb. What a verb prints goes
// to stdout, and only when it succeeds; everything else goes to stderr.
//
// Exit codes: 0 done, 1 failed, 2 wrong usage. An error is one line
// "toolbus: <code>: <message>", followed by one line per faulty field.
package cli
