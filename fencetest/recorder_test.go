package fencetest

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// recorder is a tb whose failures fail nothing.
type recorder struct {
	ctx context.Context

	mu       sync.Mutex
	failures []string
	logs     []string
}

func (r *recorder) Helper()                  {}
func (r *recorder) Context() context.Context { return r.ctx }

func (r *recorder) Logf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.logs = append(r.logs, fmt.Sprintf(format, args...))
}

func (r *recorder) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}

func (r *recorder) failed() bool { return len(r.failures) > 0 }

func (r *recorder) String() string { return strings.Join(r.failures, "\n") }

// record runs one rule in a goroutine of its own, as a subtest has one, so that
// Fatalf ends the rule and nothing else.
func record(t *testing.T, c rule, r Resource) (rec *recorder, skipped string) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	rec = &recorder{ctx: ctx}
	done := make(chan struct{})
	go func() {
		defer close(done)
		skipped = c.run(rec, r)
	}()
	<-done
	return rec, skipped
}

// rulesThat returns the rules that resources of build fail and skip, and what the
// failures say.
func rulesThat(t *testing.T, build func() Resource) (fail, skip []string, said map[string]string) {
	said = make(map[string]string)
	for _, c := range rules {
		rec, skipped := record(t, c, build())
		if skipped != "" {
			skip = append(skip, c.name)
			said[c.name] = skipped
		}
		if rec.failed() {
			fail = append(fail, c.name)
			said[c.name] = rec.String()
		}
	}
	return fail, skip, said
}

// raceFor shortens the races for one test.
func raceFor(t *testing.T, d time.Duration) {
	before := raceTime
	raceTime = d
	t.Cleanup(func() { raceTime = before })
}
