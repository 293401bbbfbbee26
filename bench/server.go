package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"
)

// server is a peer's server program on a free port of loopback, with a folder of its
// own. On Linux it ends with this process at the latest.
type server struct {
	name  string
	users []string // as whom it runs where this is root; none: as this process's
	dir   string
	port  int

	prepare   func() error // makes its data, once; nil for none
	configure func() error // for the port, before each start; nil for none
	command   func() *exec.Cmd
	ready     func(ctx context.Context) error // nil when it serves

	owner  *syscall.Credential
	cmd    *exec.Cmd
	exited chan struct{}
}

const (
	serverReadyWithin = time.Minute // far above what it takes, for a busy machine
	serverStopWithin  = 10 * time.Second
	serverAttempts    = 3 // a free port can be taken before the server has it
)

// start returns when the server serves. After a failure nothing of it is left.
func (s *server) start(ctx context.Context, dir string) (err error) {
	if s.owner, err = credential(s.users); err != nil {
		return fmt.Errorf("bench: %s: %w", s.name, err)
	}
	if dir == "" {
		dir = os.TempDir()
	}
	if dir, err = filepath.Abs(dir); err != nil { // the server's own folder is another
		return fmt.Errorf("bench: folder of %s: %w", s.name, err)
	}
	if s.dir, err = os.MkdirTemp(dir, "fencelock-bench-"+s.name+"-"); err != nil {
		return fmt.Errorf("bench: folder of %s: %w", s.name, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("bench: %s: %w\n%s", s.name, err, s.log()), s.stop())
		}
	}()
	if s.owner != nil {
		if err := os.Chown(s.dir, int(s.owner.Uid), int(s.owner.Gid)); err != nil {
			return err
		}
	}
	if s.prepare != nil {
		if err := s.prepare(); err != nil {
			return err
		}
	}
	for range serverAttempts {
		if err = s.run(ctx); err == nil || ctx.Err() != nil {
			return err
		}
	}
	return err
}

func (s *server) run(ctx context.Context) error {
	free, err := freeAddresses(1)
	if err != nil {
		return err
	}
	_, port, err := net.SplitHostPort(free[0])
	if err != nil {
		return err
	}
	if s.port, err = strconv.Atoi(port); err != nil {
		return err
	}
	if s.configure != nil {
		if err := s.configure(); err != nil {
			return err
		}
	}
	log, err := os.Create(s.logFile())
	if err != nil {
		return err
	}
	defer log.Close() // the server has its own
	s.cmd = s.command()
	s.cmd.Stdout, s.cmd.Stderr = log, log
	dieWithParent(s.cmd.SysProcAttr)
	started := make(chan error)
	s.exited = make(chan struct{})
	go func() {
		// The signal at the parent's death comes when the thread that forked ends.
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
		return err
	}
	return s.awaitReady(ctx)
}

func (s *server) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, serverReadyWithin)
	defer cancel()
	for {
		// Bounded: a client may go on connecting to who has exited.
		attempt, end := context.WithTimeout(ctx, 2*time.Second)
		err := s.ready(attempt)
		end()
		select {
		// First, for on a port that was taken it is another server that answers.
		case <-s.exited:
			return fmt.Errorf("it did not start: %v", s.cmd.ProcessState)
		case <-ctx.Done():
			return fmt.Errorf("it was not ready: %w", errors.Join(context.Cause(ctx), err))
		default:
		}
		if err == nil {
			return nil
		}
		_ = sleep(ctx, 20*time.Millisecond) // the end of ctx is seen above
	}
}

// stop ends the server and removes its data.
func (s *server) stop() error {
	if s.cmd != nil && s.cmd.Process != nil {
		// PostgreSQL's way to end without waiting for clients; to others it is an end too.
		_ = s.cmd.Process.Signal(syscall.SIGINT) // fails if it has exited
		select {
		case <-s.exited:
		case <-time.After(serverStopWithin):
			_ = s.cmd.Process.Kill()
			<-s.exited
		}
	}
	return os.RemoveAll(s.dir)
}

// child returns a command in the server's folder, as its user. The environment is
// nearly empty, since servers take settings from it. A process group of its own keeps
// a Ctrl-C of the terminal from it: stop ends it when nothing is measured any more.
func (s *server) child(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(program, args...)
	cmd.Dir = s.dir
	cmd.Env = []string{"LC_ALL=C", "TZ=UTC", "HOME=" + s.dir, "PATH=" + os.Getenv("PATH")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.owner, Setpgid: true}
	return cmd
}

func (s *server) address() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

func (s *server) logFile() string { return filepath.Join(s.dir, "log") }

// log returns the end of what the server said.
func (s *server) log() string {
	const most = 4096
	text, err := os.ReadFile(s.logFile())
	if err != nil {
		return ""
	}
	return string(text[max(0, len(text)-most):])
}

// credential returns the first of users that exists, where this is root and the
// server refuses to run as it.
func credential(users []string) (*syscall.Credential, error) {
	if os.Geteuid() != 0 || len(users) == 0 {
		return nil, nil
	}
	for _, name := range users {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, errUser := strconv.ParseUint(u.Uid, 10, 32)
		gid, errGroup := strconv.ParseUint(u.Gid, 10, 32)
		if err := errors.Join(errUser, errGroup); err != nil {
			return nil, fmt.Errorf("user %s: %w", name, err)
		}
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
	}
	return nil, fmt.Errorf("it does not run as root, and there is none of the users %v", users)
}
