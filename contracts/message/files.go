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
// a version that is gone meanwhile is a conflict instead of a mixture. (A file
// that only grew still has its recent versions.)
type FileRead struct {
	Path     string  `json:"path"`
	Encoding string  `json:"encoding,omitempty"`
	Offset   int64   `json:"offset,omitempty"`
	Length   *int64  `json:"length,omitempty"` // absent: to the end
	Revision *uint64 `json:"revision,omitempty"`
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
	Size     int64   `json:"size"`               // bytes of the whole file
	Modified string  `json:"modified,omitempty"` // RFC 3339, UTC
	Revision uint64  `json:"revision,omitempty"`
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

// FileDelete removes a file.
type FileDelete struct {
	Path       string  `json:"path"`
	IfRevision *uint64 `json:"ifRevision,omitempty"`
	OpID       string  `json:"opId,omitempty"`
}

// FileDeleted answers FileDelete; Deleted is false when there was nothing.
type FileDeleted struct {
	Deleted bool `json:"deleted"`
}
