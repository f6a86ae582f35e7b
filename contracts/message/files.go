package message

// Encodings of file content in messages.
const (
	EncodingUTF8   = "utf8"   // default
	EncodingBase64 = "base64" // standard alphabet, padded
)

// Modes of a write.
const (
	ModeOverwrite = "overwrite" // default
	ModeAppend    = "append"
	ModeCreate    = "create" // conflict when the file exists
)

// FileWrite writes a file. Content travels in the message, or, when Upload is
// set, was published before in chunks (see FileUpload).
type FileWrite struct {
	Path       string      `json:"path"`
	Content    string      `json:"content"`
	Encoding   string      `json:"encoding,omitempty"`
	Mode       string      `json:"mode,omitempty"`
	IfRevision *uint64     `json:"ifRevision,omitempty"` // 0: must not exist
	Upload     *FileChunks `json:"upload,omitempty"`
	OpID       string      `json:"opId,omitempty"`
}

// FileChunks are the finished chunks of an upload.
type FileChunks struct {
	UploadID string `json:"uploadId"`
	Chunks   int    `json:"chunks"`
	Size     int64  `json:"size"`   // bytes
	SHA256   string `json:"sha256"` // lower-case hex, of the whole upload
	// SHA256State is the running hash that ends in SHA256, in base64, as Go's
	// crypto/sha256 marshals it. With it the service need not read the upload
	// again to be able to append to it: it then checks number, order and size of
	// the chunks, and whoever reads the file checks the digest. Without it the
	// service reads everything and checks the digest itself.
	SHA256State string `json:"sha256State,omitempty"`
}

// FileWritten answers FileWrite.
type FileWritten struct {
	Path         string `json:"path"`
	Mode         string `json:"mode"`
	BytesWritten int64  `json:"bytesWritten"`
	Size         int64  `json:"size"`
	Revision     uint64 `json:"revision"`
}

// FileUpload opens an upload: the client then publishes chunks of at most
// ChunkSize bytes, numbered by HeaderChunk, to the tenant's chunk subject, and
// commits them with a FileWrite.
type FileUpload struct {
	Path string `json:"path"`
	Size int64  `json:"size,omitempty"` // bytes, when known: refused early when over a limit
}

// FileUploadOpened answers FileUpload.
type FileUploadOpened struct {
	UploadID  string `json:"uploadId"`
	ChunkSize int    `json:"chunkSize"` // bytes
}

// FileRead reads a file, or length bytes of it from offset. A reply never
// holds more than fits a message: Length in the reply's FileContent says how
// much it does; read on from there with Revision set to the first reply's, and
// a version that is gone meanwhile is a conflict instead of a mixture. A file
// that only grew still has its versions; of one that is not among the recent ones
// the size is forgotten, and Length must be given.
type FileRead struct {
	Path     string  `json:"path"`
	Encoding string  `json:"encoding,omitempty"`
	Offset   int64   `json:"offset,omitempty"`
	Length   *int64  `json:"length,omitempty"` // absent: to the end
	Revision *uint64 `json:"revision,omitempty"`
	// Direct asks that the content comes straight from where it is stored, and
	// not in the reply; a service may overlook it.
	Direct *FileDirect `json:"direct,omitempty"`
}

// FileDirect asks for one window of a file's chunks. The service answers with
// FileContent.Direct and has JetStream send the chunks to DeliverTo, where they
// may arrive before that answer: the raw bytes of a chunk each, as replies of a
// direct batch get. The last value of header Nats-Sequence is the chunk's
// sequence, HeaderChunk its number when it has one; a message without
// Nats-Sequence has Status 204 at the window's end, and another one when it
// could not be sent. Ask for the next window when this one is through: that
// keeps what is under way below MaxBytes.
//
// What does not arrive (a window is sent at most once) or is not the chunk that
// has its turn is asked for again; in the end read without Direct.
type FileDirect struct {
	// DeliverTo is an inbox that the client listens to: its first token begins
	// with _INBOX. Use a fresh one for each window.
	DeliverTo string `json:"deliverTo"`
	// MaxBytes ends the window; absent: as much as the service allows, 8 MiB. The
	// first chunk comes in any case.
	MaxBytes int64 `json:"maxBytes,omitempty"`
	// MaxChunks ends it too; absent: as much as the service allows, 2,048.
	MaxChunks int `json:"maxChunks,omitempty"`
	// From is where the next chunk stands, when the client knows; it then begins
	// at or before Offset.
	From *FilePlace `json:"from,omitempty"`
}

// FilePlace is where a chunk begins.
type FilePlace struct {
	ID       string `json:"id"`       // of the file's chunks
	Chunk    int    `json:"chunk"`    // its number, from 0
	Offset   int64  `json:"offset"`   // byte of the file
	Sequence uint64 `json:"sequence"` // its sequence in the stream, or a lower one: that of the chunk before, plus 1
}

// FileContent answers FileRead. A missing file is no error: Exists is false
// and Content null.
type FileContent struct {
	Exists   bool    `json:"exists"`
	Path     string  `json:"path"`
	Content  *string `json:"content"`
	Encoding string  `json:"encoding,omitempty"`
	Offset   int64   `json:"offset,omitempty"`
	Length   int64   `json:"length,omitempty"`   // bytes of the file in Content
	Size     int64   `json:"size"`               // bytes of the whole file; of a forgotten version, what was asked for
	Modified string  `json:"modified,omitempty"` // RFC 3339, UTC
	Revision uint64  `json:"revision,omitempty"`
	// SHA256 is the whole file's, in lower-case hex; absent for a version whose
	// digest is not kept.
	SHA256 string `json:"sha256,omitempty"`
	// Direct is where the window begins that is on its way to the client; Content
	// is then null.
	Direct *FilePlace `json:"direct,omitempty"`
}

// FileStat asks for a file's particulars.
type FileStat struct {
	Path string `json:"path"`
}

// FileInfo answers FileStat and is an entry of FileListing.
type FileInfo struct {
	Exists   bool   `json:"exists"`
	Path     string `json:"path"`
	Size     int64  `json:"size"`
	Modified string `json:"modified,omitempty"`
	Revision uint64 `json:"revision,omitempty"`
	SHA256   string `json:"sha256,omitempty"` // lower-case hex
}

// FileList lists files by path prefix, in path order.
type FileList struct {
	Prefix string `json:"prefix,omitempty"`
	Cursor string `json:"cursor,omitempty"`
	Limit  int    `json:"limit,omitempty"`
}

// FileListing answers FileList; Cursor is set when there is more.
type FileListing struct {
	Files  []FileInfo `json:"files"`
	Cursor string     `json:"cursor,omitempty"`
}

// FileMove gives a file another path. Its content is not copied. It is conflict
// when there is a file at To, unless Overwrite is set, and not_found when there is
// none at Path.
type FileMove struct {
	Path       string  `json:"path"`
	To         string  `json:"to"`
	IfRevision *uint64 `json:"ifRevision,omitempty"` // of the file at Path
	Overwrite  bool    `json:"overwrite,omitempty"`
	OpID       string  `json:"opId,omitempty"`
}

// FileMoved answers FileMove, with the file's new path and revision.
type FileMoved struct {
	Path     string `json:"path"`
	Size     int64  `json:"size"`
	Revision uint64 `json:"revision"`
}

// FileVersions asks which versions of a file can be read and restored.
type FileVersions struct {
	Path string `json:"path"`
}

// FileVersionList answers FileVersions: the current version first, then older
// ones, newest first; none when there is no file. Read one with FileRead.Revision.
type FileVersionList struct {
	Path     string        `json:"path"`
	Versions []FileVersion `json:"versions"`
}

// FileVersion is one version of a file.
type FileVersion struct {
	Revision uint64 `json:"revision"`
	Size     int64  `json:"size"`
	Modified string `json:"modified"`         // RFC 3339, UTC
	SHA256   string `json:"sha256,omitempty"` // lower-case hex
}

// FileRestore makes a kept version of a file its content again, with a new
// revision; not_found when it is not kept. The content is copied, and counts
// again. What the file was until then is kept, as with any other change.
type FileRestore struct {
	Path       string  `json:"path"`
	Revision   uint64  `json:"revision"`             // the version to restore
	IfRevision *uint64 `json:"ifRevision,omitempty"` // that the file is at
	OpID       string  `json:"opId,omitempty"`
}

// FileRestored answers FileRestore.
type FileRestored struct {
	Path     string `json:"path"`
	Size     int64  `json:"size"`
	Revision uint64 `json:"revision"` // the new one
}

// FileDelete removes a file and the versions of it that are kept.
type FileDelete struct {
	Path       string  `json:"path"`
	IfRevision *uint64 `json:"ifRevision,omitempty"`
	OpID       string  `json:"opId,omitempty"`
}

// FileDeleted answers FileDelete; Deleted is false when there was nothing.
type FileDeleted struct {
	Deleted bool `json:"deleted"`
}
