// Package daemon runs a server program for a test, on a free loopback port, as a
// user the program accepts, and no longer than the test.
package daemon

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	// readyWithin is far above the second it takes, for machines under load.
	readyWithin = time.Minute
	// stopWithin bounds each of the ways to stop a server.
	stopWithin = 10 * time.Second
	// portAttempts: a free port can be taken before the server has bound it.
	portAttempts = 5
)

// Daemon is a server that ends with its test, and on Linux with the test binary at
// the latest. Its fields are for the package that knows the program.
type Daemon struct {
	Name string // for errors
	Dir  string // holds everything of it
	Port int

	Prepare func() error          // makes the data, once
	Command func() *exec.Cmd      // the server, on Port; from Child
	Ready   func() bool           // it accepts connections
	Taken   func(log string) bool // it ended because the port was taken
	Stop    []syscall.Signal      // each to end it in less order than the one before

	owner  *syscall.SysProcAttr
	cmd    *exec.Cmd
	exited chan struct{}
}

// Start starts d with a new Dir, and ends and removes it at the end of the test. The
// server runs as the test's own user, or the first of users that exists if that is
// root, as whom many servers refuse to run.
func (d *Daemon) Start(tb testing.TB, users ...string) {
	tb.Helper()
	owner, err := unprivileged(users)
	if err != nil {
		tb.Fatalf("%s: %v", d.Name, err)
	}
	d.owner = owner
	// Not TB.TempDir: the folder above that one is closed to other users.
	if d.Dir, err = os.MkdirTemp("", d.Name); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := d.stop(); err != nil {
			tb.Error(err)
		}
		if tb.Failed() {
			tb.Logf("log of the server:\n%s", d.log())
		}
		if err := os.RemoveAll(d.Dir); err != nil {
			tb.Error(err)
		}
	})
	if user := owner.Credential; user != nil {
		if err := os.Chown(d.Dir, int(user.Uid), int(user.Gid)); err != nil {
			tb.Fatal(err)
		}
	}
	if err := d.Prepare(); err != nil {
		tb.Fatalf("%s: %v", d.Name, err)
	}
	if err := d.start(); err != nil {
		tb.Fatalf("%s: %v\n%s", d.Name, err, d.log())
	}
}

// Child prepares a program to run in Dir as the server's user. The environment is
// nearly empty, since servers take settings from it.
func (d *Daemon) Child(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(program, args...)
	cmd.Dir = d.Dir
	cmd.Env = []string{"LC_ALL=C", "TZ=UTC", "HOME=" + d.Dir, "PATH=" + os.Getenv("PATH")}
	attr := *d.owner
	cmd.SysProcAttr = &attr
	return cmd
}

// Pid returns the server's process id.
func (d *Daemon) Pid() int { return d.cmd.Process.Pid }

func (d *Daemon) start() error {
	var err error
	for range portAttempts {
		if d.Port, err = freePort(); err != nil {
			return err
		}
		if err = d.run(); err == nil || !d.Taken(d.log()) {
			return err
		}
	}
	return err
}

// run starts the server and returns when it accepts connections.
func (d *Daemon) run() error {
	log, err := os.Create(d.logFile())
	if err != nil {
		return err
	}
	defer log.Close() // the child has its own
	d.cmd = d.Command()
	d.cmd.Stdout, d.cmd.Stderr = log, log
	dieWithParent(d.cmd.SysProcAttr)
	d.exited = make(chan struct{})
	started := make(chan error)
	go func() {
		// Linux sends a parent-death signal when the thread that forked ends,
		// so this one stays with the server.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(d.exited)
		err := d.cmd.Start()
		started <- err
		if err == nil {
			_ = d.cmd.Wait() // what it has to say is in its log
		}
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("starting it: %w", err)
	}
	limit := time.After(readyWithin)
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for !d.Ready() {
		select {
		case <-poll.C:
		case <-d.exited:
			return fmt.Errorf("it did not start: %v", d.cmd.ProcessState)
		case <-limit:
			return fmt.Errorf("it was not ready within %v", readyWithin)
		}
	}
	return nil
}

// stop ends the server: first in order, in the end without mercy.
func (d *Daemon) stop() error {
	if d.cmd == nil || d.cmd.Process == nil {
		return nil
	}
	for _, sig := range d.Stop {
		_ = d.cmd.Process.Signal(sig) // fails if it has exited
		select {
		case <-d.exited:
			return nil
		case <-time.After(stopWithin):
		}
	}
	_ = d.cmd.Process.Kill()
	<-d.exited
	return fmt.Errorf("%s: the server did not stop and was killed", d.Name)
}

func (d *Daemon) logFile() string { return filepath.Join(d.Dir, "log") }

// log returns the end of the server's log.
func (d *Daemon) log() string {
	const most = 4096
	text, err := os.ReadFile(d.logFile())
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-most):])
}

func freePort() (int, error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("looking for a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// Missing ends a test for which a program, or a setting of it, is missing: it is skipped, or fails if the
// environment has CI=true.
func Missing(tb testing.TB, err error) {
	tb.Helper()
	if os.Getenv("CI") == "true" {
		tb.Fatal(err)
	}
	tb.Skip(err)
}

func unprivileged(users []string) (*syscall.SysProcAttr, error) {
	if os.Geteuid() != 0 {
		return &syscall.SysProcAttr{}, nil
	}
	for _, name := range users {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.ParseUint(u.Uid, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("user %s: %w", name, err)
		}
		gid, err := strconv.ParseUint(u.Gid, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("user %s: %w", name, err)
		}
		return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}, nil
	}
	return nil, errors.New("this is root, as whom the server does not run, and there is no user " + strings.Join(users, " or "))
}
