//go:build unix

package process

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"time"
)

// Group is the child processes of a program. Their reports come in one stream,
// in each child's own order, so that the parent can be a script that is read
// from top to bottom. Its methods are for one goroutine.
//
// The children die with their parent. [Group.Close] kills them, and a Ctrl-C
// reaches the parent alone, so that it can. If the parent is killed, Linux kills
// them, and elsewhere their contexts end, of those that are not stopped.
type Group struct {
	each     func(Report)
	children []*Process
	reports  chan Report
	closed   chan struct{}
	wg       sync.WaitGroup
}

// NewGroup returns a group without children. each is called with every report,
// from within [Group.Next] and [Group.Await].
func NewGroup(each func(Report)) *Group {
	return &Group{each: each, reports: make(chan Report), closed: make(chan struct{})}
}

// Start starts this program again, in that role and under that name.
func (g *Group) Start(name, role string, args ...string) (*Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("process: find this program: %w", err)
	}
	cmd := exec.Command(self, args...)
	cmd.Env = append(os.Environ(), variable+"="+role+" "+name)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = dieWithParent()
	cmd.SysProcAttr.Setpgid = true // out of reach of the terminal's Ctrl-C
	p := &Process{name: name, cmd: cmd}
	if p.stdin, err = cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("process: start %s: %w", name, err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("process: start %s: %w", name, err)
	}
	started := make(chan error)
	g.wg.Go(func() {
		// Linux kills a child when the thread that started it ends, not the
		// process; Go ends threads as it likes. So this one stays with the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			g.follow(p, stdout)
		}
	})
	if err := <-started; err != nil {
		return nil, fmt.Errorf("process: start %s: %w", name, err)
	}
	g.children = append(g.children, p)
	return p, nil
}

// follow passes on what a child reports, until it is gone.
func (g *Group) follow(p *Process, stdout io.Reader) {
	reports := json.NewDecoder(stdout)
	for {
		var r Report
		err := reports.Decode(&r)
		if err == nil {
			g.pass(r)
			continue
		}
		// A killed process may have ended within a report.
		if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			fmt.Fprintf(os.Stderr, "process: %s is killed, for what it wrote is no report: %v\n", p.name, err)
			_ = p.cmd.Process.Kill()
		}
		break
	}
	err := p.cmd.Wait()
	last := Report{Who: p.name, At: time.Now(), Event: Exited}
	if !p.asked.Load() {
		last.failure = err
	}
	g.pass(last)
}

func (g *Group) pass(r Report) {
	select {
	case g.reports <- r:
	case <-g.closed:
	}
}

// Next returns the next report of any child. The failure of a child that was
// not asked to end is an error.
func (g *Group) Next(ctx context.Context) (Report, error) {
	select {
	case r := <-g.reports:
		g.each(r)
		if r.failure != nil {
			return r, fmt.Errorf("process: %s failed: %w", r.Who, r.failure)
		}
		return r, nil
	case <-ctx.Done():
		return Report{}, context.Cause(ctx)
	}
}

// Await returns the next report of that child about that event.
func (g *Group) Await(ctx context.Context, who, event string) (Report, error) {
	for {
		r, err := g.Next(ctx)
		switch {
		case err != nil:
			return r, fmt.Errorf("process: wait for %s to report %q: %w", who, event, err)
		case r.Who != who:
		case r.Event == event:
			return r, nil
		case r.Event == Exited:
			return r, fmt.Errorf("process: %s ended and did not report %q", who, event)
		}
	}
}

// Close kills every child, and returns when they are gone.
func (g *Group) Close() {
	close(g.closed)
	for _, p := range g.children {
		_ = p.Kill()
	}
	g.wg.Wait()
}
