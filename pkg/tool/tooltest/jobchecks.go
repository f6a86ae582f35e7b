package tooltest

import (
	"context"
	"errors"
	"maps"
	"reflect"
	"time"
	"unicode/utf8"

	"github.com/toolbus/toolbus/contracts/errcode"
	"github.com/toolbus/toolbus/pkg/tool"
)

// unknownJob is a check that no tool has.
const unknownJob = "tooltest-no-such-job"

// GivenJobEffects says that the tool's jobs write files, or call tools that
// write, which happens again when a run is repeated.
func GivenJobEffects() Given { return func(s *suite) { s.jobEffects = true } }

func checkJobs(r reporter, s *suite) {
	p, ok := s.tl.(tool.JobProvider)
	if !ok {
		return
	}
	jobs := p.Jobs()
	if again := p.Jobs(); !reflect.DeepEqual(again, jobs) {
		r.Errorf("its jobs change from call to call: %+v, then %+v", jobs, again)
	}
	for _, d := range jobs {
		checkJob(r, s, d.ID)
	}
	checkUnknownJob(r, s, p)
}

func checkJob(r reporter, s *suite, id string) {
	e, ok := s.env(r)
	if !ok {
		return
	}
	before := e.traces()
	// Twice: a run whose outcome was lost is repeated.
	for _, opt := range []Option{OutcomeLost(), Attempt(2)} {
		out, err := s.runJob(e, id, opt, TickID("tick"))
		if err != nil {
			var p *panicked
			if errors.As(err, &p) {
				r.Errorf("job %s panicked: %v\n%s", id, p.value, p.stack)
			} else {
				r.Errorf("job %s failed (say with Given… what the tool needs): %v", id, err)
			}
			return
		}
		if !utf8.ValidString(out.Message) || !utf8.ValidString(out.Summary) {
			r.Errorf("job %s: the wake message or the summary is not valid UTF-8", id)
		}
		if !s.jobEffects && !before.same(e.traces(), s.def.Name) {
			r.Errorf("job %s writes elsewhere than in its store, which happens again when its run is repeated; say GivenJobEffects if it is meant to", id)
			return
		}
	}
}

// checkUnknownJob asks the runtime, and then the tool itself, which must not
// rely on the runtime for its life.
func checkUnknownJob(r reporter, s *suite, p tool.JobProvider) {
	e, ok := s.env(r)
	if !ok {
		return
	}
	if _, err := s.runJob(e, unknownJob); !errors.Is(err, errcode.InvalidRequest) {
		r.Errorf("a job the tool does not have: want invalid_request, got %v", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	res, err := result(ctx, startJob(ctx, p, s.jobCall(e, unknownJob)))
	var raised *panicked
	switch {
	case errors.As(err, &raised):
		r.Errorf("it panicked on a job it does not have: %v\n%s", raised.value, raised.stack)
	case err == nil && res.Message != "":
		r.Errorf("it wakes the agent for a job it does not have: %q", res.Message)
	}
}

func checkJobCancel(r reporter, s *suite) {
	p, ok := s.tl.(tool.JobProvider)
	if !ok {
		return
	}
	for _, d := range p.Jobs() {
		for _, after := range []time.Duration{0, 20 * time.Millisecond} {
			e, ok := s.env(r)
			if !ok {
				return
			}
			ctx, cancel := context.WithTimeout(context.Background(), after)
			done := startJob(ctx, p, s.jobCall(e, d.ID))
			<-ctx.Done()
			cancel()
			late := time.NewTimer(promptness)
			select {
			case out := <-done:
				var p *panicked
				if errors.As(out.err, &p) {
					r.Errorf("job %s panicked when it was cancelled: %v\n%s", d.ID, p.value, p.stack)
				}
			case <-late.C:
				r.Errorf("job %s still ran %s after its ctx had ended", d.ID, promptness)
			}
			late.Stop()
		}
	}
}

func (s *suite) runJob(e *Env, id string, opts ...Option) (JobOutcome, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return e.RunJob(ctx, s.def.Name, id, append(opts, s.options...)...)
}

func (s *suite) jobCall(e *Env, id string) *tool.JobCall {
	o := callOptions{tenant: DefaultTenant, agent: DefaultAgent, job: jobOptions{id: DefaultJob, attempt: 1}}
	for _, f := range s.options {
		f(&o)
	}
	return e.newJobCall(s.def.Name, id, o)
}

// traces are what tools have left in an Env.
type traces struct {
	files  map[fileKey]uint64
	states map[stateKey]uint64
	stores map[storeKey]storeValue
}

// same tells whether nothing differs but what a tool keeps in its store.
func (t traces) same(after traces, but string) bool {
	others := func(m map[storeKey]storeValue) map[storeKey]storeValue {
		m = maps.Clone(m)
		maps.DeleteFunc(m, func(k storeKey, _ storeValue) bool { return k.tool == but })
		return m
	}
	return maps.Equal(t.files, after.files) && maps.Equal(t.states, after.states) &&
		maps.Equal(others(t.stores), others(after.stores))
}

func (e *Env) traces() traces {
	t := traces{files: map[fileKey]uint64{}, states: map[stateKey]uint64{}}
	e.files.mu.Lock()
	for k, f := range e.files.files {
		t.files[k] = f.info.Revision
	}
	e.files.mu.Unlock()
	e.states.mu.Lock()
	for k, d := range e.states.docs {
		t.states[k] = d.revision
	}
	e.states.mu.Unlock()
	e.stores.mu.Lock()
	t.stores = maps.Clone(e.stores.values)
	e.stores.mu.Unlock()
	return t
}
