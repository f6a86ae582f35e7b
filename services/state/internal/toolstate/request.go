package toolstate

import (
	"bytes"
	"unicode/utf8"

	"github.com/toolbus/toolbus/contracts/message"
)

// readGet reads a get that is written as our own client does, with nothing to
// unescape, in a tenth of the time that decoding takes. Anything else is not
// read: it may be as good, or at fault.
func readGet(body []byte, req *message.ToolStateGet) bool {
	if !utf8.Valid(body) {
		return false
	}
	chat, rest, ok1 := text(body, `{"chatId":"`)
	namespace, rest, ok2 := text(rest, `","namespace":"`)
	key, rest, ok3 := text(rest, `","key":"`)
	if !ok1 || !ok2 || !ok3 || string(rest) != `"}` {
		return false
	}
	req.ChatID, req.Namespace, req.Key = string(chat), string(namespace), string(key)
	return true
}

// text is what stands between before and the next quotation mark, where rest
// begins.
func text(b []byte, before string) (found, rest []byte, ok bool) {
	b, ok = bytes.CutPrefix(b, []byte(before))
	n := bytes.IndexByte(b, '"')
	if !ok || n < 0 {
		return nil, nil, false
	}
	for _, c := range b[:n] {
		if c == '\\' || c < ' ' {
			return nil, nil, false
		}
	}
	return b[:n], b[n:], true
}
