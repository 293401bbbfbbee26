//go:build unix

package process

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync/atomic"
	"syscall"
)

// Process is a child process as its parent sees it.
type Process struct {
	name  string
	cmd   *exec.Cmd
	stdin io.WriteCloser
	asked atomic.Bool // to end
}

// Proceed lets one [Self.Pause] return: one that waits, or the next.
func (p *Process) Proceed() error {
	if _, err := io.WriteString(p.stdin, "\n"); err != nil {
		return fmt.Errorf("process: let %s proceed: %w", p.name, err)
	}
	return nil
}

// Stop stops the process with SIGSTOP: none of its threads runs any more, and
// it is not told.
func (p *Process) Stop() error { return p.signal(syscall.SIGSTOP) }

// Continue continues a stopped process, which is not told either.
func (p *Process) Continue() error { return p.signal(syscall.SIGCONT) }

// End asks the process to end: its context ends.
func (p *Process) End() error {
	p.asked.Store(true)
	if err := p.stdin.Close(); err != nil {
		return fmt.Errorf("process: ask %s to end: %w", p.name, err)
	}
	return nil
}

// Kill kills the process with SIGKILL, stopped or not; of one that is gone it
// takes no notice. [Exited] is reported when it is gone.
func (p *Process) Kill() error {
	p.asked.Store(true)
	if err := p.signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

func (p *Process) signal(sig syscall.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil {
		return fmt.Errorf("process: send %v to %s: %w", sig, p.name, err)
	}
	return nil
}
