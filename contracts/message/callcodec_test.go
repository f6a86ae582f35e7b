package message

import (
	"bytes"
	"encoding/json"
	"math"
	"reflect"
	"strings"
	"testing"
)

var plainBodies = []string{
	`{}`, ` { } `, `{"callId":"c1","chatId":"chat 1","arguments":{"code":"4711","n":[1,2.5e3,-0,true,null]},"timeoutMs":1500,"idempotencyKey":"k"}`,
	`{"callId":"a\"b\\c\n\t\/","content":"Grüße 日本 \u00e4"}`, `{"success":true,"content":"","data":{"a":[{}]},"durationMs":3,"callId":""}`,
	"{\n \"arguments\" : { \"a\" : [ ] }\n}",
}

var otherBodies = []string{
	``, `null`, `[]`, `{`, `{"callId"}`, `{"callId":}`, `{"callId":"x",}`, `{"callId":"x"} x`, `{"callID":"x"}`, `{"other":1}`, `{"callId":null}`,
	`{"callId":1}`, `{"callId":"x","callId":"y"}`, `{"timeoutMs":1.0}`, `{"timeoutMs":1e3}`, `{"timeoutMs":01}`, `{"timeoutMs":-}`,
	`{"timeoutMs":99999999999999999999}`, `{"arguments":{"a":01}}`, `{"arguments":{"a":.5}}`, `{"arguments":{"a":1.}}`, `{"arguments":{"a":"` + "\x01" + `"}}`,
	`{"arguments":{"a":"` + "\xff" + `"}}`, `{"arguments":{"a":"\ud800"}}`, `{"arguments":{"a":"\ud83d\ude00"}}`, `{"arguments":{"a":"\x"}}`, `{"arguments":nul}`, `{"arguments":null}`,
	`{"arguments":` + strings.Repeat("[", 70) + strings.Repeat("]", 70) + `}`, `{"data":null}`, `{"content":"\u2028"}`, `{"\u0063allId":"x"}`, `{"arguments":[1 2]}`, `{"arguments":{"a" 1}}`,
	`{"arguments":tru}`, `{"success":"true"}`, `{"durationMs":null}`, "{\"callId\":\"x\xe2\x80\"}",
}

// What is read plainly is what encoding/json reads.
func checkRead(t *testing.T, body []byte) (request, reply bool) {
	t.Helper()
	var q, wantQ CallRequest
	if request = q.ReadPlain(body); request {
		if err := json.Unmarshal(body, &wantQ); err != nil || !reflect.DeepEqual(q, wantQ) {
			t.Errorf("%q: read %+v, want %+v, %v", body, q, wantQ, err)
		}
	}
	var r, wantR CallReply
	if reply = r.ReadReply(body); reply {
		if err := json.Unmarshal(body, &wantR); err != nil || !reflect.DeepEqual(r, wantR) {
			t.Errorf("%q: read %+v, want %+v, %v", body, r, wantR, err)
		}
	} else if !reflect.DeepEqual(r, CallReply{}) {
		t.Errorf("%q: left %+v", body, r)
	}
	return request, reply
}

func TestReadPlainCalls(t *testing.T) {
	for _, s := range plainBodies {
		if q, r := checkRead(t, []byte(s)); !q && !r {
			t.Errorf("%s is not plain", s)
		}
	}
	for _, s := range otherBodies {
		q, r := checkRead(t, []byte(s))
		if !json.Valid([]byte(s)) && (q || r) {
			t.Errorf("%s is plain", s)
		}
	}
}

func FuzzReadCalls(f *testing.F) {
	for _, s := range append(plainBodies, otherBodies...) {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) { checkRead(t, body) })
}

// What is written is what Marshal writes, errors included.
func checkWrite(t *testing.T, callID, text string, raw []byte, n int64, success bool) {
	t.Helper()
	compare := func(v, unknown any) { // to Marshal
		got, err := Marshal(v)
		want, wantErr := Marshal(unknown)
		if (err == nil) != (wantErr == nil) || !bytes.Equal(got, want) {
			t.Errorf("wrote %q, %v, want %q, %v", got, err, want, wantErr)
		}
	}
	type request CallRequest
	type reply CallReply
	q := CallRequest{CallID: callID, ChatID: text, Arguments: raw, TimeoutMs: n, IdempotencyKey: text, WakeOnDone: success}
	compare(q, request(q))
	r := CallReply{CallID: callID, Success: success, Content: text, ErrorMessage: text, Data: raw, DurationMs: n}
	compare(r, reply(r))
}

func TestWriteCalls(t *testing.T) {
	for _, text := range []string{"", "plain", "a\"b\\c\n\r\t", "\x00\x1f\x7f\b\f", "<&>", "Grüße 日本 😀", "\u2028 \u2029", "\xff", "x\xe2\x80"} {
		for _, raw := range []string{"", "{}", `{"a":[1,"x"]}`, `{ "a" : 1 }`, `{"a":"` + "\u2028" + `"}`, `{"a":"\u00e4"}`, "nope", "{} {}", "null", "\"\xff\"", ` {}`} {
			checkWrite(t, text, text, []byte(raw), math.MinInt64, true)
			checkWrite(t, "c1", text, []byte(raw), 0, false)
		}
	}
}

func FuzzWriteCalls(f *testing.F) {
	f.Add("c1", "text", []byte(`{"a":1}`), int64(3), true)
	f.Add("", "\u2028\x00", []byte(` [1, 2]`), int64(-1), false)
	f.Fuzz(checkWrite)
}

// Every field is read here.
func TestCallCodecKnowsEveryField(t *testing.T) {
	knows := func(v any, read func([]byte) bool) {
		t.Helper()
		for f := range reflect.TypeOf(v).Fields() {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			value := map[reflect.Kind]string{reflect.String: `"x"`, reflect.Int64: "1", reflect.Bool: "true", reflect.Slice: "{}"}[f.Type.Kind()]
			if body := `{"` + name + `":` + value + `}`; !read([]byte(body)) {
				t.Errorf("%T: %s is not read", v, body)
			}
		}
	}
	knows(CallRequest{}, (&CallRequest{}).ReadPlain)
	knows(CallReply{}, (&CallReply{}).ReadReply)
}
