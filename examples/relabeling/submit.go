package relabeling

import (
	"bytes"
	"cmp"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/toolbus/toolbus/pkg/tool"
)

type submitted struct {
	Path      string `json:"path"`
	Codes     int    `json:"codes"`
	Direction string `json:"direction"`
}

// SubmitRelabeling writes the collected codes to a CSV file in relabeling/ and
// starts afresh.
//
// First it writes the file, then it takes the codes it wrote out of the scratch
// pad, in one atomic step that happens only if they still stand there. Clear
// would be simpler, and lose what comes in between. So:
//
//   - a code added meanwhile stays for the next file;
//   - of two submits at once one wins, and the other takes its file back;
//   - when the write fails, or the call breaks off before the end, nothing is
//     lost: the codes are still there. A file written by then stays behind, and
//     its codes stand in the next one too. Taking the codes first would lose
//     them instead, which is worse for parcels.
var SubmitRelabeling = tool.New("submitRelabeling",
	"Hands in this chat's collected tracking codes for relabeling and starts a new list. Needs at least one code and a direction.",
	func(ctx context.Context, call *tool.Call, _ struct{}) (tool.Result, error) {
		state := call.State(namespace)
		list, direction, err := collected(ctx, state)
		if err != nil {
			return tool.Result{}, err
		}
		switch {
		case len(list) == 0:
			return tool.Fail("no codes have been collected in this chat; add each one with addTrackingCode first"), nil
		case direction == "":
			return tool.Fail("there is no direction yet for %s; ask from which carrier to which, and set it with setRelabelDirection", codes(len(list))), nil
		}
		table, err := table(direction, list)
		if err != nil {
			return tool.Result{}, err
		}
		path := fileName(call)
		wrote, err := call.Call(ctx, "writeFile", map[string]string{"path": path, "content": string(table), "mode": "create"})
		if err != nil {
			return tool.Result{}, err
		}
		if !wrote.Success {
			return tool.Fail("the list could not be written, and is still there: %s", wrote.ErrorMessage), nil
		}
		if err := take(ctx, state, list); errors.Is(err, errTaken) {
			if _, err := call.Files().Delete(ctx, path); err != nil {
				return tool.Result{}, fmt.Errorf("take back %s, whose codes another submit handed in: %w", path, err)
			}
			return tool.Fail("another submit of this chat handed in these codes at the same moment"), nil
		} else if err != nil {
			return tool.Result{}, err
		}
		if err := finish(ctx, state, direction); err != nil {
			// The codes are handed in: that is what the model must hear.
			call.Log.Warn("the direction stays for the next list", "err", err)
		}
		return tool.OK("%s handed in for %s as %s", codes(len(list)), direction, path).
			WithData(submitted{path, len(list), direction}), nil
	})

// collected reads both keys as they stand at one moment.
func collected(ctx context.Context, state tool.State) (list []string, direction string, err error) {
	all, err := state.All(ctx)
	if err != nil {
		return nil, "", err
	}
	if list, err = read[[]string](all[keyCodes]); err == nil {
		direction, err = read[string](all[keyDirection])
	}
	return list, direction, err
}

// table is the CSV file of a list.
func table(direction string, list []string) ([]byte, error) {
	var b bytes.Buffer
	w := csv.NewWriter(&b)
	rows := [][]string{{"code", "direction"}}
	for _, code := range list {
		rows = append(rows, []string{code, direction})
	}
	err := w.WriteAll(rows)
	return b.Bytes(), err
}

// fileName is another one each time, also when one call runs twice: what a
// submit takes back must be its own file.
func fileName(call *tool.Call) string {
	return fmt.Sprintf("relabeling/%s-%s.csv", call.Now().UTC().Format("20060102T150405.000000000Z"), call.ID)
}

var errTaken = errors.New("the codes are no longer there")

// take removes the list from the front of the collected codes; errTaken when it
// is not there. Others only ever add at the end.
func take(ctx context.Context, state tool.State, list []string) error {
	return state.Update(ctx, keyCodes, func(old json.RawMessage) (any, error) {
		now, err := read[[]string](old)
		if err != nil {
			return nil, err
		}
		if len(now) < len(list) || !slices.Equal(now[:len(list)], list) {
			return nil, errTaken
		}
		return now[len(list):], nil
	})
}

var errBegun = errors.New("the next list has begun")

// finish leaves nothing of a list that was handed in, unless the next one has
// begun meanwhile. State.Clear could not tell. Each step is atomic and gives way
// to whoever wrote in between; the last takes the last key, and so the document.
func finish(ctx context.Context, state tool.State, direction string) error {
	err := state.Update(ctx, keyDirection, func(old json.RawMessage) (any, error) {
		if now, err := read[string](old); err != nil || now != direction {
			return nil, cmp.Or(err, errBegun)
		}
		return nil, nil
	})
	if err == nil {
		err = state.Update(ctx, keyCodes, func(old json.RawMessage) (any, error) {
			if now, err := read[[]string](old); err != nil || len(now) > 0 {
				return nil, cmp.Or(err, errBegun)
			}
			if _, now, err := collected(ctx, state); err != nil || now != "" {
				return nil, cmp.Or(err, errBegun)
			}
			return nil, nil
		})
	}
	if errors.Is(err, errBegun) {
		return nil
	}
	return err
}

// read is a key's value; the zero value when it is missing.
func read[T any](raw json.RawMessage) (v T, err error) {
	if raw != nil {
		err = json.Unmarshal(raw, &v)
	}
	return v, err
}

func codes(n int) string {
	if n == 1 {
		return "1 code"
	}
	return fmt.Sprintf("%d codes", n)
}
