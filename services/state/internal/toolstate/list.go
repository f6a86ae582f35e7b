package toolstate

import (
	"cmp"
	"context"
	"encoding/base64"
	"slices"
	"strings"
	"time"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
	"github.com/toolbus/toolbus/services/state/internal/bucket"
)

const (
	defaultLimit = 100
	maxLimit     = 1000
	pageTime     = time.Second // a page that took longer ends where it is
	fetchStep    = 128         // documents per request to the stream; at most 64 KiB each by default
)

// list returns live documents, ordered by namespace and chat id: as many as were
// asked for and fit a reply. The cursor is the last one's place in that order, so
// what comes and goes between two pages neither repeats nor hides others. A page
// that took long ends where it is, perhaps without a document when many are gone
// that the stream still has a word of. Replicas may answer a little behind.
func (h *Handler) list(ctx context.Context, tenant string, in *bus.Incoming) (any, error) {
	var req message.ToolStateList
	if err := in.Decode(&req); err != nil {
		return nil, err
	}
	filter := tenant
	if req.Namespace != "" {
		if err := subject.CheckName("namespace", req.Namespace); err != nil {
			return nil, err
		}
	}
	if req.ChatID != "" {
		if err := subject.CheckFree("chatId", req.ChatID); err != nil {
			return nil, err
		}
	}
	filter += "." + cmp.Or(req.Namespace, "*") + "." + cmp.Or(subject.Escape(req.ChatID), "*")
	if req.Limit < 0 || req.Limit > maxLimit {
		return nil, errcode.Field("limit", "%d is out of range: 1 to %d are allowed", req.Limit, maxLimit)
	}
	limit := cmp.Or(req.Limit, defaultLimit)
	after, err := readCursor(req.Cursor)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	keys, err := h.bucket.Keys(ctx, filter)
	if err != nil {
		return nil, err
	}
	var places []place
	for _, k := range keys {
		_, ns, chat, err := subject.ParseToolStateKey(k)
		if err != nil {
			continue // not one of ours
		}
		if p := (place{ns, chat, k}); p.compare(after) > 0 {
			places = append(places, p)
		}
	}
	slices.SortFunc(places, place.compare)
	keys = keys[:0]
	at := make(map[string]place, len(places))
	for _, p := range places {
		keys = append(keys, p.key)
		at[p.key] = p
	}
	out := message.ToolStateListing{Documents: []message.ToolStateEntry{}}
	last, size := after, int64(envelope)
	began, step := time.Now(), min(fetchStep, limit+1)
	take := func(m bucket.Message) bool {
		d, rev, expires, err := h.live(m)
		if err != nil || rev == 0 {
			return true // unreadable, cleared or expired
		}
		here := at[m.Key]
		entry := message.ToolStateEntry{
			Namespace: here.namespace, ChatID: here.chat, Keys: d.Len(), Revision: rev, ExpiresAt: stamp(expires),
		}
		size += jsonSize(entry)
		if n := len(out.Documents); n == limit || n > 0 && size > h.replyLimit {
			out.Cursor = last.cursor()
			return false
		}
		last = here
		out.Documents = append(out.Documents, entry)
		return true
	}
	for part := range slices.Chunk(keys, step) {
		if last != after && time.Since(began) > h.pageTime {
			out.Cursor = last.cursor()
			break
		}
		if err := h.bucket.Fetch(ctx, part, step, take); err != nil {
			return nil, err
		}
		if out.Cursor != "" {
			break
		}
		last = at[part[len(part)-1]] // however many are gone, the next page goes on here
	}
	return out, nil
}

// envelope is more than a reply takes beside its documents: a cursor has up to
// 428 digits.
const envelope = 512

// jsonSize is what an entry takes in a reply, with a comma.
func jsonSize(e message.ToolStateEntry) int64 {
	b, _ := message.Marshal(e) // always has a JSON form
	return int64(len(b)) + 1
}

// place is a document's place in the order of a listing.
type place struct{ namespace, chat, key string }

func (p place) compare(q place) int {
	return cmp.Or(cmp.Compare(p.namespace, q.namespace), cmp.Compare(p.chat, q.chat))
}

func (p place) cursor() string {
	return base64.RawURLEncoding.EncodeToString([]byte(p.namespace + "\n" + p.chat))
}

func readCursor(s string) (place, error) {
	if s == "" {
		return place{}, nil
	}
	b, err := base64.RawURLEncoding.DecodeString(s)
	ns, chat, ok := strings.Cut(string(b), "\n")
	if err != nil || !ok || subject.CheckName("", ns) != nil || subject.CheckFree("", chat) != nil {
		return place{}, errcode.Field("cursor", "is not one that a listing returned")
	}
	return place{namespace: ns, chat: chat}, nil
}
