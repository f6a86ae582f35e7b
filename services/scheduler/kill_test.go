package scheduler_test

import (
	"context"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/toolbus/toolbus/contracts/message"
	"github.com/toolbus/toolbus/contracts/subject"
	"github.com/toolbus/toolbus/pkg/bus"
)

// The process is killed again and again, at no matter which point: a job's offset
// and its wakes stay one, and each wake comes once by its id.
func TestKilledProcess(t *testing.T) {
	t.Parallel()
	bin := filepath.Join(t.TempDir(), "scheduler")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", bin, "./cmd/scheduler").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	s := newSystem(t)
	startState(t, s.ns)
	const entries = 8
	store := func(op string, in, out any) error {
		return bus.Retry(context.Background(), s.nc, subject.Store(tenant, "support", "Counter", op), in, out)
	}
	s.work("Counter", func(r message.JobRequest) (message.JobReply, error) {
		var v message.StoreValue
		if err := store("get", message.StoreGet{Key: r.JobID}, &v); err != nil {
			return message.JobReply{}, err
		}
		n, _ := strconv.Atoi(v.Value)
		next := strconv.Itoa(n + 1)
		return message.JobReply{Action: message.ActionWake, WakeMessage: next, ChatID: r.JobID,
			StoreWrites: []message.StoreWrite{{Key: r.JobID, Value: &next}}}, nil
	})
	a := s.listen("support", accept)
	var list []message.ToolJob
	for i := range entries {
		list = append(list, job("j"+strconv.Itoa(i), "Counter", "@every 1s"))
	}
	s.apply(withJobs(list...))
	run := func() *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), bin, "--server", s.ns.URL(), "--http", "", "--tick-wait", "1s", "--lease-ttl", "1s", "--log-level", "error")
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	kill := func(cmd *exec.Cmd) {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	for range 4 {
		before := len(a.accepted())
		cmd := run()
		eventually(t, "wakes", func() bool { return len(a.accepted()) > before })
		time.Sleep(rand.N(300 * time.Millisecond)) // any point will do
		kill(cmd)
	}
	cmd := run()
	defer kill(cmd)
	before := len(a.accepted())
	eventually(t, "wakes of a whole process", func() bool { return len(a.accepted()) > before+2*entries })
	s.apply(message.AgentConfig{AgentID: "support"})
	offset := func(id string) string {
		var v message.StoreValue
		if err := store("get", message.StoreGet{Key: id}, &v); err != nil {
			t.Fatal(err)
		}
		return v.Value
	}
	last := func() map[string][]string {
		out := map[string][]string{}
		ids := map[string]bool{}
		for _, w := range a.accepted() {
			if !ids[w.WakeID] { // an acceptance that died with its scheduler is asked for again
				out[w.Source.ID] = append(out[w.Source.ID], w.Message)
			}
			ids[w.WakeID] = true
		}
		return out
	}
	for _, j := range list {
		eventually(t, "the last wake of "+j.JobID, func() bool { return strconv.Itoa(len(last()[j.JobID])) == offset(j.JobID) })
	}
	for id, got := range last() {
		for i, m := range got {
			if m != strconv.Itoa(i+1) {
				t.Errorf("%s was woken with %q", id, got)
				break
			}
		}
	}
}
