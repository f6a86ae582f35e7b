package bus

import (
	"strings"

	"github.com/toolbus/toolbus/contracts/subject"
)

// answerable tells whether a request's reply subject is an inbox, as far as one
// can see.
//
// NATS does not check reply subjects against a client's permissions: it is the
// one who answers that publishes there, with permissions of its own. A request
// whose reply subject is another tenant's subject would have us put a question
// or a submitted call to that tenant's tools. What comes of such a trick without
// us, the acknowledgement of a stream or a reply of the micro protocol, has no
// reply subject itself, and is no request.
func answerable(reply string) bool {
	return reply != "" && !strings.HasPrefix(reply, subject.Prefix) && !strings.HasPrefix(reply, "$")
}
