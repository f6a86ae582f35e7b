// Package relabeling moves parcels from one carrier to another, over several
// turns of a chat: codes are scanned one by one (addTrackingCode), the
// direction is set at any time (setRelabelDirection), and in the end the lot is
// handed in as a CSV file (submitRelabeling).
//
// The three tools share the chat's scratch pad under the namespace relabeling,
// so that the model need not find the codes again in what was said:
//
//	{"codes": ["00340434757211819883", "8806096235386"], "direction": "DHL->DPD"}
package relabeling

import "github.com/toolbus/toolbus/pkg/tool"

const (
	namespace    = "relabeling"
	keyCodes     = "codes"
	keyDirection = "direction"
)

// Tools are the tools of this package.
func Tools() []tool.Tool {
	return []tool.Tool{AddTrackingCode, SetRelabelDirection, SubmitRelabeling}
}
