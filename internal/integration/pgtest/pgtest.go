// Package pgtest starts a real PostgreSQL server for a test.
//
// It uses the server programs of the machine, and needs a Unix system. The
// server listens on a free loopback port, lets everybody in without a password,
// and gives up durability for speed, so it is good for nothing but tests.
package pgtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/fencelock/fencelock/internal/integration/daemon"
)

// Server is a running PostgreSQL server. It ends with its test, and on Linux
// with the test binary at the latest.
type Server struct{ d *daemon.Daemon }

// Start starts a server with an empty database, which is stopped and removed at
// the end of the test. Without server programs the test is skipped, or fails if
// the environment has CI=true.
func Start(tb testing.TB) *Server {
	tb.Helper()
	programs, err := findPrograms()
	if err != nil {
		daemon.Missing(tb, err)
	}
	d := &daemon.Daemon{
		Name: "pgtest",
		// First in order, without waiting for clients.
		Stop:  []syscall.Signal{syscall.SIGINT, syscall.SIGQUIT},
		Taken: func(log string) bool { return strings.Contains(log, "Address already in use") },
	}
	data := func() string { return filepath.Join(d.Dir, "data") }
	d.Prepare = func() error {
		out, err := d.Child(filepath.Join(programs, "initdb"), "--pgdata", data(), "--username", "pgtest", "--auth", "trust",
			"--encoding", "UTF8", "--locale", "C", "--no-sync", "--no-instructions").CombinedOutput()
		if err != nil {
			return fmt.Errorf("initdb: %w\n%s", err, out)
		}
		return nil
	}
	d.Command = func() *exec.Cmd {
		return d.Child(filepath.Join(programs, "postgres"), "-D", data(), "-h", "127.0.0.1", "-p", fmt.Sprint(d.Port),
			"-c", "unix_socket_directories=", "-c", "max_connections=200",
			"-c", "fsync=off", "-c", "full_page_writes=off", "-c", "synchronous_commit=off")
	}
	d.Ready = func() bool { return ready(data()) }
	d.Start(tb, "postgres", "nobody")
	return &Server{d}
}

// URL returns the connection URL of the server's empty database, in the form
// all drivers take. It has a query, to which parameters can be appended.
func (s *Server) URL() string {
	return fmt.Sprintf("postgres://pgtest@127.0.0.1:%d/postgres?sslmode=disable", s.d.Port)
}

// ready reports whether the server's lock file has the status pg_ctl waits for. The
// server says that it is ready in a file, and only there. To connect would prove
// less: on a port that was taken it is another server.
func ready(data string) bool {
	const statusLine = 8
	text, err := os.ReadFile(filepath.Join(data, "postmaster.pid"))
	if err != nil {
		return false // not yet written
	}
	lines := strings.Split(string(text), "\n")
	return len(lines) >= statusLine && strings.TrimSpace(lines[statusLine-1]) == "ready"
}
