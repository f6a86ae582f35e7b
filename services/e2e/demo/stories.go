package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"image/png"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/micro"

	"github.com/toolbus/toolbus/pkg/agent"
	"github.com/toolbus/toolbus/pkg/files"
	"github.com/toolbus/toolbus/pkg/toolstate"
	"github.com/toolbus/toolbus/services/e2e/proc"
)

// open starts everything and applies the configuration.
func (d *demo) open() {
	d.chapter("1. Start")
	d.startUp("127.0.0.1:0")
	d.startWorkers(2)
	d.connect()
	o := d.toolbus("apply", d.config, "-t", tenant)
	d.check(o.Code == 0, "the configuration is applied")
	a := d.agent("support")
	defer a.Close()
	d.waitFor("both workers to be in the catalogue", func() bool {
		t, err := a.Tools(d.ctx)
		return err == nil && len(t.Unavailable) == 0 && d.hosts() == 2
	})
	o = d.toolbus("get", "tools", "-t", tenant, "-a", "support")
	d.check(o.Code == 0 && strings.Contains(o.Stdout, "addTrackingCode"), "the agent sees the tools its configuration grants")
	d.check(!strings.Contains(o.Stdout, "writeFile"), "and not the internal ones")
	seen := d.services()
	for _, want := range []string{"registry", "state", "files", "toolworker", "scheduler"} {
		d.check(seen[want] > 0, "NATS micro lists the service %s", want)
	}
}

// services asks every service on the bus who it is, as nats micro ls does.
func (d *demo) services() map[string]int {
	seen := map[string]int{}
	for _, m := range d.ask("$SRV.INFO", 500*time.Millisecond) {
		var info micro.Info
		if json.Unmarshal(m, &info) == nil {
			seen[info.Name]++
		}
	}
	return seen
}

// hosts counts the workers that host addTrackingCode.
func (d *demo) hosts() int { return len(d.callsPerWorker("addTrackingCode", "call-")) }

// callsPerWorker is how many calls of a tool each worker has taken: those of agents, or of
// tools (toolcall-).
func (d *demo) callsPerWorker(tool, kind string) map[string]int {
	out := map[string]int{}
	for _, m := range d.ask("$SRV.STATS", 300*time.Millisecond) {
		var s micro.Stats
		if json.Unmarshal(m, &s) != nil {
			continue
		}
		for _, e := range s.Endpoints {
			if e.Name == kind+tool {
				out[s.ID] += e.NumRequests
			}
		}
	}
	return out
}

// ask gathers all replies to one request for a while.
func (d *demo) ask(subj string, wait time.Duration) [][]byte {
	inbox := d.nc.NewRespInbox()
	sub, err := d.nc.SubscribeSync(inbox)
	d.must(err, "subscribe")
	defer func() { _ = sub.Unsubscribe() }()
	d.must(d.nc.PublishRequest(subj, inbox, nil), "ask "+subj)
	var out [][]byte
	for {
		m, err := sub.NextMsg(wait)
		if err != nil {
			return out
		}
		out = append(out, m.Data)
	}
}

// relabeling is one chat over several turns, with a crash in between.
func (d *demo) relabeling() {
	d.chapter("2. A chat collects codes over several turns; the system crashes in between")
	const chat = "chat-1"
	o := d.call("support", chat, "addTrackingCode", `{"code":"]C100340434757211819883"}`)
	d.check(o.Code == 0, "turn 1: a code with its GS1 prefix is taken")
	o = d.call("support", chat, "setRelabelDirection", `{"direction":"DHL->DPD"}`)
	d.check(o.Code == 0, "turn 2: the direction is set")
	d.say("kill -9 of toolbus up: NATS and all services at once")
	d.up.Kill()
	d.startUp(strings.TrimPrefix(d.url, "nats://"))
	d.connect()
	d.waitFor("the workers to be back", func() bool { return d.hosts() == 2 })
	o = d.call("support", chat, "addTrackingCode", `{"code":" 8806096235386 "}`)
	d.check(o.Code == 0, "turn 3: another code, after the crash")
	o = d.toolbus("state", "all", "-n", "relabeling", "-t", tenant, "-c", chat)
	var data struct {
		Codes     []string `json:"codes"`
		Direction string   `json:"direction"`
	}
	d.must(json.Unmarshal([]byte(o.Stdout), &data), "read ToolState")
	d.check(slices.Equal(data.Codes, []string{"00340434757211819883", "8806096235386"}) && data.Direction == "DHL->DPD",
		"ToolState has both codes, cleaned, and the direction")
	o = d.call("support", chat, "submitRelabeling", `{}`)
	d.check(o.Code == 0, "turn 4: the relabeling is submitted")
	csv := d.oneFile("relabeling/")
	d.check(strings.Contains(csv, "00340434757211819883") && strings.Contains(csv, "8806096235386") && strings.Contains(csv, "DHL->DPD"),
		"the CSV in the tenant's files has both codes and the direction")
	left, err := toolstate.New(d.nc, tenant).Scratch(chat, "relabeling").All(d.ctx)
	d.must(err, "read ToolState")
	d.check(len(left) == 0, "the scratch pad is cleared for the next run")
}

// oneFile returns the content of the only file under a prefix.
func (d *demo) oneFile(prefix string) string {
	c := files.New(d.nc, tenant)
	list, err := c.List(d.ctx, prefix)
	d.must(err, "list files")
	d.check(len(list) == 1, "there is one file under %s", prefix)
	if len(list) == 0 {
		return ""
	}
	o := d.toolbus("files", "cat", list[0].Path, "-t", tenant)
	return o.Stdout
}

// parallel is a model that calls one tool 50 times at once.
func (d *demo) parallel() {
	d.chapter("3. 50 parallel calls of one chat over two worker processes")
	const chat, n = "chat-parallel", 50
	a := d.agent("support")
	defer a.Close()
	before := d.callsPerWorker("addTrackingCode", "call-")
	var wg sync.WaitGroup
	errs := make(chan error, n)
	for i := range n {
		wg.Go(func() {
			r, err := a.Call(d.ctx, "addTrackingCode", map[string]string{"code": fmt.Sprintf("]C1%020d", i)}, agent.Chat(chat))
			if err == nil && !r.Success {
				err = fmt.Errorf("%s", r.ErrorMessage)
			}
			if err != nil {
				errs <- err
			}
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		d.check(false, "a call: %v", err)
	}
	var codes []string
	_, err := toolstate.New(d.nc, tenant).Scratch(chat, "relabeling").Get(d.ctx, "codes", &codes)
	d.must(err, "read ToolState")
	slices.Sort(codes)
	d.check(len(slices.Compact(codes)) == n, "%d codes are in ToolState, none lost, none doubled", n)
	after := d.callsPerWorker("addTrackingCode", "call-")
	for id := range after {
		d.say("worker process %s ran %d of them", id, after[id]-before[id])
		d.check(after[id] > before[id], "this worker had its share")
	}
}

// members is the club: a list, a log, a picture and a large report.
func (d *demo) members() {
	d.chapter("4. A club keeps its members, its log and its pictures in files")
	o := d.call("club", "", "registerMember", `{"name":"Erika Mustermann","email":"erika@example.org","disziplin":"Bogen"}`)
	d.check(o.Code == 0, "a member is registered")
	o = d.call("club", "", "registerMember", `{"name":"E. Mustermann","email":"ERIKA@example.org","disziplin":"Bogen"}`)
	d.check(o.Code == 1 && strings.Contains(o.Stderr, "Erika Mustermann"), "the same address again is refused, and the model is told why")
	o = d.call("club", "", "registerMember", `{"name":"Max Müller","email":"max@example.org","disziplin":"Luftgewehr"}`)
	d.check(o.Code == 0, "a second member is registered")
	o = d.toolbus("files", "cat", "mitglieder.json", "-t", tenant)
	var list []map[string]any
	d.must(json.Unmarshal([]byte(o.Stdout), &list), "read mitglieder.json")
	d.check(len(list) == 2 && list[1]["name"] == "Max Müller" && strings.Contains(o.Stdout, "Müller"), "mitglieder.json has both, readable")

	for _, e := range []string{"door-opened", "door-closed"} {
		o = d.call("club", "", "logEvent", `{"event":"`+e+`"}`)
		d.check(o.Code == 0, "the event %s is logged", e)
	}
	log := d.oneFile("logs/")
	lines := strings.Split(strings.TrimRight(log, "\n"), "\n")
	d.check(len(lines) == 2 && strings.Contains(lines[0], "door-opened") && strings.Contains(lines[1], "door-closed"), "the log has one line each, in order")

	o = d.call("club", "", "saveThumbnail", `{"id":"pokal"}`)
	d.check(o.Code == 0, "a PNG is written through base64")
	content, _, ok, err := files.New(d.nc, tenant).Read(d.ctx, "thumbnails/pokal.png")
	d.must(err, "read the PNG")
	_, err = png.Decode(bytes.NewReader(content))
	d.check(ok && err == nil, "and is a PNG when read back (%d bytes)", len(content))

	o = d.call("club", "", "archiveReport", `{"name":"jahresbericht","megabytes":10}`)
	d.check(o.Code == 0, "10 MB go through writeFile and come back through readFile")
	info, ok, err := files.New(d.nc, tenant).Stat(d.ctx, "reports/jahresbericht.txt")
	d.must(err, "stat the report")
	d.check(ok && info.Size == 10<<20, "the report has %d bytes", info.Size)
}

// refusals are the mistakes people make; each is told what was wrong.
func (d *demo) refusals() {
	d.chapter("7. Mistakes get an error with a code, and exit code 1")
	refused := func(want string, o proc.Result) {
		d.check(o.Code == 1 && strings.Contains(o.Stderr, want) && o.Stdout == "", "refused with %s", want)
	}
	refused("invalid_arguments", d.call("support", "chat-1", "addTrackingCode", `{"cod":"x"}`))
	refused("not_allowed", d.call("club", "chat-1", "addTrackingCode", `{"code":"x"}`))
	refused("not_allowed", d.call("support", "", "writeFile", `{"path":"x","content":""}`))
	refused("unavailable", d.call("support", "", "noSuchTool", `{}`))
	refused("not_found", d.call("nobody", "", "registerMember", `{}`))
	refused("not_found", d.toolbus("call", "addTrackingCode", `{"code":"x"}`, "-t", "rival", "-a", "support", "-c", "chat-1"))
	refused("invalid_request", d.toolbus("files", "cat", "../../etc/passwd", "-t", tenant))
}

// mirror shows the tenant's files and ToolState as a developer sees them.
func (d *demo) mirror() {
	d.chapter("8. The developer's mirror")
	d.call("support", "chat-open", "addTrackingCode", `{"code":"]C100340434757211819883"}`)
	dir := filepath.Join(d.dir, "workspace")
	o := d.toolbus("sync", "--dir", dir, "-t", tenant)
	d.check(o.Code == 0, "sync succeeds")
	var paths []string
	err := filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			rel, _ := filepath.Rel(dir, p)
			fi, ferr := e.Info()
			if ferr != nil {
				return ferr
			}
			paths = append(paths, fmt.Sprintf("%s %9d  %s", fi.Mode(), fi.Size(), rel))
		}
		return err
	})
	d.must(err, "walk the mirror")
	d.say("%s", strings.Join(paths, "\n"))
	base := filepath.Join(dir, "config", "tenants", tenant)
	doc, err := os.ReadFile(filepath.Join(base, "tmp", "state", "relabeling_chat-open.json"))
	d.must(err, "read the mirrored ToolState")
	d.say("relabeling_chat-open.json:\n%s", doc)
	d.check(regexp.MustCompile(`(?s)^\{\s*"expires_at": "\d{4}-.*"data": \{.*00340434757211819883`).Match(doc), "ToolState on disk is expires_at and data")
	for _, p := range []string{"files/mitglieder.json", "files/reports/jahresbericht.txt", "files/thumbnails/pokal.png"} {
		fi, err := os.Stat(filepath.Join(base, filepath.FromSlash(p)))
		d.check(err == nil && fi.Mode().Perm()&0o222 == 0, "%s is there, read-only", p)
	}
	_, err = os.Stat(filepath.Join(base, "tmp", "state", "relabeling_chat-1.json"))
	d.check(os.IsNotExist(err), "the cleared scratch pad is not there")
}

// restart proves that a clean stop loses nothing.
func (d *demo) restart() {
	d.chapter("9. Stop and start again: nothing is lost")
	d.must(d.up.Stop(), "stop toolbus up")
	d.startUp(strings.TrimPrefix(d.url, "nats://"))
	d.connect()
	d.waitFor("the workers to be back", func() bool { return d.hosts() == 2 })
	o := d.toolbus("get", "agents", "-t", tenant)
	d.check(o.Code == 0 && strings.Contains(o.Stdout, "support") && strings.Contains(o.Stdout, "club"), "the agents are there")
	o = d.toolbus("files", "ls", "-t", tenant)
	d.check(o.Code == 0 && strings.Contains(o.Stdout, "mitglieder.json"), "the files are there")
	o = d.call("support", "chat-open", "addTrackingCode", `{"code":"8806096235386"}`)
	d.check(o.Code == 0, "the open chat goes on")
	var codes []string
	_, err := toolstate.New(d.nc, tenant).Scratch("chat-open", "relabeling").Get(d.ctx, "codes", &codes)
	d.must(err, "read ToolState")
	d.check(len(codes) == 2, "with both of its codes")
}

// killed is a worker that dies in the middle of many calls.
func (d *demo) killed() {
	d.chapter("5. One of two toolworkers is killed while calls run")
	second := d.start("toolworker", "--server", d.url, "--http", "")
	defer second.Kill()
	hosts := func() map[string]int { return d.callsPerWorker("writeFile", "toolcall-") }
	d.waitFor("two toolworkers", func() bool { return len(hosts()) == 2 })
	before := hosts()
	a := d.agent("club")
	defer a.Close()
	const n = 120
	var acknowledged sync.Map
	var wg sync.WaitGroup
	log := func(i int) {
		event := fmt.Sprintf("killed-%d", i)
		r, err := a.Call(d.ctx, "logEvent", map[string]string{"event": event}, agent.Timeout(5*time.Second))
		if err == nil && r.Success {
			acknowledged.Store(event, true)
		}
	}
	for i := range n / 2 {
		wg.Go(func() { log(i) })
	}
	wg.Wait()
	after := hosts()
	for id := range after {
		d.check(after[id] > before[id], "toolworker %s ran %d of %d calls", id, after[id]-before[id], n/2)
	}
	for i := range n / 2 {
		wg.Go(func() { log(n/2 + i) })
		if i == n/4 {
			second.Kill()
		}
	}
	wg.Wait()
	d.say("kill -9 of one toolworker in the middle of %d parallel calls", n/2)
	lines := map[string]int{}
	for l := range strings.Lines(d.oneFile("logs/")) {
		for word := range strings.FieldsFuncSeq(l, func(r rune) bool { return r != '-' && (r < '0' || r > '9') && (r < 'a' || r > 'z') }) {
			lines[word]++
		}
	}
	count, once := 0, true
	for event := range acknowledged.Range {
		count++
		once = once && lines[event.(string)] == 1
	}
	d.check(once, "each of the %d acknowledged lines is in the log once", count)
	d.check(count >= n/2, "the calls before the kill are among them")
	d.waitFor("the calls to find the worker that is left", func() bool {
		r, err := a.Call(d.ctx, "logEvent", map[string]string{"event": "afterwards"}, agent.Timeout(5*time.Second))
		return err == nil && r.Success
	})
	d.check(true, "and calls go on with the other")
}
