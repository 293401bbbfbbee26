package harness

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	Main(m, Roles{
		"echo":     echoRole,
		"ticker":   tickerRole,
		"failing":  failingRole,
		"stubborn": stubbornRole,
		"parent":   parentRole,
	})
}

// echoRole says what it is told, and what it was started with.
func echoRole(c *Child) error {
	fmt.Println("a library prints this") // must not be taken for an event
	c.Emit("started", c.Args(), os.Getenv("HARNESS_TEST"))
	for line := range c.Commands() {
		c.Emit("echo", line)
	}
	<-c.Context().Done()
	c.Emit("bye")
	return nil
}

// tickerRole says something every millisecond.
func tickerRole(c *Child) error {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-tick.C:
			c.Emit("tick", n)
		case <-c.Context().Done():
			return nil
		}
	}
}

func failingRole(*Child) error { return errors.New("so it failed") }

// stubbornRole does not return when it is told to.
func stubbornRole(c *Child) error {
	c.Emit("started")
	select {}
}

// parentRole starts a child of its own, from a thread that ends at once.
func parentRole(c *Child) error {
	var p *Process
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocks: the thread dies with the goroutine
		p, err = Command{Role: "stubborn"}.start()
	}()
	<-done
	if err != nil {
		return err
	}
	if _, err := p.Await(c.Context(), "started"); err != nil {
		return err
	}
	if err := p.Stop(); err != nil {
		return err
	}
	c.Emit("child", p.PID())
	<-c.Context().Done()
	return nil
}

// recorder is a test that a helper may fail without failing the real one.
type recorder struct {
	testing.TB // what is not overridden here is the real test's
	failures   []string
	cleanups   []func()
}

func (r *recorder) Helper()          {}
func (r *recorder) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Errorf(format string, args ...any) {
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}
func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}
func (r *recorder) Fatal(args ...any) { r.Fatalf("%s", fmt.Sprint(args...)) }

// run runs f as a test of its own, with its clean-up, and returns its failures.
func (r *recorder) run(f func()) []string {
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			for i := len(r.cleanups) - 1; i >= 0; i-- {
				r.cleanups[i]()
			}
		}()
		f()
	}()
	<-done
	return r.failures
}

func readAll(t *testing.T, r io.Reader) string {
	t.Helper()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
