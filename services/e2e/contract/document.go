package contract

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"sigs.k8s.io/yaml"
)

// Document is the contract, ready to check messages with.
type Document struct {
	Channels   map[string]Channel
	Operations map[string]Operation
	Private    []string // subjects of the services' own
	tree       any
}

// Channel is a kind of subject.
type Channel struct {
	Key      string
	Address  string // with {parameters}; "" for your inbox
	Messages map[string]*Message
	tokens   []part
}

// Operation is what one may do on a channel.
type Operation struct {
	Key      string
	Action   string // send or receive
	Channel  string // key
	Messages []string
	Reply    []string // keys of the inbox's messages; none when nothing is answered
}

// Message is one kind of message.
type Message struct {
	Raw     bool // bytes, not JSON
	headers *jsonschema.Schema
	payload *jsonschema.Schema
}

type part struct {
	literal   string // or
	parameter string
	pattern   *regexp.Regexp
}

// Inbox is the key of the channel where replies arrive.
const Inbox = "inbox"

// Strict makes the document's closed reading: a field that it does not name is
// a fault, though readers on the wire ignore it.
const Strict = true

// Load reads the document; root is the repository's folder.
func Load(root string, strict bool) (*Document, error) {
	text, err := os.ReadFile(filepath.Join(root, Path))
	if err != nil {
		return nil, err
	}
	asJSON, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", Path, err)
	}
	tree, err := jsonschema.UnmarshalJSON(bytes.NewReader(asJSON))
	if err != nil {
		return nil, err
	}
	d := &Document{Channels: map[string]Channel{}, Operations: map[string]Operation{}, tree: tree}
	var raw struct {
		Private  []string `json:"x-private-subjects"`
		Channels map[string]struct {
			Address    *string        `json:"address"`
			Parameters map[string]any `json:"parameters"`
			Messages   map[string]any `json:"messages"`
		} `json:"channels"`
		Operations map[string]struct {
			Action   string `json:"action"`
			Channel  ref    `json:"channel"`
			Messages []ref  `json:"messages"`
			Reply    *struct {
				Channel  ref   `json:"channel"`
				Messages []ref `json:"messages"`
			} `json:"reply"`
		} `json:"operations"`
		Components struct {
			Schemas map[string]map[string]any `json:"schemas"`
		} `json:"components"`
	}
	if err := json.Unmarshal(asJSON, &raw); err != nil {
		return nil, fmt.Errorf("%s: %w", Path, err)
	}
	d.Private = raw.Private
	if strict {
		for _, s := range lookup(tree, "#/components/schemas").(map[string]any) {
			closeObject(s)
		}
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft7)
	c.AssertFormat()
	if err := c.AddResource(base, tree); err != nil {
		return nil, err
	}
	for key, ch := range raw.Channels {
		out := Channel{Key: key, Messages: map[string]*Message{}}
		if ch.Address != nil {
			out.Address = *ch.Address
			if out.tokens, err = d.address(out.Address, ch.Parameters); err != nil {
				return nil, fmt.Errorf("channel %s: %w", key, err)
			}
		}
		for name := range ch.Messages {
			m, err := d.message(c, "#/channels/"+key+"/messages/"+name)
			if err != nil {
				return nil, fmt.Errorf("channel %s, message %s: %w", key, name, err)
			}
			out.Messages[name] = m
		}
		d.Channels[key] = out
	}
	for key, op := range raw.Operations {
		out := Operation{Key: key, Action: op.Action, Channel: op.Channel.last()}
		if err := d.messages(&out.Messages, op.Channel, op.Messages); err != nil {
			return nil, fmt.Errorf("operation %s: %w", key, err)
		}
		if op.Reply != nil {
			if op.Reply.Channel.last() != Inbox {
				return nil, fmt.Errorf("operation %s: replies go to the inbox", key)
			}
			if err := d.messages(&out.Reply, op.Reply.Channel, op.Reply.Messages); err != nil {
				return nil, fmt.Errorf("operation %s, reply: %w", key, err)
			}
		}
		d.Operations[key] = out
	}
	return d, nil
}

const base = "urn:toolbus:v1:asyncapi"

type ref struct {
	Ref string `json:"$ref"`
}

func (r ref) last() string { return r.Ref[strings.LastIndexByte(r.Ref, '/')+1:] }

// messages checks that refs are messages of the channel, and notes their keys.
func (d *Document) messages(into *[]string, channel ref, refs []ref) error {
	ch, ok := d.Channels[channel.last()]
	if !ok || channel.Ref != "#/channels/"+ch.Key {
		return fmt.Errorf("%q is no channel", channel.Ref)
	}
	if len(refs) == 0 {
		return fmt.Errorf("names no message")
	}
	for _, r := range refs {
		if ch.Messages[r.last()] == nil || r.Ref != channel.Ref+"/messages/"+r.last() {
			return fmt.Errorf("%q is no message of %s", r.Ref, ch.Key)
		}
		*into = append(*into, r.last())
	}
	return nil
}

func (d *Document) address(address string, parameters map[string]any) ([]part, error) {
	unused := maps.Clone(parameters)
	var out []part
	for t := range strings.SplitSeq(address, ".") {
		name, ok := strings.CutPrefix(t, "{")
		if !ok {
			out = append(out, part{literal: t})
			continue
		}
		name = strings.TrimSuffix(name, "}")
		p, ok := resolve(d.tree, parameters[name]).(map[string]any)
		if !ok {
			return nil, fmt.Errorf("parameter %s is not described", name)
		}
		pattern, ok := p["x-pattern"].(string)
		if !ok || p["description"] == nil {
			return nil, fmt.Errorf("parameter %s has no x-pattern or description", name)
		}
		re, err := regexp.Compile(pattern)
		if err != nil {
			return nil, err
		}
		delete(unused, name)
		out = append(out, part{parameter: name, pattern: re})
	}
	if len(unused) > 0 {
		return nil, fmt.Errorf("parameters that the address does not have: %v", slices.Sorted(maps.Keys(unused)))
	}
	return out, nil
}

func (d *Document) message(c *jsonschema.Compiler, at string) (*Message, error) {
	// A message is a reference or stands where it is.
	if r, ok := lookup(d.tree, at).(map[string]any)["$ref"].(string); ok {
		at = r
	}
	m, ok := lookup(d.tree, at).(map[string]any)
	if !ok {
		return nil, fmt.Errorf("%s leads nowhere", at)
	}
	out := &Message{Raw: m["contentType"] == "application/octet-stream"}
	var err error
	if out.payload, err = c.Compile(base + at + "/payload"); err != nil {
		return nil, err
	}
	if m["headers"] != nil {
		out.headers, err = c.Compile(base + at + "/headers")
	}
	return out, err
}

// Match finds the channel of a subject: of several the one with more literal
// tokens. In a pattern of a subscription, "*" matches any parameter.
func (d *Document) Match(subject string) (Channel, bool) {
	t := strings.Split(subject, ".")
	var best Channel
	literals := -1
	for _, ch := range d.Channels {
		if n, ok := ch.match(t); ok && n > literals {
			best, literals = ch, n
		}
	}
	return best, literals >= 0
}

func (c Channel) match(subject []string) (literals int, ok bool) {
	if len(subject) != len(c.tokens) {
		return 0, false
	}
	for i, t := range c.tokens {
		switch {
		case t.pattern == nil && t.literal == subject[i]:
			literals++
		case t.pattern == nil:
			return 0, false
		case subject[i] != "*" && !t.pattern.MatchString(subject[i]):
			return 0, false
		}
	}
	return literals, true
}

// IsPrivate tells whether a subject is one of the services' own.
func (d *Document) IsPrivate(subject string) bool {
	return slices.ContainsFunc(d.Private, func(p string) bool {
		return strings.HasPrefix(subject, strings.TrimSuffix(p, ">"))
	})
}

// Replies are the keys of the messages that may answer a message of a channel;
// none when nothing does.
func (d *Document) Replies(channel string) []string {
	var out []string
	for _, op := range d.Operations {
		if op.Channel == channel {
			out = append(out, op.Reply...)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// HeaderBlob stands for a body that was stored in chunks.
const HeaderBlob = "Toolbus-Blob"

// Check checks a message against what the document says of it.
func (m *Message) Check(headers map[string][]string, body []byte) error {
	h := map[string]any{}
	for k, v := range headers {
		h[k] = v[0]
	}
	if m.headers != nil {
		if err := m.headers.Validate(h); err != nil {
			return fmt.Errorf("headers: %w", err)
		}
	}
	var v any = string(body)
	if !m.Raw {
		if _, spilled := h[HeaderBlob]; spilled && len(body) == 0 {
			return nil
		}
		if len(body) == 0 {
			body = []byte("{}") // as every service reads it
		}
		var err error
		if v, err = jsonschema.UnmarshalJSON(bytes.NewReader(body)); err != nil {
			return fmt.Errorf("body: %w", err)
		}
	}
	if err := m.payload.Validate(v); err != nil {
		return fmt.Errorf("body: %w", err)
	}
	return nil
}

// Schema compiles one of the document's schemas, for messages at rest.
func (d *Document) Schema(name string) (*jsonschema.Schema, error) {
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft7)
	c.AssertFormat()
	if err := c.AddResource(base, d.tree); err != nil {
		return nil, err
	}
	return c.Compile(base + "#/components/schemas/" + name)
}

// closeObject refuses fields that an object's schema does not name.
func closeObject(schema any) {
	if s, ok := schema.(map[string]any); ok && s["properties"] != nil && s["additionalProperties"] == nil && !isHeaders(s) {
		s["additionalProperties"] = false
	}
}

// isHeaders tells the schemas of headers, where NATS and tracing add their own.
func isHeaders(s map[string]any) bool {
	d, _ := s["description"].(string)
	return strings.HasPrefix(d, "Headers of ")
}

// lookup follows a local JSON pointer; nil when it leads nowhere.
func lookup(tree any, pointer string) any {
	for t := range strings.SplitSeq(strings.TrimPrefix(pointer, "#/"), "/") {
		m, ok := tree.(map[string]any)
		if !ok {
			return nil
		}
		tree = m[t]
	}
	return tree
}

func resolve(tree, v any) any {
	if m, ok := v.(map[string]any); ok {
		if r, ok := m["$ref"].(string); ok {
			return lookup(tree, r)
		}
	}
	return v
}
