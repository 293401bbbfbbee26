package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"time"

	"github.com/fencelock/fencelock"
)

var runCommand = command{
	name: "run", args: "NAME -- COMMAND [ARG...]",
	does: "run a command while holding a lock",
	more: `Waits for the lock, runs the command, and gives the lock back when the command has ended.
The command's environment has

  FENCING_TOKEN           the token, as text: what a service is to be sent
  FENCING_TOKEN_REVISION  its number, which rises from holder to holder: what a database
                          can keep and compare
  FENCELOCK_NAME          the name of the lock

The command, and what it starts, is a process group of its own; signals that fencelock gets
are passed on to it, and Ctrl-Z stops it alone: fencelock goes on holding the lock. When the
command has ended, what is left of the group is killed before the lock is given back.

If the lock is lost the group is stopped, and the exit code is 121:
  - Because renewals were not answered in time, were denied, or --max-hold is over: SIGTERM
    one margin before etcd could grant the lock to another, and SIGKILL when three quarters of
    the margin are over (half a second before its end, if it is longer than 2 s).
  - Because somebody evicted the holder, deleted the key or revoked the lease: SIGKILL at
    once, because another may have been granted the lock already.
If fencelock itself was stopped (SIGSTOP, or a suspended machine), nothing stopped the command
meanwhile. Once it goes on it looks at the clock first, and within a quarter of a second sends
what is due by then, which is SIGKILL if the time is over. For what the command did in between
there is the token: have it checked where the effects land.
On Linux the command itself, not all it has started, is killed when fencelock is.`,
	register: func(fs *flag.FlagSet) func(context.Context, *call) error {
		var o runOptions
		fs.DurationVar(&o.ttl, "ttl", 15*time.Second, "how long the lock stays taken if this machine dies; whole seconds: a `duration`")
		fs.DurationVar(&o.margin, "margin", 0, "how long before the lease can expire the command is told to stop; a fifth of --ttl by default: a `duration`")
		fs.DurationVar(&o.maxHold, "max-hold", 0, "lose the lock on purpose after that time; no bound by default: a `duration`")
		fs.DurationVar(&o.wait, "wait", -1, "wait in the queue no longer than that; no bound by default: a `duration`")
		fs.BoolVar(&o.noWait, "no-wait", false, "do not wait: exit with 120 if the lock is held or waited for")
		fs.StringVar(&o.label, "label", "", "what others are shown as the holder; host and process id by default: a `text`")
		return func(ctx context.Context, c *call) error {
			o.waitSet, o.marginSet, o.maxHoldSet = isSet(fs, "wait"), isSet(fs, "margin"), isSet(fs, "max-hold")
			return run(ctx, c, o)
		}
	},
}

type runOptions struct {
	ttl, margin, maxHold, wait     time.Duration
	marginSet, maxHoldSet, waitSet bool
	noWait                         bool
	label                          string
}

func isSet(fs *flag.FlagSet, name string) bool {
	set := false
	fs.Visit(func(f *flag.Flag) { set = set || f.Name == name })
	return set
}

func (o *runOptions) check(c *call) error {
	switch {
	case len(c.args) == 0:
		return usage("run: the name of the lock is missing")
	case len(c.args) > 1:
		return usage("run: one name of a lock is wanted before --, not %d; quote a name with spaces, and put -- before the command", len(c.args))
	case len(c.command) == 0 || c.command[0] == "":
		return usage("run: the command is missing: fencelock run NAME -- COMMAND [ARG...]")
	case o.noWait && o.waitSet:
		return usage("run: --no-wait and --wait exclude each other")
	case o.waitSet && o.wait < 0:
		return usage("run: --wait=%v is negative", o.wait)
	}
	if !o.marginSet {
		o.margin = o.ttl / 5
	}
	return nil
}

func (o *runOptions) locker(hooks fencelock.Hooks, prefix string) []fencelock.Option {
	opts := []fencelock.Option{
		fencelock.WithTTL(o.ttl), fencelock.WithMargin(o.margin), fencelock.WithPrefix(prefix),
		fencelock.WithHooks(hooks), fencelock.WithLogger(slog.New(slog.DiscardHandler)),
	}
	if o.label != "" {
		opts = append(opts, fencelock.WithLabel(o.label))
	}
	if o.maxHoldSet {
		opts = append(opts, fencelock.MaxHold(o.maxHold))
	}
	if o.waitSet {
		opts = append(opts, fencelock.MaxWait(o.wait))
	}
	return opts
}

// run is the command. What it holds and starts is gone when it returns: first the
// group of processes, then the lock, then the connection.
func run(ctx context.Context, c *call, o runOptions) error {
	if err := o.check(c); err != nil {
		return err
	}
	// Before anything is sent: a command that cannot run is no reason to have the
	// others wait.
	path, err := findCommand(c.command[0])
	if err != nil {
		return err
	}
	signals := newSignals()
	defer signals.stop()
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	signals.endOn(cancel)

	client, err := c.connection.dial(ctx) // not waiting: what a wait leaves is cleaned up through it
	if err != nil {
		return signals.or(err)
	}
	defer client.Close()
	var result fencelock.Result
	hooks := fencelock.Hooks{NotAcquired: func(i fencelock.NotAcquiredInfo) { result = i.Result }}
	locker, err := fencelock.New(client, o.locker(hooks, c.connection.prefix)...)
	if err != nil {
		return err
	}
	defer locker.Close() // after a loss, this or the release revokes the lease
	acquire := locker.Acquire
	if o.noWait {
		acquire = locker.TryAcquire
	}
	lock, err := acquire(waiting, c.args[0])
	if err != nil {
		return signals.or(notAcquired(c.connection, result, err))
	}
	hold := &hold{lock: lock, margin: o.margin}
	code, err := hold.guard(path, c.command, signals)
	return hold.conclude(code, err)
}

func notAcquired(conn *connection, result fencelock.Result, err error) error {
	switch result {
	case fencelock.ResultUnreachable, fencelock.ResultNoQuorum:
		return &exit{codeUnreachable, fmt.Errorf("no answer from etcd at %s, and the command was not started; "+
			"are --endpoints and the TLS flags right, and has the cluster a quorum? %w", conn.endpoints, err)}
	}
	return conn.explain(err)
}

// environment is what the command gets.
func environment(lock *fencelock.Lock) ([]string, error) {
	text, err := lock.Token().MarshalText()
	if err != nil {
		return nil, err
	}
	return append(os.Environ(),
		"FENCING_TOKEN="+string(text),
		"FENCING_TOKEN_REVISION="+strconv.FormatInt(lock.Token().Revision(), 10),
		"FENCELOCK_NAME="+lock.Name(),
	), nil
}

// hold is a lock that is held for a command.
type hold struct {
	lock   *fencelock.Lock
	margin time.Duration
}

// releaseWithin bounds the release, in which etcd may not answer.
const releaseWithin = 5 * time.Second

// conclude gives the lock back when the command has ended, with that code or because
// of err, and says what became of it all.
func (h *hold) conclude(code int, err error) error {
	ctx, cancel := context.WithTimeout(context.Background(), releaseWithin)
	defer cancel()
	released := h.lock.Release(ctx)
	var lost *fencelock.LostError
	switch {
	case errors.As(released, &lost):
		if err != nil {
			return &exit{codeLost, fmt.Errorf("%w; %w", lost, err)}
		}
		return &exit{codeLost, lost}
	case err != nil:
		return err
	case released != nil && code == 0:
		return released // 124
	case released != nil:
		return &exit{code, released}
	case code == 0:
		return nil
	}
	return &exit{code: code}
}

// leadOf is how long before the end of the margin SIGKILL is sent: it takes effect
// after it is sent, and etcd's answer to the next holder may come at once.
func leadOf(margin time.Duration) time.Duration { return min(margin/4, 500*time.Millisecond) }

// lookEvery is how often the clock is looked at, beside what the library's own timer
// tells: timers stand still while a machine is suspended.
func lookEvery(margin time.Duration) time.Duration {
	return min(max(margin/10, 5*time.Millisecond), 200*time.Millisecond)
}

// graceAfter is how long after it was last seen held the command of a lost lock may
// go on. The moment at which etcd could grant the lock to another comes one margin
// after the context ends, so that much after the lock was last seen to be held at the
// earliest; however late the loss is noticed, and without a look at a wall clock.
func graceAfter(reason fencelock.Reason, margin time.Duration) time.Duration {
	switch reason {
	case fencelock.LostExpired, fencelock.LostDenied, fencelock.LostMaxHold:
		return margin - leadOf(margin)
	}
	return 0
}
