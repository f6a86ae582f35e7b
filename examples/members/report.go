package members

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/toolbus/toolbus/pkg/tool"
)

const (
	megabyte     = 1 << 20 // bytes
	maxMegabytes = 10
)

type reportArgs struct {
	Name      string  `json:"name" jsonschema:"names the report: letters, digits, - and _"`
	Megabytes float64 `json:"megabytes" jsonschema:"its size in megabytes, at most 10"`
}

type report struct {
	Path   string `json:"path"`
	Size   int    `json:"size"`   // bytes
	SHA256 string `json:"sha256"` // lower-case hex
}

// ArchiveReport writes a report of up to 10 MB to reports/<name>.txt, reads it
// back and compares: content of that size passes through tools whole.
var ArchiveReport = tool.New("archiveReport", "Writes a large report, checks that it can be read back, and tells its size and checksum.",
	func(ctx context.Context, call *tool.Call, in reportArgs) (tool.Result, error) {
		if !idForm.MatchString(in.Name) {
			return tool.Fail("name %.80q must be 1 to 64 letters, digits, - or _", in.Name), nil
		}
		if in.Megabytes <= 0 || in.Megabytes > maxMegabytes {
			return tool.Fail("megabytes is %g, must be more than 0 and at most %d", in.Megabytes, maxMegabytes), nil
		}
		text := reportText(in.Name, int(in.Megabytes*megabyte))
		path := "reports/" + in.Name + ".txt"
		if _, err := write(ctx, call, writeArgs{Path: path, Content: text}); err != nil {
			return failed(err)
		}
		call.Progress(map[string]string{"step": "written"})
		f, err := read(ctx, call, path)
		if err != nil {
			return failed(err)
		}
		if !f.Exists || *f.Content != text {
			return tool.Fail("%s was written but reads back differently; another call may have replaced it", path), nil
		}
		sum := sha256.Sum256([]byte(text))
		return tool.Data(report{path, len(text), hex.EncodeToString(sum[:])}), nil
	})

// reportText is always the same for a name and size, in bytes.
func reportText(name string, size int) string {
	var b strings.Builder
	b.Grow(size + 128)
	for line := 1; b.Len() <= size; line++ {
		fmt.Fprintf(&b, "%s, line %07d: attendance, fees and results – all entered as reported\n", name, line)
	}
	text, end := b.String(), size
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + strings.Repeat(".", size-end)
}
