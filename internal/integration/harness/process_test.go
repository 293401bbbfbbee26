package harness

import (
	"context"
	"errors"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestProcessTalks(t *testing.T) {
	NoLeaks(t)
	begin := time.Now()
	p := Command{Role: "echo", Args: []string{"a", "-b"}, Env: []string{"HARNESS_TEST=c"}}.Start(t)
	started := p.Expect("started", soon)
	require.Equal(t, []string{"[a", "-b]", "c"}, started.Fields())
	require.False(t, started.Sent.Before(begin.Truncate(0)))
	require.False(t, started.Received.Before(begin))

	require.NoError(t, p.Send("one"))
	require.NoError(t, p.Send("two words"))
	require.Equal(t, "one", p.Expect("echo", soon).Text)
	require.Equal(t, "two words", p.Expect("echo", soon).Text)
	require.NoError(t, p.Shutdown(soon))
	require.Equal(t, "bye", p.Expect("bye", soon).Name, "said before it exited")
	require.Len(t, p.Events(), 4)
	require.NoError(t, p.Err())
	require.Error(t, p.Send("nobody reads this"))
}

func TestProcessThatFails(t *testing.T) {
	NoLeaks(t)
	p := Start(t, "failing")
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	_, err := p.Await(ctx, "anything")
	require.ErrorContains(t, err, "so it failed")
	var status *exec.ExitError
	require.ErrorAs(t, p.Err(), &status)
	require.Equal(t, 1, status.ExitCode())
	require.Error(t, p.Shutdown(soon))
}

func TestProcessWithoutARole(t *testing.T) {
	NoLeaks(t)
	p := Start(t, "no such role")
	Receive(t, p.Exited(), soon, "exit")
	require.ErrorContains(t, p.Err(), "exit status 2")
}

func TestProcessAwaitEndsWithItsContext(t *testing.T) {
	NoLeaks(t)
	p := Start(t, "echo")
	p.Expect("started", soon)
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(cause)
	_, err := p.Await(ctx, "never")
	require.ErrorIs(t, err, cause)
}

func TestProcessStops(t *testing.T) {
	NoLeaks(t)
	p := Start(t, "ticker")
	p.Expect("tick", soon)
	require.NoError(t, p.Stop())
	stoppedAt := time.Now()
	all, err := stopped(p.PID())
	require.NoError(t, err)
	require.True(t, all)

	// All it said, it said before it stopped.
	time.Sleep(50 * time.Millisecond)
	resumedAt := time.Now()
	require.NoError(t, p.Cont())
	for {
		tick := p.Expect("tick", soon)
		if tick.Sent.After(resumedAt) {
			return
		}
		require.False(t, tick.Sent.After(stoppedAt), "it runs while it is stopped")
	}
}

func TestProcessIsKilledWhileStopped(t *testing.T) {
	NoLeaks(t)
	p := Start(t, "stubborn")
	p.Expect("started", soon)
	require.NoError(t, p.Stop())
	require.Error(t, p.Shutdown(10*time.Millisecond))
	p.Kill()
	require.ErrorContains(t, p.Err(), "killed")
	require.Error(t, p.Stop())
	require.Error(t, p.Cont())
}

func TestProcessExpectFailsTheTest(t *testing.T) {
	NoLeaks(t)
	r := &recorder{TB: t}
	failures := r.run(func() {
		Start(r, "echo").Expect("never", 10*time.Millisecond)
	})
	require.Len(t, failures, 1)
	require.Contains(t, failures[0], `no event "never"`)
}

// A Ctrl-C on the terminal goes to a process group; the children are not in
// their parent's.
func TestProcessHasAGroupOfItsOwn(t *testing.T) {
	NoLeaks(t)
	p := Start(t, "echo")
	group, err := syscall.Getpgid(p.PID())
	require.NoError(t, err)
	require.Equal(t, p.PID(), group)
}
