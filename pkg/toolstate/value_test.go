package toolstate

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/toolbus/toolbus/contracts/message"
)

func TestReadReplyKnowsWhatTheServiceWrites(t *testing.T) {
	for _, raw := range []string{`null`, `1.50`, `"a"`, `"x,\"revision\":3,\"expiresAt\":\"T\"}"`, `{"a":1,"revision":7,"expiresAt":"2026"}`, `["<&>",{}]`} {
		want := message.ToolStateValue{Found: true, Value: json.RawMessage(raw), Revision: 42, ExpiresAt: "2026-05-05T14:00:00.000Z"}
		body, err := message.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		var v value
		if !v.ReadReply(body) || !reflect.DeepEqual(v.ToolStateValue, want) {
			t.Errorf("%s is read as %+v", body, v)
		}
	}
	for _, body := range []string{
		``, `{}`, `{"found":false,"value":null,"revision":0}`, `{"found":true,"value":1,"revision":2}`,
		`{"found":true,"value":,"revision":2,"expiresAt":"2026-05-05T14:00:00.000Z"}`,
		`{"found":true,"value":1,"revision":-2,"expiresAt":"2026-05-05T14:00:00.000Z"}`,
		`{"found":true,"value":1,"revision":2,"expiresAt":"2026-05-05T14:00:00.000Z","more":1}`,
		`{"found":true,"value":1,"more":2,"revision":2,"expiresAt":"2026-05-05T14:00:00.000Z"}`,
	} {
		var v value
		if v.ReadReply([]byte(body)) {
			t.Errorf("%s is read as %+v", body, v)
		}
	}
}

// Whatever ReadReply reads, it reads as a JSON decoder does.
func FuzzReadReply(f *testing.F) {
	f.Add([]byte(`{"found":true,"value":{"revision":1},"revision":42,"expiresAt":"2026-05-05T14:00:00.000Z"}`))
	f.Add([]byte(`{"found":true,"value":"\"","revision":18446744073709551615,"expiresAt":"Z"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		var v value
		if !v.ReadReply(body) {
			return
		}
		var want message.ToolStateValue
		if err := json.Unmarshal(body, &want); err != nil {
			if json.Valid(body) {
				t.Fatalf("%s: %v", body, err)
			}
			return
		}
		got, _ := message.Marshal(v.ToolStateValue)
		if w, _ := message.Marshal(want); string(got) != string(w) {
			t.Fatalf("%s is read as %s", body, got)
		}
	})
}
