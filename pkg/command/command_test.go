package command_test

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/toolbus/toolbus/pkg/command"
	"github.com/toolbus/toolbus/pkg/telemetry"
)

// asCommand makes this test binary run the command instead of the tests.
const asCommand = "TOOLBUS_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		os.Exit(runCommand())
	}
	goleak.VerifyTestMain(m)
}

func runCommand() int {
	var fail string
	return command.Main("sample", "127.0.0.1:0",
		func(f *flag.FlagSet) { f.StringVar(&fail, "fail", "", "where to fail") },
		func(log telemetry.Logger, _ prometheus.Registerer) (command.Service, error) {
			if fail == "build" {
				return nil, errors.New("cannot be built")
			}
			return &sample{fail: fail, log: log}, nil
		})
}

type sample struct {
	fail string
	log  telemetry.Logger
}

func (s *sample) Start(context.Context) error {
	if s.fail == "start" {
		return errors.New("cannot start")
	}
	return nil
}

func (s *sample) Stop(context.Context) error {
	s.log.Info("sample stops")
	return nil
}

func (s *sample) Ready(context.Context) error { return nil }

func TestParseEnv(t *testing.T) {
	type values struct {
		server, level string
		wait          time.Duration
		on            bool
	}
	defaults := values{"nats://default", "info", time.Second, false}
	for name, c := range map[string]struct {
		args []string
		env  map[string]string
		want values
		err  string
	}{
		"defaults": {want: defaults},
		"flags win over the environment": {
			args: []string{"--server", "a", "--log-level=debug", "-on"},
			env:  map[string]string{"TOOLBUS_SERVER": "b", "NATS_URL": "c", "TOOLBUS_LOG_LEVEL": "warn", "TOOLBUS_ON": "false"},
			want: values{"a", "debug", time.Second, true},
		},
		"environment wins over defaults": {
			env:  map[string]string{"TOOLBUS_LOG_LEVEL": "warn", "TOOLBUS_CONNECT_WAIT": "5s", "TOOLBUS_ON": "true"},
			want: values{"nats://default", "warn", 5 * time.Second, true},
		},
		"NATS_URL names the server":         {env: map[string]string{"NATS_URL": "c"}, want: values{"c", "info", time.Second, false}},
		"TOOLBUS_SERVER wins over NATS_URL": {env: map[string]string{"NATS_URL": "c", "TOOLBUS_SERVER": "b"}, want: values{"b", "info", time.Second, false}},
		"an empty variable counts as unset": {
			env: map[string]string{"TOOLBUS_SERVER": "", "NATS_URL": "c", "TOOLBUS_LOG_LEVEL": "", "TOOLBUS_CONNECT_WAIT": ""}, want: values{"c", "info", time.Second, false},
		},
		"a flag at its default still wins": {
			args: []string{"--log-level", "info"}, env: map[string]string{"TOOLBUS_LOG_LEVEL": "warn"}, want: defaults,
		},
		"a bad environment value names its variable": {env: map[string]string{"TOOLBUS_CONNECT_WAIT": "soon"}, err: "TOOLBUS_CONNECT_WAIT"},
		"every bad one is named":                     {env: map[string]string{"TOOLBUS_CONNECT_WAIT": "soon", "TOOLBUS_ON": "maybe"}, err: "TOOLBUS_ON"},
		"a bad flag":                                 {args: []string{"--connect-wait", "soon"}, err: "connect-wait"},
		"an unknown flag":                            {args: []string{"--nope"}, err: "nope"},
		"a stray argument":                           {args: []string{"--on", "extra"}, err: `"extra"`},
	} {
		t.Run(name, func(t *testing.T) {
			f := flag.NewFlagSet("x", flag.ContinueOnError)
			f.SetOutput(io.Discard)
			got := values{}
			f.StringVar(&got.server, "server", defaults.server, "")
			f.StringVar(&got.level, "log-level", defaults.level, "")
			f.DurationVar(&got.wait, "connect-wait", defaults.wait, "")
			f.BoolVar(&got.on, "on", defaults.on, "")
			err := command.ParseEnv(f, c.args, func(k string) (string, bool) { v, ok := c.env[k]; return v, ok })
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("got %v, want …%s…", err, c.err)
				}
				return
			}
			if err != nil || got != c.want {
				t.Errorf("got %+v, %v; want %+v", got, err, c.want)
			}
		})
	}
}

func sampleCommand(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, args...)
	cmd.Env = append(os.Environ(), asCommand+"=1")
	return cmd
}

func TestExitCodes(t *testing.T) {
	for _, c := range []struct {
		args []string
		code int
		text string
	}{
		{[]string{"--help"}, 0, "TOOLBUS_<FLAG>"},
		{[]string{"--nope"}, 2, "nope"},
		{[]string{"--log-level", "loud"}, 2, "log-level"},
		{[]string{"--fail", "build"}, 2, "cannot be built"},
		{[]string{"--fail", "start"}, 1, "cannot start"},
		{[]string{"--http", "256.1.1.1:0"}, 1, "listen"},
	} {
		out, err := sampleCommand(t, c.args...).CombinedOutput()
		code := 0
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			code = exit.ExitCode()
		} else if err != nil {
			t.Fatal(err)
		}
		if code != c.code || !strings.Contains(string(out), c.text) {
			t.Errorf("%v: exit %d, want %d: %s", c.args, code, c.code, out)
		}
	}
}

func TestRunsUntilASignal(t *testing.T) {
	cmd := sampleCommand(t)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stderr)
	address := regexp.MustCompile(`http=(\S+)`)
	var base string
	for base == "" || !strings.Contains(lines.Text(), "msg=ready") {
		if !lines.Scan() {
			t.Fatalf("ended before it was ready: %v", cmd.Wait())
		}
		if m := address.FindStringSubmatch(lines.Text()); m != nil {
			base = "http://" + m[1]
		}
	}
	for path, want := range map[string]string{"/healthz": "ok", "/readyz": "ready", "/metrics": "go_goroutines"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Close = true
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(string(body), want) {
			t.Errorf("%s: %d, %v", path, resp.StatusCode, err)
		}
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	var rest []string
	for lines.Scan() {
		rest = append(rest, lines.Text())
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("exit after SIGTERM: %v", err)
	}
	if s := strings.Join(rest, "\n"); !strings.Contains(s, "sample stops") || !strings.Contains(s, "service=sample") {
		t.Errorf("log after SIGTERM: %s", s)
	}
}
