package record

import (
	"slices"

	"github.com/toolbus/toolbus/contracts/errcode"
)

// codes are the numbers of errors in a refused Op, which are stored: the list
// only ever grows. 0 is that there was nothing to do.
var codes = []errcode.Code{
	"", errcode.InvalidRequest, errcode.NotAllowed, errcode.NotFound, errcode.Conflict, errcode.TooLarge, errcode.QuotaExceeded,
	errcode.Internal,
}

// Refused remembers of an operation that it did nothing and will do nothing,
// with its answer: err, or nil when there was nothing to do. Fields at fault are
// not remembered.
func Refused(key OpKey, kind byte, at int64, err *errcode.Error) Op {
	op := Op{Key: key, Kind: KindRefused, At: at}
	code := 0
	if err != nil {
		if code = slices.Index(codes, err.Code); code < 0 {
			code = slices.Index(codes, errcode.Internal)
		}
		if d := err.Details; d != nil {
			switch {
			case d.Revision != nil:
				op.Revision = *d.Revision
			case d.Limit != nil && d.Actual != nil:
				op.Revision, op.Size = uint64(*d.Limit), *d.Actual
			}
		}
	}
	op.Bytes = int64(code)<<8 | int64(kind)
	return op
}

// Asked is the kind of operation that was asked for.
func (op Op) Asked() byte {
	if op.Kind == KindRefused {
		return byte(op.Bytes)
	}
	return op.Kind
}

// Refusal is the error that a refused operation on path was answered with; nil
// when it was none.
func (op Op) Refusal(path string) error {
	code := errcode.Internal // a number of later days
	if n := op.Bytes >> 8; op.Kind != KindRefused || n == 0 {
		return nil
	} else if n > 0 && n < int64(len(codes)) {
		code = codes[n]
	}
	switch code {
	case errcode.Conflict:
		return errcode.ConflictAt(op.Revision, "the change to %q was refused before: %q stood at revision %d", path, path, op.Revision)
	case errcode.TooLarge, errcode.QuotaExceeded:
		return errcode.OverLimit(code, int64(op.Revision), op.Size, "the change to %q was refused before: over the limit of %d with %d", path, op.Revision, op.Size)
	}
	return errcode.New(code, "the change to %q was refused before", path)
}
