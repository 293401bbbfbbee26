// Package mytest starts a real MariaDB server for a test.
//
// It uses the server programs of the machine, and needs a Unix system. The
// server listens on a free loopback port, lets root in without a password, and
// gives up durability for speed, so it is good for nothing but tests.
package mytest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/fencelock/fencelock/internal/integration/daemon"
)

// Server is a running MariaDB server. It ends with its test, and on Linux with the
// test binary at the latest.
type Server struct{ d *daemon.Daemon }

// Start starts a server with an empty database called test, which is stopped and
// removed at the end of the test. Without server programs the test is skipped, or
// fails if the environment has CI=true.
func Start(tb testing.TB) *Server {
	tb.Helper()
	install, err := find("mariadb-install-db")
	if err != nil {
		daemon.Missing(tb, err)
	}
	mariadbd, err := find("mariadbd")
	if err != nil {
		daemon.Missing(tb, err)
	}
	d := &daemon.Daemon{
		Name:  "mytest",
		Stop:  []syscall.Signal{syscall.SIGTERM},
		Taken: func(log string) bool { return strings.Contains(log, "Address already in use") },
	}
	in := func(name string) string { return filepath.Join(d.Dir, name) }
	d.Prepare = func() error {
		out, err := d.Child(install, "--no-defaults", "--datadir="+in("data"), "--auth-root-authentication-method=normal",
			"--skip-name-resolve", "--innodb-flush-method=nosync").CombinedOutput()
		if err != nil {
			return fmt.Errorf("mariadb-install-db: %w\n%s", err, out)
		}
		return nil
	}
	d.Command = func() *exec.Cmd {
		return d.Child(mariadbd, "--no-defaults", "--datadir="+in("data"), "--tmpdir="+d.Dir,
			"--socket="+in("socket"), "--pid-file="+in("pid"), "--bind-address=127.0.0.1", "--port="+fmt.Sprint(d.Port),
			"--skip-name-resolve", "--max-connections=200", "--character-set-server=utf8mb4",
			"--innodb-flush-log-at-trx-commit=0", "--innodb-flush-method=nosync", "--innodb-buffer-pool-size=32M")
	}
	// It writes its number when it accepts connections. To connect would prove less:
	// on a port that was taken it is another server.
	d.Ready = func() bool {
		text, err := os.ReadFile(in("pid"))
		return err == nil && strings.TrimSpace(string(text)) == fmt.Sprint(d.Pid())
	}
	d.Start(tb, "mysql", "nobody")
	return &Server{d}
}

// Addr returns the server's address, at which root needs no password.
func (s *Server) Addr() string { return fmt.Sprintf("127.0.0.1:%d", s.d.Port) }

// find returns the path of a program, from PATH or from where Debian keeps it, which
// is not in every user's PATH.
func find(program string) (string, error) {
	for _, name := range []string{program, "/usr/sbin/" + program} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errors.New("mytest: no MariaDB here: " + program + " is not in PATH; on Debian install the package mariadb-server")
}
