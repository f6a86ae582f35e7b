package toolstate

import (
	"encoding/json"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
)

// ChangeKind says what became of a document.
type ChangeKind string

// The kinds of changes.
const (
	Written ChangeKind = "written" // it has the data of the change now
	Cleared ChangeKind = "cleared" // somebody removed it
	Expired ChangeKind = "expired" // its life ended
)

// Change is what happened to one document.
type Change struct {
	Kind      ChangeKind                 `json:"kind"`
	Namespace string                     `json:"namespace"`
	ChatID    string                     `json:"chatId"`
	Data      map[string]json.RawMessage `json:"data,omitempty"`      // written
	ExpiresAt string                     `json:"expiresAt,omitempty"` // written
}

// Watch calls fn, in order, for every change from now on of the tenant's
// documents; chat and namespace "" stand for all. Events are at most once: after
// a lost connection read again. Unsubscribe to end it.
func (c *Client) Watch(chat, namespace string, fn func(Change)) (*nats.Subscription, error) {
	if err := subject.CheckTenant(c.tenant); err != nil {
		return nil, err
	}
	ns, token := "*", "*"
	if namespace != "" {
		if err := subject.CheckName("namespace", namespace); err != nil {
			return nil, err
		}
		ns = namespace
	}
	if chat != "" {
		if err := subject.CheckFree("chatId", chat); err != nil {
			return nil, err
		}
		token = subject.Escape(chat)
	}
	sub, err := c.nc.Subscribe(subject.ChangesToolState(c.tenant, ns, token), func(m *nats.Msg) {
		if ch, ok := change(m); ok {
			fn(ch)
		}
	})
	if err != nil {
		return nil, errcode.Wrap(errcode.Unavailable, err, "watch: %v", err)
	}
	return sub, nil
}

// change reads an event: a republished message of the bucket.
func change(m *nats.Msg) (Change, bool) {
	// …changes.toolstate.<tenant>.<namespace>.<chat>: the last three are the key.
	t := strings.Split(m.Subject, ".")
	key := strings.Join(t[max(0, len(t)-3):], ".")
	_, ns, chat, err := subject.ParseToolStateKey(key)
	if err != nil {
		return Change{}, false
	}
	ch := Change{Namespace: ns, ChatID: chat}
	switch {
	case m.Header.Get("KV-Operation") != "":
		ch.Kind = Cleared
	case m.Header.Get("Nats-Marker-Reason") == "MaxAge":
		ch.Kind = Expired
	case m.Header.Get("Nats-Marker-Reason") != "":
		ch.Kind = Cleared
	default:
		var d message.ToolStateDocument
		if json.Unmarshal(m.Data, &d) != nil {
			return Change{}, false
		}
		ch.Kind, ch.Data, ch.ExpiresAt = Written, d.Data, d.ExpiresAt
	}
	return ch, true
}
