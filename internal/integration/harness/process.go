package harness

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"
)

// Command says what child process to start.
type Command struct {
	Role string   // one of the [Roles] of this test binary
	Args []string // what [Child.Args] returns
	Env  []string // "key=value", beside this process' own
}

// Process is a child process. It dies with its test, and with the test binary
// at the latest.
type Process struct {
	t      testing.TB // nil for one that a child started
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	events *eventLog
	stderr *tail
	exited chan struct{}
	err    error // how it ended, once exited is closed
}

// Start starts a child process of that role. It is killed at the end of the
// test; if the test failed, the last of its standard error is logged.
func Start(t testing.TB, role string, args ...string) *Process {
	t.Helper()
	return Command{Role: role, Args: args}.Start(t)
}

// Start is the function [Start] with an environment.
func (c Command) Start(t testing.TB) *Process {
	t.Helper()
	p, err := c.start()
	if err != nil {
		t.Fatal(err)
	}
	p.t = t
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() && p.stderr.String() != "" {
			t.Logf("standard error of role %s, process %d:\n%s", c.Role, p.PID(), p.stderr)
		}
	})
	return p
}

func (c Command) start() (*Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("harness: finding this test binary: %w", err)
	}
	p := &Process{
		cmd:    exec.Command(self, c.Args...),
		events: newEventLog(),
		stderr: &tail{},
		exited: make(chan struct{}),
	}
	p.cmd.Env = append(append(os.Environ(), c.Env...), roleVariable+"="+c.Role)
	p.cmd.Stdout, p.cmd.Stderr = p.events, p.stderr
	p.cmd.SysProcAttr = dieWithParent()
	// Ctrl-C on a terminal is for the parent, who decides what becomes of its
	// children; a cluster that ended at the same moment would spoil its answer.
	p.cmd.SysProcAttr.Setpgid = true
	// Should a child leave a process behind that keeps its output open.
	p.cmd.WaitDelay = time.Second
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("harness: starting role %s: %w", c.Role, err)
	}
	started := make(chan error)
	go func() {
		// Linux delivers a parent-death signal when the thread that forked
		// ends, not the process; Go ends threads as it likes. So this one stays
		// with the child for as long as that lives.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err != nil {
			return
		}
		p.err = p.cmd.Wait()
		close(p.exited)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("harness: starting role %s: %w", c.Role, err)
	}
	return p, nil
}

// PID returns the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Await returns the next event of that name which was not returned before. It
// fails when ctx ends, or when the process has exited without one.
func (p *Process) Await(ctx context.Context, name string) (Event, error) {
	for {
		// Looked at before the events: all of them are read by then.
		gone := p.hasExited()
		e, ok, more := p.events.next(name)
		switch {
		case ok:
			return e, nil
		case gone:
			return Event{}, fmt.Errorf("harness: no event %q: process %d has exited: %s; its standard error ends:\n%s",
				name, p.PID(), p.cmd.ProcessState, p.stderr)
		}
		select {
		case <-more:
		case <-p.exited:
		case <-ctx.Done():
			return Event{}, fmt.Errorf("harness: no event %q from process %d: %w", name, p.PID(), context.Cause(ctx))
		}
	}
}

// Expect is [Process.Await] with a time-out, and ends the test without an
// event.
func (p *Process) Expect(name string, within time.Duration) Event {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	e, err := p.Await(ctx, name)
	if err != nil {
		p.t.Fatal(err)
	}
	return e
}

// Events returns all events so far.
func (p *Process) Events() []Event { return p.events.all() }

// Send writes a line to [Child.Commands].
func (p *Process) Send(line string) error {
	if _, err := io.WriteString(p.stdin, line+"\n"); err != nil {
		return fmt.Errorf("harness: sending %q to process %d: %w", line, p.PID(), err)
	}
	return nil
}

// Stop stops the process with SIGSTOP, and returns when every one of its
// threads has stopped.
func (p *Process) Stop() error {
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	// The signal is sent, not obeyed: a thread that is in the kernel runs on
	// for a moment. Nothing tells when it has stopped without taking the
	// process' status away from the one who waits for it.
	limit := time.Now().Add(5 * time.Second)
	for {
		all, err := stopped(p.PID())
		switch {
		case p.hasExited():
			return fmt.Errorf("harness: process %d has exited before it stopped: %s", p.PID(), p.cmd.ProcessState)
		case err != nil:
			return fmt.Errorf("harness: stopping process %d: %w", p.PID(), err)
		case all:
			return nil
		case time.Now().After(limit):
			return fmt.Errorf("harness: process %d does not stop", p.PID())
		}
		time.Sleep(time.Millisecond)
	}
}

// Cont continues a stopped process.
func (p *Process) Cont() error { return p.Signal(syscall.SIGCONT) }

// Signal sends a signal.
func (p *Process) Signal(sig syscall.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil {
		return fmt.Errorf("harness: sending %v to process %d: %w", sig, p.PID(), err)
	}
	return nil
}

// Kill kills the process with SIGKILL, stopped or not, and returns when it is
// gone. It may be called again.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.exited
	_ = p.stdin.Close()
}

// Shutdown ends [Child.Context], waits for the role to return, and returns its
// error. After so long it kills the process, and returns an error.
func (p *Process) Shutdown(within time.Duration) error {
	_ = p.stdin.Close()
	select {
	case <-p.exited:
		return p.err
	case <-time.After(within):
		p.Kill()
		return fmt.Errorf("harness: process %d did not end within %v and was killed", p.PID(), within)
	}
}

// Exited is closed when the process is gone.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Err returns how the process ended: nil for status 0, else an
// [*exec.ExitError]. It is nil too while the process runs.
func (p *Process) Err() error {
	if !p.hasExited() {
		return nil
	}
	return p.err
}

func (p *Process) hasExited() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}
