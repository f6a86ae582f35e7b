package relabeling

import (
	"context"
	"fmt"
	"regexp"
	"strings"

	"github.com/toolbus/toolbus/pkg/tool"
)

type directionArgs struct {
	Direction string `json:"direction" jsonschema:"from which carrier to which, for example DHL->DPD"`
}

// SetRelabelDirection sets from which carrier to which the parcels go.
var SetRelabelDirection = tool.New("setRelabelDirection",
	"Sets from which carrier to which carrier this chat's parcels are relabeled. A later call replaces an earlier one.",
	func(ctx context.Context, call *tool.Call, in directionArgs) (tool.Result, error) {
		direction, err := parseDirection(in.Direction)
		if err != nil {
			return tool.Fail("%v", err), nil
		}
		if err := call.State(namespace).Set(ctx, keyDirection, direction); err != nil {
			return tool.Result{}, err
		}
		return tool.OK("the direction is %s", direction).WithData(map[string]string{keyDirection: direction}), nil
	})

const blanks = `[\s\p{Z}]*`

var directionForm = regexp.MustCompile(`^` + blanks + `([A-Za-z0-9]{1,32})` + blanks + `(?:[-–—=]+>|[→⇒➔])` + blanks + `([A-Za-z0-9]{1,32})` + blanks + `$`)

// parseDirection reads "DHL->DPD", "DHL → DPD" and the like and writes them as
// "DHL->DPD". The error is for the model.
func parseDirection(text string) (string, error) {
	m := directionForm.FindStringSubmatch(text)
	if m == nil {
		return "", fmt.Errorf("%.80q is not a direction; write the two carriers in letters and digits with an arrow between them, for example DHL->DPD", text)
	}
	if strings.EqualFold(m[1], m[2]) {
		return "", fmt.Errorf("%s->%s leads nowhere: the two carriers must differ", m[1], m[2])
	}
	return m[1] + "->" + m[2], nil
}
