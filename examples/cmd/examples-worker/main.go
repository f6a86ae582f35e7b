// Command examples-worker hosts the example tools:
//
//	examples-worker --server nats://127.0.0.1:4222
package main

import (
	"slices"

	"github.com/toolbus/toolbus/examples/inbox"
	"github.com/toolbus/toolbus/examples/members"
	"github.com/toolbus/toolbus/examples/relabeling"
	"github.com/toolbus/toolbus/pkg/worker"
)

func main() { worker.Main(slices.Concat(relabeling.Tools(), members.Tools(), inbox.Tools())...) }
