package tooltest

import (
	"encoding/json"
	"slices"
	"sync"

	"github.com/toolbus/toolbus/pkg/tool"
)

// ProgressEvent is one Call.Progress.
type ProgressEvent struct {
	Tool  string
	Chat  string
	Value json.RawMessage
}

// LogLine is one line a tool logged.
type LogLine struct {
	Tool    string
	CallID  string
	Level   string // debug, info, warn, error
	Msg     string
	KeyVals []any
}

// Progress lists what the calls so far reported, in order.
func (e *Env) Progress() []ProgressEvent { return e.record.allProgress() }

// Logs lists what the calls so far logged, in order.
func (e *Env) Logs() []LogLine { return e.record.allLogs() }

type record struct {
	mu     sync.Mutex
	events []ProgressEvent
	lines  []LogLine
}

func (r *record) progress(p ProgressEvent) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, p)
}

func (r *record) log(l LogLine) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, l)
}

func (r *record) allProgress() []ProgressEvent {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.events)
}

func (r *record) allLogs() []LogLine {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.lines)
}

func (r *record) logger(toolName, callID string) tool.Logger { return logger{r, toolName, callID} }

type logger struct {
	record *record
	tool   string
	callID string
}

func (l logger) Debug(msg string, kv ...any) { l.write("debug", msg, kv) }
func (l logger) Info(msg string, kv ...any)  { l.write("info", msg, kv) }
func (l logger) Warn(msg string, kv ...any)  { l.write("warn", msg, kv) }
func (l logger) Error(msg string, kv ...any) { l.write("error", msg, kv) }

func (l logger) write(level, msg string, kv []any) {
	l.record.log(LogLine{Tool: l.tool, CallID: l.callID, Level: level, Msg: msg, KeyVals: slices.Clone(kv)})
}
