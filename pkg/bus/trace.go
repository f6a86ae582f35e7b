package bus

import (
	"context"
	"maps"

	"github.com/nats-io/nats.go"

	"github.com/toolbus/toolbus/contracts/message"
)

type traceKey struct{}

// WithTrace puts a W3C traceparent into ctx; requests made with it carry it on.
func WithTrace(ctx context.Context, traceparent string) context.Context {
	if traceparent == "" {
		return ctx
	}
	return context.WithValue(ctx, traceKey{}, traceparent)
}

// Trace is the traceparent of ctx, or "".
func Trace(ctx context.Context) string {
	t, _ := ctx.Value(traceKey{}).(string)
	return t
}

func injectTrace(ctx context.Context, m *nats.Msg) {
	if t := Trace(ctx); t != "" && m.Header.Get(message.HeaderTrace) == "" {
		m.Header = maps.Clone(m.Header) // it may be shared
		if m.Header == nil {
			m.Header = nats.Header{}
		}
		m.Header.Set(message.HeaderTrace, t)
	}
}
