package worker

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"strings"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/tool"
)

// secrets resolves {"$secret":"name"} in settings, in the worker only and anew
// for each call, so that a rotated secret needs no restart.
type secrets struct {
	dir string
	env func(string) (string, bool)
}

// resolve replaces the references in settings. A secret that is missing fails
// the call. The redactor knows every value that was filled in.
func (s secrets) resolve(settings json.RawMessage) (json.RawMessage, redactor, error) {
	if !bytes.Contains(settings, []byte(`$secret`)) {
		return settings, nil, nil
	}
	dec := json.NewDecoder(bytes.NewReader(settings))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, nil, errcode.Wrap(errcode.Internal, err, "the tool's settings are not valid JSON")
	}
	var r redactor
	v, err := s.walk(v, &r)
	if err != nil {
		return nil, nil, err
	}
	out, err := json.Marshal(v)
	return out, r, err
}

func (s secrets) walk(v any, r *redactor) (any, error) {
	switch x := v.(type) {
	case []any:
		for i := range x {
			var err error
			if x[i], err = s.walk(x[i], r); err != nil {
				return nil, err
			}
		}
	case map[string]any:
		if name, ok := x["$secret"].(string); ok && len(x) == 1 {
			val, err := s.lookup(name)
			if err == nil {
				*r = append(*r, val)
			}
			return val, err
		}
		for k := range x {
			var err error
			if x[k], err = s.walk(x[k], r); err != nil {
				return nil, err
			}
		}
	}
	return v, nil
}

func (s secrets) lookup(name string) (string, error) {
	if err := subject.CheckName("$secret", name); err != nil {
		return "", err
	}
	if s.dir != "" {
		root, err := os.OpenRoot(s.dir)
		if err == nil {
			defer root.Close()
			b, err := root.ReadFile(name)
			if err == nil {
				return strings.TrimRight(string(b), "\r\n"), nil
			}
			if !errors.Is(err, fs.ErrNotExist) {
				return "", errcode.New(errcode.Unavailable, "secret %q cannot be read by this worker", name)
			}
		}
	}
	key := "TOOLBUS_SECRET_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
	if v, ok := s.env(key); ok {
		return v, nil
	}
	return "", errcode.New(errcode.Unavailable, "secret %q is not known to this worker", name)
}

// redactor takes secret values out of texts that leave the worker.
type redactor []string

func (r redactor) text(s string) string {
	for _, secret := range r {
		if len(secret) >= 3 { // shorter ones would only garble the text
			s = strings.ReplaceAll(s, secret, "[redacted]")
		}
	}
	return s
}

// json is JSON without the secrets, also in names of fields. A number that holds one
// becomes a string.
func (r redactor) json(raw json.RawMessage) (json.RawMessage, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, err
	}
	return message.Marshal(r.value(v))
}

func (r redactor) value(v any) any {
	switch v := v.(type) {
	case string:
		return r.text(v)
	case json.Number:
		if clean := r.text(v.String()); clean != v.String() {
			return clean
		}
	case []any:
		for i := range v {
			v[i] = r.value(v[i])
		}
	case map[string]any:
		clean := make(map[string]any, len(v))
		for name, inner := range v {
			clean[r.text(name)] = r.value(inner)
		}
		return clean
	}
	return v
}

// logger wraps a tool's logger so that secrets never reach a log.
func (r redactor) logger(l tool.Logger) tool.Logger {
	if len(r) == 0 {
		return l
	}
	return redactingLogger{r, l}
}

type redactingLogger struct {
	r redactor
	l tool.Logger
}

func (l redactingLogger) clean(keyvals []any) []any {
	out := make([]any, len(keyvals))
	for i, v := range keyvals {
		switch x := v.(type) {
		case string:
			out[i] = l.r.text(x)
		case nil, bool, int, int64, uint64, float64:
			out[i] = v
		case error:
			out[i] = l.r.text(x.Error())
		default:
			b, err := json.Marshal(v)
			if err != nil {
				b = []byte("(unprintable)")
			}
			out[i] = l.r.text(string(b))
		}
	}
	return out
}

func (l redactingLogger) Debug(m string, kv ...any) { l.l.Debug(l.r.text(m), l.clean(kv)...) }
func (l redactingLogger) Info(m string, kv ...any)  { l.l.Info(l.r.text(m), l.clean(kv)...) }
func (l redactingLogger) Warn(m string, kv ...any)  { l.l.Warn(l.r.text(m), l.clean(kv)...) }
func (l redactingLogger) Error(m string, kv ...any) { l.l.Error(l.r.text(m), l.clean(kv)...) }
