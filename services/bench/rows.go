package main

import "strings"

// payload is what most operations carry.
var payload = strings.Repeat("0123456789", 20)

// rows are all measurements, in the order of the table. A baseline is the least
// that NATS needs for the same: an operation through a service is a request and
// what the service itself asks of JetStream.
func rows() []row {
	return []row{
		{
			name: "call.c1", baseline: "nats.request.c1", callers: 1,
			base: []setup{request}, ours: call,
			how: "agent calls a tool in another process, 200 bytes each way / a request",
		},
		{
			name: "call.c64", baseline: "nats.request.c64", callers: 64,
			base: []setup{request}, ours: call,
			how: "the same by 64 callers on one connection",
		},
		{
			name: "toolstate.get.c1", baseline: "nats.request+kv.get.c1", callers: 1,
			base: []setup{request, kvGet}, ours: stateGet,
			how: "get a value of 200 bytes through the state service / a request, then a KV get",
		},
		{
			name: "toolstate.get.c64", baseline: "nats.request+kv.get.c64", callers: 64,
			base: []setup{request, kvGet}, ours: stateGet,
			how: "the same by 64 callers, each with a document (a key) of its own",
		},
		{
			name: "toolstate.set.c1", baseline: "nats.request+kv.update.c1", callers: 1,
			base: []setup{request, kvUpdate}, ours: stateSet,
			how: "set a value of 200 bytes through the state service / a request, then a KV update (compare-and-set)",
		},
		{
			name: "toolstate.append.c1", baseline: "nats.request+kv.update.c1", callers: 1,
			base: []setup{request, kvUpdate}, ours: stateAppend,
			how: "append to a list, in a new document every 16 / a request, then a KV update",
		},
		{
			name: "toolstate.contended", baseline: "toolstate.append.alone", callers: 32, alone: true,
			base: []setup{stateAppendTogether("alone")}, ours: stateAppendTogether("contended"),
			how: "32 callers append to one document, in a new one every 256 appends / one caller does",
		},
		{
			name: "files.read.1k", baseline: "nats.request+2get.1k", callers: 1,
			base: []setup{request, lastMsg, lastMsg}, ours: fileRead,
			how: "read a file of 1 KiB through the files service / a request, then two direct gets of 1 KiB",
		},
		{
			name: "files.write.1k", baseline: "nats.request+2publish.1k", callers: 1,
			base: []setup{request, publish, publish}, ours: fileWrite,
			how: "overwrite a file of 1 KiB through the files service / a request, then two publishes of 1 KiB with their acknowledgements",
		},
		{
			name: "files.append", baseline: "nats.request+2publish.line", callers: 1,
			base: []setup{request, publishLine, publishLine}, ours: fileAppend("append.log"),
			how: "append a line of 200 bytes to a file through the files service / a request, then two publishes of 200 bytes",
		},
		{
			name: "files.append.100m", baseline: "files.append.empty", callers: 1,
			base: []setup{fileAppend("empty.log")}, ours: fileAppendLarge,
			how: "append a line to a file of 100 MB / to one that was empty at first",
		},
		{
			name: "files.read.appended", baseline: "files.read.whole", callers: 1, bytes: appendedBytes, every: 3,
			base: []setup{fileReadWhole}, ours: fileReadAppended,
			how: "read a file of 100,000 lines of 100 bytes, each appended by itself / the same bytes, written at once",
		},
		{
			name: "files.read.100m", baseline: "objectstore.get.100m", callers: 1, bytes: largeBytes, every: 2,
			base: []setup{objectGet}, ours: fileGetLarge,
			how: "read a file of 100 MB / nats.go's ObjectStore Get",
		},
		{
			name: "files.write.100m", baseline: "objectstore.put.100m", callers: 1, bytes: largeBytes, every: 2,
			base: []setup{objectPut}, ours: filePutLarge,
			how: "write a file of 100 MB / nats.go's ObjectStore Put",
		},
		{
			name: "wake.c1", baseline: "nats.request+consume.c1", callers: 1,
			base: []setup{request, consume}, ours: wake,
			how: "from asking the scheduler for a wake until the agent's handler has it / a request, then a publish until a durable consumer has it",
		},
	}
}
