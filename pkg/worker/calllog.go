package worker

import (
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/telemetry"
)

// callLog writes a call's lines to its tool's log, saying whose call it is. Most
// calls log nothing, so the logger is made when there is a line.
type callLog struct {
	tool telemetry.Logger
	who  subject.Agent
	call string
}

func (l callLog) logger() telemetry.Logger {
	return l.tool.With("tenant", l.who.Tenant, "agent", l.who.Agent, "call", l.call)
}

func (l callLog) Debug(msg string, keyvals ...any) { l.logger().Debug(msg, keyvals...) }
func (l callLog) Info(msg string, keyvals ...any)  { l.logger().Info(msg, keyvals...) }
func (l callLog) Warn(msg string, keyvals ...any)  { l.logger().Warn(msg, keyvals...) }
func (l callLog) Error(msg string, keyvals ...any) { l.logger().Error(msg, keyvals...) }
