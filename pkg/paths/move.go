package paths

import "github.com/toolbus/toolbus/contracts/errcode"

// CheckMove reports whether a file may be moved from one path to another: both
// must pass Check, and differ. The error names the field path or to.
func CheckMove(from, to string) error {
	if err := Check(from); err != nil {
		return err
	}
	if err := Check(to); err != nil {
		e := errcode.From(err)
		if e.Details == nil {
			return e
		}
		faults := make([]errcode.FieldFault, len(e.Details.Fields))
		for i, f := range e.Details.Fields {
			faults[i] = errcode.FieldFault{Field: "to", Message: f.Message}
		}
		return errcode.Fields(e.Code, faults...)
	}
	if from == to {
		return errcode.Field("to", "is where the file stands already")
	}
	return nil
}
