package store

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
	maxLimit  = 1000        // keys of a page
	pageTime  = time.Second // a page that took longer ends where it is
	fetchStep = 64          // values per request to the stream; at most 256 KiB each by default
	moreStep  = 256         // the same, after a request that read less than smallRead
	smallRead = 1 << 20     // bytes
)

// list returns the keys of values, sorted: all that fit one reply, or a page.
// The cursor is the last key, so what comes and goes between two pages neither
// repeats nor hides others. A page that took long ends where it is, perhaps
// without a key when many are gone that the stream still has a word of. Replicas
// may answer a little behind.
func (h *Handler) list(ctx context.Context, s scope, in *bus.Incoming) (any, error) {
	var req message.StoreList
	if err := in.Decode(&req); err != nil {
		return nil, err
	}
	if req.Prefix != "" {
		if err := subject.CheckFree("prefix", req.Prefix); err != nil {
			return nil, err
		}
	}
	if req.Limit < 0 || req.Limit > maxLimit {
		return nil, errcode.Field("limit", "%d is out of range: 1 to %d are allowed", req.Limit, maxLimit)
	}
	after, err := readCursor(req.Cursor)
	if err != nil {
		return nil, err
	}
	paged := req.Limit > 0 || req.Cursor != ""
	limit := cmp.Or(req.Limit, maxLimit)
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	all, err := h.bucket.Keys(ctx, s.tenant+"."+s.agent+"."+s.tool+".*")
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(all))
	for _, k := range all {
		name, err := subject.Unescape(k[strings.LastIndexByte(k, '.')+1:])
		if err == nil && strings.HasPrefix(name, req.Prefix) && name > after {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	keys, step := all[:0], fetchStep
	for _, n := range names {
		keys = append(keys, s.key(n))
	}
	if paged {
		step = min(step, limit+1)
	}
	out := message.StoreKeys{Keys: []string{}}
	prefix, size := len(s.key("")), int64(envelope)
	began, passed, ended, read := time.Now(), "", false, 0
	take := func(m bucket.Message) bool {
		read += len(m.Data)
		if m.Marker {
			return true
		}
		name, bad := subject.Unescape(m.Key[prefix:])
		if bad != nil {
			return true // not one of ours
		}
		size += int64(len(jsonText(name))) + 1
		switch over := size > h.replyLimit; {
		case paged && (over || len(out.Keys) == limit):
			out.Cursor = cursor(out.Keys[len(out.Keys)-1])
			ended = true
			return false
		case over:
			ended = true
			err = errcode.OverLimit(errcode.TooLarge, h.replyLimit, size, "the keys take more than the %d bytes of a reply: ask for pages with limit", h.replyLimit)
			return false
		}
		out.Keys = append(out.Keys, name)
		return true
	}
	for names := names; len(keys) > 0 && !ended; {
		if paged && passed != "" && time.Since(began) > h.pageTime {
			out.Cursor = cursor(passed)
			break
		}
		read, step = 0, min(step, len(keys))
		if failed := h.bucket.Fetch(ctx, keys[:step], step, take); failed != nil {
			return nil, failed
		}
		passed, names, keys = names[step-1], names[step:], keys[step:]
		if step = fetchStep; read < smallRead {
			step = moreStep // of values as small as those so far
		}
	}
	return out, err
}

// envelope is more than a reply takes beside its keys: a cursor has up to 342
// digits.
const envelope = 512

func jsonText(s string) []byte {
	b, _ := message.Marshal(s) // a string always has a JSON form
	return b
}

func cursor(last string) string { return base64.RawURLEncoding.EncodeToString([]byte(last)) }

func readCursor(s string) (after string, err error) {
	if s == "" {
		return "", nil
	}
	b, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil || subject.CheckFree("", string(b)) != nil {
		return "", errcode.Field("cursor", "is not one that a list returned")
	}
	return string(b), nil
}
