package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/pkg/bus"
)

// maxDepth limits how deep objects and arrays nest.
const maxDepth = 64

// decode reads one JSON value strictly: valid UTF-8, no duplicate keys, no
// lone surrogates, bounded depth, nothing after the value. Numbers stay as
// they are written. Duplicate keys are collected, so that all are named; any
// other fault ends it.
func decode(raw []byte) (any, []errcode.FieldFault, error) {
	if _, fault := bus.CheckText(raw, math.MaxInt); fault != "" {
		return nil, nil, errcode.Field("config", "%s", fault)
	}
	d := &decoder{dec: json.NewDecoder(bytes.NewReader(raw))}
	d.dec.UseNumber()
	v, err := d.value(nil)
	if err == nil {
		if _, end := d.dec.Token(); !errors.Is(end, io.EOF) {
			err = fmt.Errorf("something follows after its end, at byte %d", d.dec.InputOffset())
		}
	}
	if err != nil {
		var e *errcode.Error
		if errors.As(err, &e) {
			return nil, nil, e
		}
		return nil, nil, errcode.Field("config", "is not valid JSON: %s", jsonFault(err))
	}
	return v, d.faults, nil
}

type decoder struct {
	dec    *json.Decoder
	faults []errcode.FieldFault
}

func (d *decoder) value(at path) (any, error) {
	t, err := d.dec.Token()
	if err != nil {
		return nil, err
	}
	if _, ok := t.(json.Delim); ok && len(at) >= maxDepth {
		return nil, errcode.Field(at.String(), "nests deeper than %d levels", maxDepth)
	}
	switch t {
	case json.Delim('{'):
		m := map[string]any{}
		for d.dec.More() {
			k, err := d.dec.Token()
			if err != nil {
				return nil, err
			}
			key, _ := k.(string)
			here := at.key(key)
			v, err := d.value(here)
			if err != nil {
				return nil, err
			}
			if _, twice := m[key]; twice {
				d.faults = append(d.faults, errcode.FieldFault{Field: here.String(), Message: "stands here twice"})
			}
			m[key] = v
		}
		_, err = d.dec.Token()
		return m, err
	case json.Delim('['):
		a := []any{}
		for d.dec.More() {
			v, err := d.value(at.index(len(a)))
			if err != nil {
				return nil, err
			}
			a = append(a, v)
		}
		_, err = d.dec.Token()
		return a, err
	}
	return t, nil
}

// jsonFault says where the JSON is broken without quoting it.
func jsonFault(err error) string {
	var syn *json.SyntaxError
	switch {
	case errors.As(err, &syn):
		return "it breaks at byte " + strconv.FormatInt(syn.Offset, 10)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "it ends too early"
	}
	return err.Error()
}
