//go:build unix

package process_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/examples/internal/process"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	process.Main(process.Roles{
		"worker":  worker,
		"failing": func(context.Context, *process.Self) error { return errors.New("this failure is part of a test") },
		"chatty":  chatty,
		"parent":  parent,
	})
	os.Exit(m.Run())
}

// worker reports its process id, pauses once, and goes on until it is asked to
// end.
func worker(ctx context.Context, self *process.Self) error {
	self.Say("up", fencelock.Token{}, "%d", os.Getpid())
	if err := self.Pause(ctx); err != nil {
		return err
	}
	self.Say("proceeded", fencelock.Token{}, "%q", self.Args)
	<-ctx.Done()
	self.Say("ending", fencelock.Token{}, "")
	return nil
}

// chatty prints what is no report.
func chatty(ctx context.Context, self *process.Self) error {
	fmt.Println("this line is part of a test")
	self.Say("up", fencelock.Token{}, "")
	return nil
}

// parent does what a program does that has children: it kills them if it is
// interrupted. It stops its one child, and reports both process ids.
func parent(_ context.Context, self *process.Self) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	group := process.NewGroup(func(process.Report) {})
	defer group.Close()
	child, err := group.Start("grandchild", "worker")
	if err != nil {
		return err
	}
	up, err := group.Await(ctx, "grandchild", "up")
	if err != nil {
		return err
	}
	if err := child.Stop(); err != nil {
		return err
	}
	self.Say("grandchild", fencelock.Token{}, "%d %s", os.Getpid(), up.Text)
	_, err = group.Await(ctx, "grandchild", process.Exited)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func newGroup(t *testing.T) (context.Context, *process.Group) {
	leaks := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, leaks) })
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	group := process.NewGroup(func(process.Report) {})
	t.Cleanup(group.Close)
	return ctx, group
}

func TestLifeOfAChild(t *testing.T) {
	ctx, group := newGroup(t)
	child, err := group.Start("W", "worker", "some", "words")
	require.NoError(t, err)
	_, err = group.Await(ctx, "W", "up")
	require.NoError(t, err)

	require.NoError(t, child.Stop())
	require.NoError(t, child.Proceed())
	require.NoError(t, child.Continue())
	proceeded, err := group.Await(ctx, "W", "proceeded")
	require.NoError(t, err)
	require.Equal(t, `["some" "words"]`, proceeded.Text)

	require.NoError(t, child.End())
	_, err = group.Await(ctx, "W", "ending")
	require.NoError(t, err)
	_, err = group.Await(ctx, "W", process.Exited)
	require.NoError(t, err)
	require.NoError(t, child.Kill(), "one that is gone")
}

func TestAwaitEndsWithTheChild(t *testing.T) {
	ctx, group := newGroup(t)
	for _, role := range []string{"failing", "unknown"} {
		_, err := group.Start("F", role)
		require.NoError(t, err)
		_, err = group.Await(ctx, "F", "up")
		require.ErrorContains(t, err, "F failed: exit status")
	}

	child, err := group.Start("K", "worker")
	require.NoError(t, err)
	require.NoError(t, child.Kill())
	_, err = group.Await(ctx, "K", "proceeded")
	require.ErrorContains(t, err, `K ended and did not report "proceeded"`)

	_, err = group.Start("W", "worker")
	require.NoError(t, err)
	short, cancel := context.WithTimeout(ctx, time.Millisecond)
	defer cancel()
	_, err = group.Await(short, "W", "proceeded")
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

func TestWhatAChildPrintsIsNoReport(t *testing.T) {
	ctx, group := newGroup(t)
	_, err := group.Start("C", "chatty")
	require.NoError(t, err)
	_, err = group.Await(ctx, "C", "up")
	require.NoError(t, err)
}

// TestInterruptEndsAll does what a terminal does for Ctrl-C: it interrupts the
// whole process group of the program, whose child is stopped.
func TestInterruptEndsAll(t *testing.T) {
	ctx, group := newGroup(t)
	_, pid, grandchild := startParent(ctx, t, group)
	require.NoError(t, syscall.Kill(-pid, syscall.SIGINT))
	_, err := group.Await(ctx, "P", process.Exited)
	require.NoError(t, err, "it ended in good order, after its child")
	require.ErrorIs(t, syscall.Kill(grandchild, 0), syscall.ESRCH)
}

// startParent starts a child that has one itself, which is stopped.
func startParent(ctx context.Context, t *testing.T, group *process.Group) (parent *process.Process, pid, grandchild int) {
	parent, err := group.Start("P", "parent")
	require.NoError(t, err)
	report, err := group.Await(ctx, "P", "grandchild")
	require.NoError(t, err)
	_, err = fmt.Sscan(report.Text, &pid, &grandchild)
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(grandchild, 0), "it is there")
	return parent, pid, grandchild
}
