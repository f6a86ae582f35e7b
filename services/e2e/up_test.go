package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/toolbus/toolbus/services/e2e/harness"
)

func TestUpPrintsOneLineAndStopsCleanly(t *testing.T) {
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(s.String(), func(t *testing.T) {
			p, _ := up(t)
			if code := p.Stop(s); code != 0 {
				t.Errorf("exit %d", code)
			}
			if !regexp.MustCompile(`^\{"ready":true,"nats":"nats://127\.0\.0\.1:[1-9][0-9]*"\}\n$`).MatchString(p.Stdout()) {
				t.Errorf("stdout %q", p.Stdout())
			}
			if !strings.Contains(p.Stderr(), "sync=always") {
				t.Errorf("stderr does not say when data reach the disk:\n%s", p.Stderr())
			}
			if strings.Contains(p.Stderr(), "level=error") || strings.Contains(p.Stderr(), "level=warn") {
				t.Errorf("stderr:\n%s", p.Stderr())
			}
		})
	}
}

func TestEveryServiceIsRegistered(t *testing.T) {
	p, _ := up(t)
	nc := connect(t, p.URL)
	inbox := nc.NewInbox()
	sub, err := nc.SubscribeSync(inbox)
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.PublishRequest("$SRV.INFO", inbox, nil); err != nil {
		t.Fatal(err)
	}
	missing := map[string]bool{"state": true, "files": true, "registry": true, "toolworker": true, "scheduler": true}
	for len(missing) > 0 {
		m, err := sub.NextMsg(2 * time.Second)
		if err != nil {
			t.Fatalf("no answer of %v: %v", missing, err)
		}
		var info micro.Info
		if err := json.Unmarshal(m.Data, &info); err != nil {
			t.Fatal(err)
		}
		if info.Version != "0.1.0" || len(info.Endpoints) == 0 {
			t.Errorf("%s: version %q, %d endpoints", info.Name, info.Version, len(info.Endpoints))
		}
		delete(missing, info.Name)
	}
	if nc.MaxPayload() != 1<<20 {
		t.Errorf("max_payload %d", nc.MaxPayload())
	}
}

func TestUpRefusesADataFolderInUse(t *testing.T) {
	data := t.TempDir()
	first := harness.Up(t, toolbus(t), data)
	second := harness.Start(t, toolbus(t), "up", "--listen", "127.0.0.1:0", "--data", data)
	if code := second.Wait(); code != 1 || second.Stdout() != "" {
		t.Errorf("exit %d, stdout %q", code, second.Stdout())
	}
	for _, want := range []string{"toolbus: conflict: ", data, strconv.Itoa(first.Pid())} {
		if !strings.Contains(second.Stderr(), want) {
			t.Errorf("stderr %q does not contain %q", second.Stderr(), want)
		}
	}
	if code := first.Stop(syscall.SIGKILL); code != -1 {
		t.Errorf("exit %d", code)
	}
	harness.Up(t, toolbus(t), data) // a killed process leaves no lock
}

func TestUpRefusesAPortInUse(t *testing.T) {
	first, _ := up(t)
	addr := strings.TrimPrefix(first.URL, "nats://")
	second := harness.Start(t, toolbus(t), "up", "--listen", addr, "--data", t.TempDir())
	if code := second.Wait(); code != 1 || second.Stdout() != "" {
		t.Errorf("exit %d, stdout %q", code, second.Stdout())
	}
	for _, want := range []string{"toolbus: unavailable: ", addr, "address already in use", "--listen"} {
		if !strings.Contains(second.Stderr(), want) {
			t.Errorf("stderr %q does not contain %q", second.Stderr(), want)
		}
	}
}

func TestUpListensAndKeepsDataWhereTold(t *testing.T) {
	home := t.TempDir()
	first, _ := up(t)
	addr := strings.TrimPrefix(first.URL, "nats://")
	if code := first.Stop(syscall.SIGTERM); code != 0 {
		t.Fatalf("exit %d", code)
	}
	second := harness.Start(t, toolbus(t), "up", "--listen", addr, "--data", home+"/a/b")
	if want := `{"ready":true,"nats":"` + first.URL + `"}`; second.FirstLine() != want {
		t.Errorf("got %s, want %s", second.FirstLine(), want)
	}
	info, err := os.Stat(home + "/a/b/jetstream")
	if err != nil || !info.IsDir() {
		t.Errorf("data: %v", err)
	}
	if info, err := os.Stat(home + "/a/b"); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v %v", info.Mode(), err)
	}
}

func TestUpServesMetricsAndWritesLogFiles(t *testing.T) {
	logs := t.TempDir()
	p := harness.Up(t, toolbus(t), t.TempDir(), "--http", "127.0.0.1:0", "--log-dir", logs)
	m := regexp.MustCompile(`http=(\S+)`).FindStringSubmatch(p.Stderr())
	if m == nil {
		t.Fatalf("no HTTP address on stderr:\n%s", p.Stderr())
	}
	for _, path := range []string{"/healthz", "/readyz", "/metrics"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+m[1]+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		if r.StatusCode != http.StatusOK {
			t.Errorf("%s: %s", path, r.Status)
		}
	}
	found, err := filepath.Glob(filepath.Join(logs, "*", "Core.log"))
	if err != nil || len(found) != 1 {
		t.Errorf("log files %v, %v", found, err)
	}
}

// A client that asks right after the ready line gets an answer, and so does one
// that asks the catalogue for the built-in tools.
func TestReadyMeansReady(t *testing.T) {
	_, cli := up(t)
	var tools struct {
		Tools []struct {
			Name    string   `json:"name"`
			Workers []string `json:"workers"`
		} `json:"tools"`
	}
	cli.JSON(t, &tools, "get", "tools")
	var names []string
	for _, tool := range tools.Tools {
		if len(tool.Workers) == 1 {
			names = append(names, tool.Name)
		}
	}
	for _, want := range []string{"readFile", "writeFile"} {
		if !slices.Contains(names, want) {
			t.Errorf("the catalogue has %v, not %s", names, want)
		}
	}
}

func connect(t testing.TB, url string) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// applyAgent grants an agent the built-in file tools.
func applyAgent(t testing.TB, cli harness.CLI, tenant, agent string) {
	t.Helper()
	cfg := fmt.Sprintf(`{"agentId":%q,"tools":{"writeFile":{},"readFile":{}}}`, agent)
	cli.OK(t, "apply", file(t, "agent.json", cfg), "-t", tenant)
}
