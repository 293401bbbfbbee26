// Package pgtest starts a real PostgreSQL server for a test.
//
// It uses the server programs of the machine, and needs a Unix system. The
// server listens on a free loopback port, lets everybody in without a password,
// and gives up durability for speed, so it is good for nothing but tests.
package pgtest

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	// readyWithin is far above the second it takes, for machines under load.
	readyWithin = time.Minute
	// stopWithin bounds each of the two ways to stop a server.
	stopWithin = 10 * time.Second
	// portAttempts: a free port can be taken before the server has bound it.
	portAttempts = 5
)

// Server is a running PostgreSQL server. It ends with its test, and on Linux
// with the test binary at the latest.
type Server struct {
	programs string               // the folder of the server programs
	owner    *syscall.SysProcAttr // the user it runs as
	dir      string               // holds everything of it
	port     int
	cmd      *exec.Cmd
	exited   chan struct{}
}

// Start starts a server with an empty database, which is stopped and removed at
// the end of the test. Without server programs the test is skipped, or fails if
// the environment has CI=true.
func Start(tb testing.TB) *Server {
	tb.Helper()
	programs, err := findPrograms()
	if err != nil {
		if os.Getenv("CI") == "true" {
			tb.Fatal(err)
		}
		tb.Skip(err)
	}
	owner, err := unprivileged()
	if err != nil {
		tb.Fatal(err)
	}
	// Not TB.TempDir: the folder above that one is closed to other users.
	dir, err := os.MkdirTemp("", "pgtest")
	if err != nil {
		tb.Fatal(err)
	}
	s := &Server{programs: programs, owner: owner, dir: dir}
	tb.Cleanup(func() {
		if err := s.stop(); err != nil {
			tb.Error(err)
		}
		if tb.Failed() {
			tb.Logf("log of the PostgreSQL server:\n%s", s.log())
		}
		if err := os.RemoveAll(dir); err != nil {
			tb.Error(err)
		}
	})
	if user := owner.Credential; user != nil {
		if err := os.Chown(dir, int(user.Uid), int(user.Gid)); err != nil {
			tb.Fatal(err)
		}
	}
	if err := s.init(); err != nil {
		tb.Fatal(err)
	}
	if err := s.start(); err != nil {
		tb.Fatal(err)
	}
	return s
}

// URL returns the connection URL of the server's empty database, in the form
// all drivers take. It has a query, to which parameters can be appended.
func (s *Server) URL() string {
	return fmt.Sprintf("postgres://pgtest@127.0.0.1:%d/postgres?sslmode=disable", s.port)
}

func (s *Server) data() string { return filepath.Join(s.dir, "data") }

// command prepares one of the server programs to run in the server's folder as
// its owner. The environment is empty, since PostgreSQL takes settings from it.
func (s *Server) command(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(s.programs, program), args...)
	cmd.Dir = s.dir
	cmd.Env = []string{"LC_ALL=C", "TZ=UTC"}
	attr := *s.owner
	cmd.SysProcAttr = &attr
	return cmd
}

func (s *Server) init() error {
	out, err := s.command("initdb", "--pgdata", s.data(), "--username", "pgtest", "--auth", "trust",
		"--encoding", "UTF8", "--locale", "C", "--no-sync", "--no-instructions").CombinedOutput()
	if err != nil {
		return fmt.Errorf("pgtest: initdb: %w\n%s", err, out)
	}
	return nil
}

func (s *Server) start() error {
	var err error
	for range portAttempts {
		if s.port, err = freePort(); err != nil {
			return err
		}
		if err = s.run(); err == nil {
			return nil
		}
		if !strings.Contains(s.log(), "Address already in use") {
			break
		}
	}
	return fmt.Errorf("%w\n%s", err, s.log())
}

// run starts the server and returns when it accepts connections.
func (s *Server) run() error {
	log, err := os.Create(s.logFile())
	if err != nil {
		return fmt.Errorf("pgtest: %w", err)
	}
	defer log.Close() // the child has its own
	s.cmd = s.command("postgres", "-D", s.data(), "-h", "127.0.0.1", "-p", fmt.Sprint(s.port),
		"-c", "unix_socket_directories=", "-c", "max_connections=200",
		"-c", "fsync=off", "-c", "full_page_writes=off", "-c", "synchronous_commit=off")
	s.cmd.Stdout, s.cmd.Stderr = log, log
	dieWithParent(s.cmd.SysProcAttr)
	s.exited = make(chan struct{})
	started := make(chan error)
	go func() {
		// Linux sends a parent-death signal when the thread that forked ends,
		// so this one stays with the server.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(s.exited)
		err := s.cmd.Start()
		started <- err
		if err == nil {
			_ = s.cmd.Wait() // what it has to say is in its log
		}
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("pgtest: starting postgres: %w", err)
	}

	// The server says that it is ready in a file, and only there. To connect
	// would prove less: on a port that was taken it is another server.
	limit := time.After(readyWithin)
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for !s.ready() {
		select {
		case <-poll.C:
		case <-s.exited:
			return fmt.Errorf("pgtest: postgres did not start: %v", s.cmd.ProcessState)
		case <-limit:
			return fmt.Errorf("pgtest: postgres was not ready within %v", readyWithin)
		}
	}
	return nil
}

// ready reports whether the server's lock file has the status pg_ctl waits for.
func (s *Server) ready() bool {
	const statusLine = 8
	text, err := os.ReadFile(filepath.Join(s.data(), "postmaster.pid"))
	if err != nil {
		return false // not yet written
	}
	lines := strings.Split(string(text), "\n")
	return len(lines) >= statusLine && strings.TrimSpace(lines[statusLine-1]) == "ready"
}

// stop stops the server: first in order, without waiting for clients, then
// without mercy.
func (s *Server) stop() error {
	if s.cmd == nil || s.cmd.Process == nil {
		return nil
	}
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGQUIT} {
		_ = s.cmd.Process.Signal(sig) // fails if it has exited
		select {
		case <-s.exited:
			return nil
		case <-time.After(stopWithin):
		}
	}
	_ = s.cmd.Process.Kill()
	<-s.exited
	return fmt.Errorf("pgtest: postgres did not stop within %v and was killed", 2*stopWithin)
}

func (s *Server) logFile() string { return filepath.Join(s.dir, "log") }

// log returns the end of the server's log.
func (s *Server) log() string {
	const most = 4096
	text, err := os.ReadFile(s.logFile())
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-most):])
}

func freePort() (int, error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("pgtest: looking for a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}
