package bus

import (
	"errors"
	"strings"
	"testing"

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
		{"\xff", "not valid JSON"},
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
		if err := DecodeBody(data, &v); err != nil && !errors.Is(err, errcode.InvalidRequest) {
			t.Fatalf("%q: %v", data, err)
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
