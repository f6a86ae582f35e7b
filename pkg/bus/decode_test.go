package bus

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/toolbus/toolbus/contracts/errcode"
)

func TestDecodeBody(t *testing.T) {
	type body struct {
		Name  string `json:"name"`
		Count uint   `json:"count"`
		Inner struct {
			Flag bool `json:"flag"`
		} `json:"inner"`
	}
	for _, c := range []struct{ in, want string }{
		{"", ""},
		{"{}", ""},
		{` {"name":"x","count":1,"inner":{"flag":true},"unknown":[]} `, ""},
		{`{"name":5}`, "name: must be string"},
		{`{"count":-1}`, "count: must be uint"},
		{`{"inner":{"flag":"yes"}}`, "inner.flag: must be bool"},
		{`{"inner":[]}`, "inner: must be"},
		{`[]`, "must be a JSON object, not array"},
		{`"x"`, "must be a JSON object, not string"},
		{`null`, "must be a JSON object, not null"},
		{`{`, "not valid JSON"},
		{`{}{}`, "not valid JSON"},
		{"{\"name\":\"a\nb\"}", "not valid JSON"},
		{"\xff", "not valid UTF-8"},
		{"{\"name\":\"a\xffb\"}", "name: is not valid UTF-8 at byte 10"},
		{"{\"name\":\"a\",\"\xff\":1}", "the body is not valid UTF-8 at byte 13"},
		{`{"name":"\ud83d\ude42 \\ud800 \ufffd"}`, ""},
		{`{"name":"a\ud800b"}`, "name: has half a surrogate pair at byte 10"},
		{`{"name":"\udc00"}`, "half a surrogate pair"},
		{`{"name":"\ud83d\ud83d\ude42"}`, "half a surrogate pair"},
		{`{"name":"x:,y","inner":{"a":{"a\udfff":1}}}`, "inner: has half a surrogate pair"},
		{`[{"name":"\udfff"}]`, "the body has half a surrogate pair"},
		{`{"unknown":` + strings.Repeat("[", 511) + strings.Repeat("]", 511) + `}`, ""},
		{`{"unknown":` + strings.Repeat("[", 512) + strings.Repeat("]", 512) + `}`, "unknown: nests deeper than 512"},
		{`{"name":"` + strings.Repeat("[{", 600) + `\"[["}`, ""},
		{strings.Repeat(`{"inner":`, 200_000), "deeper than 512"},
	} {
		var v body
		err := DecodeBody([]byte(c.in), &v)
		if c.want == "" {
			if err != nil {
				t.Errorf("%q: %v", c.in, err)
			}
			continue
		}
		if !errors.Is(err, errcode.InvalidRequest) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: got %v, want invalid_request …%s…", c.in, err, c.want)
		}
	}
}

// Whatever is wrong with a body, the error that says so is short.
func TestDecodeBodyErrorsAreShort(t *testing.T) {
	type body struct {
		N uint64      `json:"n"`
		J json.Number `json:"j"`
	}
	long := strings.Repeat("9", 1<<20)
	for _, in := range []string{`{"n":` + long + `}`, `{"j":"x` + long + `"}`, `{"n":"` + long + `"}`, `"` + long + `"`, long, long + "x"} {
		err := DecodeBody([]byte(in), &body{})
		if !errors.Is(err, errcode.InvalidRequest) || len(err.Error()) > 1024 {
			t.Errorf("%.20s…: %d bytes, %.100v", in, len(err.Error()), err)
		}
	}
}

func FuzzDecodeBody(f *testing.F) {
	for _, s := range []string{"", "{}", "null", "[]", `{"name":1}`, `{"a":{"b":[1,2,{"c":null}]}}`, "\xff\xfe", `{"name":"\ud800"}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var v struct {
			Name string         `json:"name"`
			A    map[string]any `json:"a"`
			N    []int8         `json:"n"`
		}
		err := DecodeBody(data, &v)
		switch {
		case err != nil && (!errors.Is(err, errcode.InvalidRequest) || len(err.Error()) > 1024):
			t.Fatalf("%q: %v", data, err)
		case err == nil && strings.ContainsRune(v.Name, utf8.RuneError) && !bytes.ContainsRune(data, utf8.RuneError) &&
			!bytes.Contains(bytes.ToLower(data), []byte(`\ufffd`)):
			t.Fatalf("%q was repaired to %q", data, v.Name)
		}
	})
}

func TestRedactURL(t *testing.T) {
	for in, want := range map[string]string{
		"nats://127.0.0.1:4222":                    "nats://127.0.0.1:4222",
		"127.0.0.1:4222":                           "nats://127.0.0.1:4222",
		"localhost":                                "nats://localhost",
		"nats://user:pass@h:4222":                  "nats://redacted@h:4222",
		"nats://t0ken@h:4222":                      "nats://redacted@h:4222",
		"user:pass@h:4222":                         "nats://redacted@h:4222",
		"t0ken@h:4222":                             "nats://redacted@h:4222",
		"nats://u:pass@a:1, tls://u:pass@b:2,c:3":  "nats://redacted@a:1,tls://redacted@b:2,nats://c:3",
		"nats://u:pass%zz@a:1":                     "(unreadable URL)",
		"nats://u:pass@a:1,nats://u:pass%zz@a:1":   "(unreadable URL)",
		"":                                         "(unreadable URL)",
		"wss://user:pass@gateway.example.org/path": "wss://redacted@gateway.example.org/path",
	} {
		if got := redactURL(in); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}

func TestHeaderText(t *testing.T) {
	for in, want := range map[string]string{
		"plain":     "plain",
		"a\r\nb\tc": "a  b c",
		"ümläut":    "ümläut",
	} {
		if got := headerText(in); got != want {
			t.Errorf("%q: got %q", in, got)
		}
	}
	if got := headerText(strings.Repeat("ä", 400)); len(got) > 520 || !strings.HasSuffix(got, "ä…") {
		t.Errorf("long text: %d bytes, ends %q", len(got), got[len(got)-6:])
	}
}

// Whatever the list, no password is shown.
func FuzzRedactURL(f *testing.F) {
	f.Add("nats://", "user", "s3cretpass", "@h:4222")
	f.Add("", "user", "s3cretpass", "@h:4222,nats://b")
	f.Add("nats://a,", "", "s3cretpass", "%zz@h")
	f.Fuzz(func(t *testing.T, before, user, password, after string) {
		shown := redactURL(before + user + ":" + password + after)
		if len(password) < 8 || strings.Trim(password, "0123456789abcdefghijklmnopqrstuvwxyz") != "" || strings.Contains("(unreadable url)redacted", password) {
			return
		}
		list, err := serverURLs(before + user + ":" + password + after)
		if err != nil {
			if strings.Contains(shown, password) {
				t.Fatalf("%q", shown)
			}
			return
		}
		for _, u := range list {
			if pw, ok := u.User.Password(); ok && pw == password && strings.Contains(shown, ":"+password+"@") {
				t.Fatalf("%q", shown)
			}
		}
	})
}
