package record

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
)

// Group is what every chunk of an append says about the whole of it, so that
// whoever finds the chunks behind the tail can finish the append or knows that
// nobody will. An append belongs to one revision, Base: it is committed as what
// follows that one, or never.
type Group struct {
	Base   uint64
	Index  int    // of this chunk, from 0
	Count  int    // of chunks
	Source string // chunk id under which the whole content stands too; "" when the one chunk is all
	Ops    []Op   // the operations with their answers; the same in every chunk
}

// NewKey makes the secret of a chunk id. Clients may publish under chunk ids of
// uploads, with any headers; what they cannot do is seal a Group.
func NewKey() string {
	b := make([]byte, 16)
	rand.Read(b) // never fails
	return base64.RawURLEncoding.EncodeToString(b)
}

// Seal writes the group as a header value that only a holder of key can make.
func (g Group) Seal(key string) string {
	s := fmt.Sprintf("%d %d %d %s %s", g.Base, g.Index, g.Count, g.Source, packOps(g.Ops))
	return s + " " + mac(s, key)
}

// OpenGroup reads what Seal wrote under the same key; false for anything else.
func OpenGroup(header, key string) (Group, bool) {
	cut := strings.LastIndexByte(header, ' ')
	if key == "" || cut < 0 || !hmac.Equal([]byte(header[cut+1:]), []byte(mac(header[:cut], key))) {
		return Group{}, false
	}
	f := strings.Split(header[:cut], " ")
	if len(f) != 5 {
		return Group{}, false
	}
	var g Group
	var errs [3]error
	g.Base, errs[0] = strconv.ParseUint(f[0], 10, 64)
	g.Index, errs[1] = strconv.Atoi(f[1])
	g.Count, errs[2] = strconv.Atoi(f[2])
	for _, err := range errs {
		if err != nil {
			return Group{}, false
		}
	}
	g.Source, g.Ops = f[3], unpackOps(f[4], 0)
	return g, len(g.Ops) > 0 && g.Index >= 0 && g.Index < g.Count && (g.Count == 1 || g.Source != "")
}

func mac(s, key string) string {
	h := hmac.New(sha256.New, []byte(key))
	h.Write([]byte(s))
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil)[:16])
}
