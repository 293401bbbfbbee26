package integration

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/integration/harness"
)

// The token that a client got with its password expires while it is not used.
// etcd's client gets a new one for every request, but not for a stream that is
// open: a new watch on it is refused, again and again, for as long as another
// watch keeps the stream open, and a naive library's waiter sleeps for ever.
func TestFault19TokenExpires(t *testing.T) {
	harness.Parallel(t)
	g := newGuarded(t, 1)
	g.addWorker("worker")
	j := newJournal()
	w := wire(t, g.as("worker"))
	const ttl = 9 * time.Second // renewed every 3 s, and by then the token has expired
	l := g.locker(w.Client, append(reportTo(j), fencelock.WithTTL(ttl))...)
	other := g.locker(g.as("worker"))

	held := g.acquire(l, "held")
	busy := g.acquire(other, "busy")
	g.awaitReads(w, 1) // the watch of the key that is held
	g.awaitTokenExpiry("worker")
	waiting := g.acquireLater(l, "busy")
	g.awaitQueue("busy", 2)
	released := time.Now()
	g.release(busy)
	next := g.granted(waiting)
	require.Less(t, time.Since(released), 2*time.Second, "from the release to the grant")

	awaitReports[fencelock.RenewedInfo](t, j, 1, soon)
	g.awaitTokenExpiry("worker")
	g.release(next)
	g.release(g.acquire(l, "busy"))
	g.release(held)
	require.Empty(t, reported[fencelock.LostInfo](j))
	require.Empty(t, warnings(j, ""))
}

// withdrawal takes away from a user what it needs, and gives it back.
type withdrawal struct {
	withdraw func(g guarded, user string)
	restore  func(g guarded, user string)
	cause    error           // etcd's answer from then on
	phase    fencelock.Phase // of an acquire
}

var withdrawals = map[string]withdrawal{
	"permission removed": {
		withdraw: func(g guarded, user string) { g.forbid(user, keyPrefix) },
		restore:  func(g guarded, user string) { g.allow(user, keyPrefix, clientv3.PermReadWrite) },
		cause:    rpctypes.ErrPermissionDenied,
		phase:    fencelock.PhaseQueue, // anybody may grant a lease
	},
	"password changed": {
		withdraw: func(g guarded, user string) { g.changePassword(user, wrongPassword) },
		restore:  func(g guarded, user string) { g.changePassword(user, rightPassword) },
		cause:    rpctypes.ErrAuthFailed,
		phase:    fencelock.PhaseLease,
	},
	"user deleted": {
		withdraw: func(g guarded, user string) {
			_, err := g.clean.UserDelete(g.t.Context(), user)
			require.NoError(g.t, err)
		},
		restore: func(g guarded, user string) {
			_, err := g.clean.UserAdd(g.t.Context(), user, rightPassword)
			require.NoError(g.t, err)
			_, err = g.clean.UserGrantRole(g.t.Context(), user, user)
			require.NoError(g.t, err)
		},
		cause: rpctypes.ErrAuthFailed,
		phase: fencelock.PhaseLease,
	},
}

// A holder is no longer allowed what it holds. A naive library takes the answer
// to its renewal for one of many errors, repeats it, and goes on; the lease runs
// out at etcd meanwhile, and the lock is another's.
func TestFault19WithdrawnWhileHolding(t *testing.T) {
	harness.Parallel(t)
	const ttl = 4 * time.Second // on a busy machine too, the answer comes before the deadline
	g := newGuarded(t, 0)
	g.addWorker("other")
	atOnce(t, withdrawals, func(t *testing.T, w withdrawal) {
		g := g.part(t)
		user, name := t.Name(), "job of "+t.Name()
		g.addWorker(user)
		holder := newPartyWith(t, g.configOf(user), ttl, ttl/5)
		waiter := newPartyWith(t, g.configOf("other"), calmTTL, time.Second)
		deletions := harness.WatchDeletions(t, g.clean, queueOf(name))
		h := holder.acquire(t, name)
		granted := waiter.queue(t, g.clean, name, 1)

		withdrawn := time.Now()
		w.withdraw(g, user)
		gone := deletions.Expect(h.Token().Revision(), eventually)
		next := harness.Receive(t, granted, eventually, "grant to the waiter")
		holder.requireToldInTime(t, h, gone, next)
		require.Less(t, next.at.Sub(withdrawn), ttl+time.Second+late)
		loss := holder.requireLossReported(t, h, fencelock.LostDenied)
		require.ErrorIs(t, loss, w.cause)
		require.ErrorContains(t, loss, queueOf(name))
		holder.requireLostRelease(t, h)

		for call, do := range holder.acquiringCalls(name) {
			err := g.requireDenied(holder.told, w.cause, do)
			require.Equal(t, w.phase, err.Phase, err)
			if w.phase == fencelock.PhaseQueue {
				require.ErrorContains(t, err, queueOf(name), call)
			}
		}
		_, err := holder.Inspect(t.Context(), name)
		require.ErrorIs(t, err, w.cause)

		// And it is not for ever.
		w.restore(g, user)
		require.NoError(t, next.lock.Release(t.Context()))
		require.NoError(t, holder.acquire(t, name).Release(t.Context()))
		require.NoError(t, holder.Close())
		require.NoError(t, waiter.Close())
	})
}

// acquiringCalls are all calls that acquire that lock. They are made with a
// context that lives up to the end of the test, and no callback may run.
func (p *party) acquiringCalls(name string) map[string]func() error {
	never := func(context.Context, fencelock.Token) error { panic("the callback ran without the lock") }
	ctx := context.Background()
	return map[string]func() error{
		"Acquire":    func() error { _, err := p.Acquire(ctx, name); return err },
		"MaxWait":    func() error { _, err := p.Acquire(ctx, name, fencelock.MaxWait(time.Hour)); return err },
		"MaxWait(0)": func() error { _, err := p.Acquire(ctx, name, fencelock.MaxWait(0)); return err },
		"TryAcquire": func() error { _, err := p.TryAcquire(ctx, name); return err },
		"Do":         func() error { return p.Do(ctx, name, never) },
		"Lead":       func() error { return p.Lead(ctx, name, never) },
		"DoAdvisory": func() error {
			return p.DoAdvisory(ctx, name, func(ctx context.Context) error { return never(ctx, fencelock.Token{}) })
		},
	}
}

// Authentication is switched on while locks are held. A client that has a
// password all along does not notice; one that has none may do nothing any more.
func TestFault19SwitchedOnWhileHolding(t *testing.T) {
	harness.Parallel(t)
	const ttl = 4 * time.Second
	g := newUnguarded(t, 0)
	g.addWorker("known")
	deletions := harness.WatchDeletions(t, g.clean, keyPrefix)
	known := newPartyWith(t, g.configOf("known"), calmTTL, time.Second)
	unknown := newParty(t, ttl, g.addr)
	h, keeps := unknown.acquire(t, "lost"), known.acquire(t, "kept")
	granted := known.queue(t, g.clean, "lost", 1)

	g.enable()
	gone := deletions.Expect(h.Token().Revision(), eventually)
	next := harness.Receive(t, granted, eventually, "grant to the waiter")
	unknown.requireToldInTime(t, h, gone, next)
	loss := unknown.requireLossReported(t, h, fencelock.LostDenied)
	require.ErrorIs(t, loss, rpctypes.ErrUserEmpty)
	unknown.requireLostRelease(t, h)
	for _, do := range unknown.acquiringCalls("lost") {
		err := g.requireDenied(unknown.told, rpctypes.ErrUserEmpty, do)
		require.Equal(t, fencelock.PhaseLease, err.Phase, err)
	}
	require.NoError(t, next.lock.Release(t.Context()))
	require.NoError(t, keeps.Release(t.Context()))
	require.Empty(t, reported[fencelock.LostInfo](known.told))
	require.NoError(t, known.Close())
	// It may not revoke its lease either, and says so until it has expired.
	if err := unknown.Close(); err != nil {
		require.ErrorIs(t, err, fencelock.ErrUnconfirmed)
		require.ErrorIs(t, err, rpctypes.ErrUserEmpty)
	}
}

// Some have no permission, or not all that it takes, from the start. A naive
// library retries the refusal until its caller has no patience left, and tells
// of a time-out then.
func TestFault19NeverAllowed(t *testing.T) {
	g := newGuarded(t, 0)
	users := map[string]func(user string){
		"may do nothing":       func(string) {},
		"may do it elsewhere":  func(user string) { g.allow(user, "elsewhere/", clientv3.PermReadWrite) },
		"may only read":        func(user string) { g.allow(user, keyPrefix, clientv3.PermRead) },
		"may only write":       func(user string) { g.allow(user, keyPrefix, clientv3.PermWrite) },
		"may use another name": func(user string) { g.allow(user, queueOf("allowed"), clientv3.PermReadWrite) },
	}
	g.addWorker("other")
	other := g.locker(g.as("other"))
	busy := g.acquire(other, "busy")
	for user, permit := range users {
		t.Run(user, func(t *testing.T) {
			g := g.part(t)
			g.addUser(user)
			permit(user)
			p := newPartyWith(t, g.configOf(user), calmTTL, time.Second)
			for _, name := range []string{"free", "busy"} {
				for call, do := range p.acquiringCalls(name) {
					err := g.requireDenied(p.told, rpctypes.ErrPermissionDenied, do)
					require.Equal(t, fencelock.PhaseQueue, err.Phase, err)
					require.ErrorContains(t, err, queueOf(name), call)
				}
			}
			if user == "may use another name" {
				require.NoError(t, p.acquire(t, "allowed").Release(t.Context()))
			}
			require.NoError(t, p.Close())
			require.Len(t, harness.Leases(t, g.clean), 1, "the lease of the one who holds")
		})
	}
	g.release(busy)
}

// The permission goes while one waits. A naive library's waiter waits on for a
// lock that it can never have: nothing wakes it, and its key, which nobody renews,
// is gone.
func TestFault19WithdrawnWhileWaiting(t *testing.T) {
	harness.Parallel(t)
	g := newGuarded(t, 0)
	g.addWorker("other")
	busy := g.acquire(g.locker(g.as("other")), "job")

	// Everything: the renewal says so.
	t.Run("permission removed", func(t *testing.T) {
		g := g.part(t)
		g.addWorker("waiter")
		p := newPartyWith(t, g.configOf("waiter"), 2*time.Second, time.Second)
		waiting := p.queueUpToReading(t, g.clean, "job", 1)
		err := g.requireDenied(p.told, rpctypes.ErrPermissionDenied, func() error {
			g.forbid("waiter", keyPrefix)
			return (<-waiting).err
		})
		require.ErrorContains(t, err, queueOf("job"))
		require.Len(t, reported[fencelock.WaitedInfo](p.told), 1)
		g.awaitQueue("job", 1)
		require.NoError(t, p.Close())
	})

	// Reading only: renewals go on, and only a watch that has to be opened anew
	// finds out, like one whose connection broke.
	t.Run("permission to read removed", func(t *testing.T) {
		g := g.part(t)
		g.addWorker("deaf waiter")
		proxy := harness.NewProxy(t, g.addr)
		cfg := g.configOf("deaf waiter")
		cfg.Endpoints = []string{proxy.Addr()}
		p := newPartyWith(t, cfg, calmTTL, time.Second)
		waiting := p.queueUpToReading(t, g.clean, "job", 1)
		err := g.requireDenied(p.told, rpctypes.ErrPermissionDenied, func() error {
			g.forbid("deaf waiter", keyPrefix)
			g.allow("deaf waiter", keyPrefix, clientv3.PermWrite)
			proxy.Cut()
			return (<-waiting).err
		})
		require.Equal(t, fencelock.PhaseWait, err.Phase, err)
		require.ErrorContains(t, err, queueOf("job"))
		g.awaitQueue("job", 1) // it may still delete what it wrote
		require.NoError(t, p.Close())
	})
	g.release(busy)
}

// The permission goes and the lock is given back before anybody has noticed. A
// naive library reports a release that never took place.
func TestFault19ReleaseDenied(t *testing.T) {
	harness.Parallel(t)
	const ttl = 2 * time.Second
	g := newGuarded(t, 0)
	g.addWorker("holder")
	g.addWorker("other")
	p := newPartyWith(t, g.configOf("holder"), ttl, ttl/5)
	other := newPartyWith(t, g.configOf("other"), calmTTL, time.Second)
	h := p.acquire(t, "job")
	granted := other.queue(t, g.clean, "job", 1)

	g.forbid("holder", keyPrefix)
	released := time.Now()
	err := h.Release(t.Context())
	require.ErrorIs(t, err, fencelock.ErrUnconfirmed)
	require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
	require.ErrorContains(t, err, queueOf("job"))
	report := awaitReports[fencelock.ReleasedInfo](t, p.told, 1, soon)[0]
	require.False(t, report.Confirmed)
	require.Equal(t, err, report.Err)
	require.Len(t, warnings(p.told, "release not confirmed"), 1)
	// Its key is still there, and nobody may say that it is not.
	err = p.Close()
	require.ErrorIs(t, err, fencelock.ErrUnconfirmed)
	require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)

	next := harness.Receive(t, granted, eventually, "grant to the waiter")
	require.NoError(t, next.err)
	require.Less(t, next.at.Sub(released), ttl+time.Second+late)
	require.NoError(t, next.lock.Release(t.Context()))
	require.NoError(t, other.Close())
}
