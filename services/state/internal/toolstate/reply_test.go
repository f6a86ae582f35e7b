package toolstate

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/toolbus/toolbus/contracts/message"
)

func TestEncodeValueIsWhatMarshalWrites(t *testing.T) {
	for _, v := range []message.ToolStateValue{
		{},
		{Revision: 7, ExpiresAt: "2026-05-05T14:00:00.000Z"},
		{Found: true, Value: json.RawMessage(`null`), Revision: math.MaxUint64, ExpiresAt: "2026-05-05T14:00:00.000Z"},
		{Found: true, Value: json.RawMessage(`{"a":["<&>","é",1.50,"\u0000"]}`), Revision: 1, ExpiresAt: "2026-05-05T14:00:00.000Z"},
	} {
		want, err := message.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		if got := encodeValue(v); string(got) != string(want) {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}
