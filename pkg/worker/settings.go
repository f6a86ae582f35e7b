package worker

import (
	"encoding/json"
	"errors"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/contracts/message"
)

// settings are the tool's settings in an agent's configuration: secrets resolved,
// checked against the tool's schema, defaults filled in. A configuration may have been
// applied while another version of the tool was there, so what does not fit is the
// operator's mistake, never shown as the model's.
func (w *Worker) settings(h *hosted, entry message.ToolEntry) (json.RawMessage, redactor, error) {
	settings, redact, err := w.secrets.resolve(entry.Settings)
	if err != nil || h.own == nil {
		return settings, redact, err
	}
	settings, err = h.own.Check(settings)
	var bad *errcode.Error
	if !errors.As(err, &bad) {
		return settings, redact, err
	}
	faults := []errcode.FieldFault{{Field: "settings", Message: "do not fit"}}
	if bad.Details != nil && len(bad.Details.Fields) > 0 {
		faults = faults[:0]
		for _, f := range bad.Details.Fields {
			faults = append(faults, errcode.FieldFault{Field: "tools." + h.def.Name + "." + f.Field, Message: redact.text(f.Message)})
		}
	}
	return nil, redact, errcode.Fields(errcode.InvalidRequest, faults...)
}
