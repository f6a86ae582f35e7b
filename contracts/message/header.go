package message

// NATS headers that Toolbus sets or reads.
const (
	// HeaderErrorCode and HeaderError are the NATS micro error headers.
	HeaderErrorCode = "Nats-Service-Error-Code"
	HeaderError     = "Nats-Service-Error"

	// HeaderTrace is the W3C trace context, passed on unchanged.
	HeaderTrace = "traceparent"

	// HeaderBeats with value "1" on a call asks for beats on the call's
	// progress subject: one at once and one every second while it runs. On a
	// job's run the call id stands in HeaderCallID.
	HeaderBeats = "Toolbus-Beats"

	// HeaderFirstBeat beside HeaderBeats lets the worker take its time, in
	// milliseconds, at most 1,000, for the first beat: a call that ends sooner
	// costs none. Workers may overlook it.
	HeaderFirstBeat = "Toolbus-First-Beat"

	// HeaderBlob replaces a body that is larger than the server's max_payload:
	// the body is empty and this header holds a Blob as JSON.
	HeaderBlob = "Toolbus-Blob"

	// HeaderCallID repeats the call id of a call whose body is a Blob, so that
	// beats can begin before the body is there; on a job's run it is where beats go.
	HeaderCallID = "Toolbus-Call-Id"

	// HeaderChunk numbers a blob's or upload's chunks, from 0.
	HeaderChunk = "Toolbus-Chunk"

	// HeaderDepth counts tool-to-tool hops, so that tools calling each other in
	// a circle end with an error. Absent means 0.
	HeaderDepth = "Toolbus-Depth"

	// HeaderHanded on a call that a full worker hands to an idle one says on which subject
	// it came. It is handed on once.
	HeaderHanded = "Toolbus-Handed"

	// HeaderRetry on a change with an opId says that it may have been received
	// before, and how many milliseconds ago it was first sent. When so much was
	// written since then that the service does not know any more, it answers
	// timeout, not retryable, instead of doing it again.
	HeaderRetry = "Toolbus-Retry"
)

// MaxBlobChunks is the most chunks of one Blob.
const MaxBlobChunks = 4096

// Blob describes a spilled body: its chunks stand under the sender's blob
// subject and are fetched with FetchRequest.
type Blob struct {
	ID     string `json:"id"`
	Size   int64  `json:"size"`   // bytes
	Chunks int    `json:"chunks"` // numbered 0 to chunks-1; at most MaxBlobChunks
	SHA256 string `json:"sha256"` // lower-case hex, of the whole body
}

// FetchRequest asks for one chunk of a blob. The reply's body is the chunk,
// raw.
type FetchRequest struct {
	Chunk int `json:"chunk"`
}
