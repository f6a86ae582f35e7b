package members

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"regexp"
	"strconv"

	"github.com/toolbus/toolbus/pkg/tool"
)

const thumbnailSide = 64 // pixels

type thumbnailArgs struct {
	ID    string `json:"id" jsonschema:"names the picture: letters, digits, - and _"`
	Color string `json:"color" default:"#3366cc" jsonschema:"#rrggbb"`
}

type thumbnail struct {
	Path   string `json:"path"`
	Size   int64  `json:"size"` // bytes
	Width  int    `json:"width"`
	Height int    `json:"height"`
}

var (
	idForm    = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)
	colorForm = regexp.MustCompile(`^#[0-9A-Fa-f]{6}$`)
)

// SaveThumbnail draws a small picture and keeps it as thumbnails/<id>.png.
var SaveThumbnail = tool.New("saveThumbnail", "Draws a small picture in a color and saves it as a PNG file.",
	func(ctx context.Context, call *tool.Call, in thumbnailArgs) (tool.Result, error) {
		if !idForm.MatchString(in.ID) {
			return tool.Fail("id %.80q must be 1 to 64 letters, digits, - or _", in.ID), nil
		}
		if !colorForm.MatchString(in.Color) {
			return tool.Fail("color %.80q must have the form #rrggbb, for example #3366cc", in.Color), nil
		}
		picture, err := draw(in.Color)
		if err != nil {
			return tool.Result{}, err
		}
		w, err := write(ctx, call, writeArgs{
			Path:    "thumbnails/" + in.ID + ".png",
			Content: base64.StdEncoding.EncodeToString(picture), Encoding: "base64",
		})
		if err != nil {
			return failed(err)
		}
		return tool.Data(thumbnail{w.Path, w.Size, thumbnailSide, thumbnailSide}), nil
	})

// draw makes the PNG of a disc of the color, #rrggbb, on clear ground.
func draw(rgb string) ([]byte, error) {
	v, err := strconv.ParseUint(rgb[1:], 16, 32)
	if err != nil {
		return nil, fmt.Errorf("color %q: %w", rgb, err)
	}
	c := color.NRGBA{uint8(v >> 16), uint8(v >> 8), uint8(v), 0xff}
	img := image.NewNRGBA(image.Rect(0, 0, thumbnailSide, thumbnailSide))
	const r = thumbnailSide / 2
	for y := range thumbnailSide {
		for x := range thumbnailSide {
			if dx, dy := 2*x+1-2*r, 2*y+1-2*r; dx*dx+dy*dy <= 4*r*r {
				img.SetNRGBA(x, y, c)
			}
		}
	}
	var b bytes.Buffer
	err = png.Encode(&b, img)
	return b.Bytes(), err
}
