package toolstate

import (
	"testing"

	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/pkg/bus"
)

func TestReadGetKnowsWhatClientsSend(t *testing.T) {
	want := message.ToolStateGet{ToolStateRef: message.ToolStateRef{ChatID: "+49 170/123 é", Namespace: "relabeling"}, Key: "codes"}
	body, err := message.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var got message.ToolStateGet
	if !readGet(body, &got) || got != want {
		t.Errorf("%s is read as %+v", body, got)
	}
}

// Whatever readGet reads, the decoder reads the same.
func FuzzReadGet(f *testing.F) {
	for _, s := range []string{
		`{"chatId":"c","namespace":"n","key":"k"}`, `{"chatId":"","namespace":"é","key":"\u00e9"}`, `{"key":"k","chatId":"c","namespace":"n"}`,
		`{"chatId":"c","namespace":"n","key":"k","key":"l"}`, "{\"chatId\":\"c\xff\",\"namespace\":\"n\",\"key\":\"k\"}", "{\"chatId\":\"c\x00\",\"namespace\":\"n\",\"key\":\"k\"}",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var got, want message.ToolStateGet
		if !readGet(body, &got) {
			return
		}
		if err := bus.DecodeBody(body, &want); err != nil || got != want {
			t.Fatalf("%s is read as %+v, want %+v, %v", body, got, want, err)
		}
	})
}
