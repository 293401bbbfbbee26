//go:build unix

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/clock"
)

// findCommand looks a command up as a shell does.
func findCommand(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err == nil {
		return path, nil
	}
	return "", cannotStart(name, err)
}

func cannotStart(name string, err error) error {
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		return &exit{codeNotFound, fmt.Errorf("command %q was not found: %w", name, err)}
	}
	return &exit{codeCannotRun, fmt.Errorf("command %q cannot be run: %w", name, err)}
}

// signals are those that this process was sent. Each is either for the wait for the
// lock, which it ends, or passed on.
type signals struct {
	got    chan os.Signal
	over   chan struct{}
	wg     sync.WaitGroup
	mu     sync.Mutex
	cancel func() // ends the wait; nil once the command runs
	pass   func(s syscall.Signal)
	first  syscall.Signal // that ended the wait, 0 for none
}

// newSignals takes over the signals that have a meaning to a command. One that is
// ignored stays so, as nohup wants it. SIGPIPE is taken so that a closed standard
// error does not end this process and leave the command behind.
func newSignals() *signals {
	s := &signals{got: make(chan os.Signal, 64), over: make(chan struct{})}
	for _, sig := range []os.Signal{
		syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2,
		syscall.SIGALRM, syscall.SIGWINCH, syscall.SIGTSTP, syscall.SIGCONT, syscall.SIGPIPE,
	} {
		if !signal.Ignored(sig) {
			signal.Notify(s.got, sig)
		}
	}
	s.wg.Go(func() {
		for {
			select {
			case sig := <-s.got:
				s.handle(sig.(syscall.Signal))
			case <-s.over:
				return
			}
		}
	})
	return s
}

func (s *signals) handle(sig syscall.Signal) {
	if sig == syscall.SIGPIPE {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pass != nil {
		s.pass(sig)
		return
	}
	switch sig {
	case syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT:
		if s.first == 0 {
			s.first = sig
		}
		if s.cancel != nil {
			s.cancel()
		}
	case syscall.SIGTSTP:
		// Nothing is held yet, or for a moment only.
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	}
}

func (s *signals) endOn(cancel func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cancel = cancel
	if s.first != 0 {
		cancel()
	}
}

// passTo passes signals on from now, the one that came before first.
func (s *signals) passTo(pass func(syscall.Signal)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pass = pass
	if s.first != 0 {
		pass(s.first)
	}
}

// or is the signal's exit if one ended the wait, else err.
func (s *signals) or(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.first != 0 {
		return &exit{codeSignal + int(s.first), fmt.Errorf("%v while waiting for the lock; the command was not started", s.first)}
	}
	return err
}

func (s *signals) stop() {
	signal.Stop(s.got)
	close(s.over)
	s.wg.Wait()
}

// guard runs the command for as long as the lock is held, and returns its exit code.
// When it returns, no process of the command's group is left.
func (h *hold) guard(path string, argv []string, sigs *signals) (code int, err error) {
	env, err := environment(h.lock)
	if err != nil {
		return 0, err
	}
	cmd := &exec.Cmd{
		Path: path, Args: argv, Env: env,
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true},
	}
	dieWithParent(cmd.SysProcAttr)
	restore := takeTerminal(cmd.SysProcAttr)
	defer restore()

	g := &group{}
	if err := sigs.or(nil); err != nil {
		return 0, err
	}
	lastHeld := clock.Now()
	if h.lock.Err() != nil {
		return 0, nil // lost already, as the release will say
	}
	if err := g.start(cmd); err != nil {
		return 0, cannotStart(argv[0], err)
	}
	sigs.passTo(g.signal)
	look := time.NewTicker(lookEvery(h.margin))
	defer look.Stop()
	for {
		select {
		case <-g.ended:
			return g.finish()
		case <-h.lock.Context().Done():
		case <-look.C:
		}
		now := clock.Now()
		err := h.lock.Err()
		if err == nil {
			lastHeld = now
			continue
		}
		var lost *fencelock.LostError
		if !errors.As(err, &lost) {
			return 0, err // nobody else releases it
		}
		h.stop(g, lost, lastHeld)
		return g.finish()
	}
}

// stop stops the group of a lock that is lost, first asking and then by force, and
// returns when the command has ended.
func (h *hold) stop(g *group, lost *fencelock.LostError, lastHeld clock.Instant) {
	grace := graceAfter(lost.Reason, h.margin)
	if clock.Since(lastHeld) < grace {
		g.signal(syscall.SIGTERM)
		g.signal(syscall.SIGCONT) // else one that is stopped would not hear of it
	}
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for clock.Since(lastHeld) < grace {
		select {
		case <-g.ended:
			return
		case <-look.C:
		}
	}
	g.signal(syscall.SIGKILL)
	<-g.ended
}

// group is the command's group of processes.
type group struct {
	cmd   *exec.Cmd
	pgid  atomic.Int64  // 0 until it is started, and when it is over
	ended chan struct{} // closed when the command has ended; on Linux it is not reaped then
}

func (g *group) start(cmd *exec.Cmd) error {
	if err := cmd.Start(); err != nil {
		return err
	}
	g.cmd, g.ended = cmd, make(chan struct{})
	g.pgid.Store(int64(cmd.Process.Pid))
	go func() { // ends with the command, which finish waits for
		awaitEnd(cmd)
		close(g.ended)
	}()
	return nil
}

// signal sends a signal to all of the group.
func (g *group) signal(sig syscall.Signal) {
	if pgid := g.pgid.Load(); pgid != 0 {
		_ = syscall.Kill(-int(pgid), sig)
	}
}

// goneWithin bounds the wait for what was killed: a process can stay in the kernel,
// or for want of somebody who reaps it.
const goneWithin = 100 * time.Millisecond

// finish ends what the command left behind in its group, and returns its exit code.
func (g *group) finish() (code int, err error) {
	<-g.ended
	// Where the command is not reaped yet, the number of its group cannot be another's.
	g.signal(syscall.SIGKILL)
	pgid := int(g.pgid.Swap(0))
	if g.cmd.ProcessState == nil {
		_ = g.cmd.Wait() // the state says it all
	}
	for limit := time.Now().Add(goneWithin); time.Now().Before(limit); time.Sleep(time.Millisecond) {
		if errors.Is(syscall.Kill(-pgid, 0), syscall.ESRCH) {
			break
		}
	}
	status := g.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		return codeSignal + int(status.Signal()), nil
	}
	return status.ExitStatus(), nil
}
