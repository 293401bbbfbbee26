package harness

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"testing"
)

// Program runs main as a test would be run, for a program that is none, and
// reports whether it passed. What is to be cleaned up is cleaned up when main
// has returned or failed; logs and failures go to the standard error.
//
// A second set of functions without a [testing.TB] was rejected: they would
// differ from the first in nothing but how they fail. Of a TB there is what
// this package and testify use: names, logs, failures, clean-up and temporary
// directories. Skip, Setenv, Context and the rest panic.
func Program(name string, main func(t testing.TB)) (passed bool) {
	p := &program{name: name}
	apart(func() {
		defer p.cleanUp()
		main(p)
	})
	return !p.Failed()
}

// program is the TB of a Program.
type program struct {
	testing.TB // nil; it brings in the unexported method
	name       string

	mu       sync.Mutex
	failed   bool
	cleanups []func()
}

func (p *program) Helper()      {}
func (p *program) Name() string { return p.name }

func (p *program) Cleanup(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cleanups = append(p.cleanups, f)
}

// cleanUp cleans up, the last first, also what a clean-up registers or leaves
// when it fails.
func (p *program) cleanUp() {
	for {
		p.mu.Lock()
		last := len(p.cleanups) - 1
		if last < 0 {
			p.mu.Unlock()
			return
		}
		f := p.cleanups[last]
		p.cleanups = p.cleanups[:last]
		p.mu.Unlock()
		apart(f)
	}
}

// apart runs f on a goroutine of its own, which FailNow can end.
func apart(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
}

func (p *program) TempDir() string {
	dir, err := os.MkdirTemp("", p.name+"-")
	if err != nil {
		p.Fatal(err)
	}
	p.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			p.Error(err)
		}
	})
	return dir
}

func (p *program) Log(args ...any) { fmt.Fprint(os.Stderr, fmt.Sprintln(args...)) }
func (p *program) Logf(format string, args ...any) {
	p.Log(fmt.Sprintf(format, args...))
}

func (p *program) Fail() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failed = true
}

func (p *program) Failed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failed
}

func (p *program) FailNow() {
	p.Fail()
	runtime.Goexit()
}

func (p *program) Error(args ...any) {
	p.Log(args...)
	p.Fail()
}

func (p *program) Errorf(format string, args ...any) {
	p.Logf(format, args...)
	p.Fail()
}

func (p *program) Fatal(args ...any) {
	p.Log(args...)
	p.FailNow()
}

func (p *program) Fatalf(format string, args ...any) {
	p.Logf(format, args...)
	p.FailNow()
}
