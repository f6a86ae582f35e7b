package message

import (
	"encoding/json"
	"strconv"

	"github.com/toolbus/toolbus/contracts/jsontext"
)

// Calls and their replies are read and written without reflection where they are
// plain, as nearly all are: it is what a call costs most. What is not plain is left
// to encoding/json. A field that is added to one of the two must be added here.

// ReadPlain reads a request of the plain form; otherwise r stays as it is. Arguments
// share body's memory.
func (r *CallRequest) ReadPlain(body []byte) bool {
	var p CallRequest
	seen := 0
	ok := jsontext.Object(body, func(name []byte, i int) (end int, ok bool) {
		bit := 0
		switch string(name) {
		case "callId":
			bit = 1
			p.CallID, end, ok = jsontext.String(body, i)
		case "chatId":
			bit = 2
			p.ChatID, end, ok = jsontext.String(body, i)
		case "arguments":
			bit = 4
			p.Arguments, end, ok = raw(body, i)
		case "timeoutMs":
			bit = 8
			p.TimeoutMs, end, ok = jsontext.Int(body, i)
		case "idempotencyKey":
			bit = 16
			p.IdempotencyKey, end, ok = jsontext.String(body, i)
		case "wakeOnDone":
			bit = 32
			p.WakeOnDone, end, ok = jsontext.Bool(body, i)
		}
		ok = ok && seen&bit == 0
		seen |= bit
		return end, ok
	})
	if ok {
		*r = p
	}
	return ok
}

// ReadReply reads a reply of the plain form. Data shares body's memory.
func (r *CallReply) ReadReply(body []byte) bool {
	var p CallReply
	seen := 0
	ok := jsontext.Object(body, func(name []byte, i int) (end int, ok bool) {
		bit := 0
		switch string(name) {
		case "callId":
			bit = 1
			p.CallID, end, ok = jsontext.String(body, i)
		case "success":
			bit = 2
			p.Success, end, ok = jsontext.Bool(body, i)
		case "content":
			bit = 4
			p.Content, end, ok = jsontext.String(body, i)
		case "errorMessage":
			bit = 8
			p.ErrorMessage, end, ok = jsontext.String(body, i)
		case "data":
			bit = 16
			p.Data, end, ok = raw(body, i)
		case "durationMs":
			bit = 32
			p.DurationMs, end, ok = jsontext.Int(body, i)
		}
		ok = ok && seen&bit == 0
		seen |= bit
		return end, ok
	})
	if ok {
		*r = p
	}
	return ok
}

func raw(b []byte, i int) (json.RawMessage, int, bool) {
	end, _, ok := jsontext.Skip(b, i)
	if !ok || b[i] == 'n' { // null is not like nothing for every reader
		return nil, end, false
	}
	return json.RawMessage(b[i:end:end]), end, true
}

func (r CallRequest) plain() (json.RawMessage, bool) {
	w := writer{b: make([]byte, 0, 160+len(r.Arguments)+len(r.ChatID)), ok: true}
	w.string("callId", r.CallID, true)
	w.string("chatId", r.ChatID, true)
	w.raw("arguments", r.Arguments)
	w.int("timeoutMs", r.TimeoutMs, true)
	w.string("idempotencyKey", r.IdempotencyKey, true)
	if r.WakeOnDone {
		w.name("wakeOnDone")
		w.b = append(w.b, "true"...)
	}
	return w.end(), w.ok
}

func (r CallReply) plain() (json.RawMessage, bool) {
	w := writer{b: make([]byte, 0, 160+len(r.Content)+len(r.Content)/8+len(r.Data)+len(r.ErrorMessage)), ok: true}
	w.string("callId", r.CallID, false)
	w.name("success")
	w.b = strconv.AppendBool(w.b, r.Success)
	w.string("content", r.Content, false)
	w.string("errorMessage", r.ErrorMessage, true)
	w.raw("data", r.Data)
	w.int("durationMs", r.DurationMs, false)
	return w.end(), w.ok
}

// writer writes an object; not ok is that it is not plain.
type writer struct {
	b  []byte
	ok bool
}

func (w *writer) name(name string) {
	sep := byte(',')
	if len(w.b) == 0 {
		sep = '{'
	}
	w.b = append(append(append(w.b, sep, '"'), name...), '"', ':')
}

func (w *writer) string(name, v string, omitEmpty bool) {
	if v == "" && omitEmpty || !w.ok {
		return
	}
	w.name(name)
	w.b, w.ok = jsontext.AppendString(w.b, v)
}

func (w *writer) int(name string, v int64, omitEmpty bool) {
	if v == 0 && omitEmpty {
		return
	}
	w.name(name)
	w.b = strconv.AppendInt(w.b, v, 10)
}

// raw writes JSON that is compact already.
func (w *writer) raw(name string, v json.RawMessage) {
	if len(v) == 0 || !w.ok {
		return
	}
	w.name(name)
	end, compact, ok := jsontext.Skip(v, 0)
	w.ok = ok && compact && end == len(v)
	w.b = append(w.b, v...)
}

func (w *writer) end() json.RawMessage {
	if len(w.b) == 0 {
		return json.RawMessage("{}")
	}
	return append(w.b, '}')
}
