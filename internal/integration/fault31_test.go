package integration

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/integration/harness"
)

// The request that joins the queue stays in the network. The caller gives up,
// the clean-up goes another way and finds nothing to clean; then the request
// arrives. A naive library took "nothing found" for "nothing there": it knows
// nothing of the key, and renews the lease that keeps it, for its other locks.
func TestFault31RequestArrivesAfterCleanUp(t *testing.T) {
	harness.Parallel(t)
	const ttl = 2 * time.Second

	// lost is a Locker one of whose requests to join the queue of "job" is in
	// the network, given up by its caller.
	type lost struct {
		corner
		l, other *fencelock.Locker
		w        wired
		j        *journal
		request  *harness.Held
		cleanUps chan harness.Call
	}
	// cleansUp matches the clean-up of a key of which nothing is known but its
	// value.
	cleansUp := func(c harness.Call) bool { return leaves(c) && len(c.If[0].ValueBytes()) > 0 }
	open := func(t *testing.T) lost {
		b, _ := newCorner(t, harness.ClusterConfig{})
		w, j := b.wired(), newJournal()
		l := b.locker(w.Client, append(reportTo(j), fencelock.WithTTL(ttl))...)
		return lost{b, l, b.locker(b.client()), w, j, harness.NewHeld(), make(chan harness.Call, 1024)}
	}
	giveUp := func(s lost, then harness.Hook) {
		s.t.Helper()
		hold := once(joins, harness.Hold(s.request))
		s.w.kv.SetHook(func(c harness.Call) harness.Fate {
			if cleansUp(c) {
				s.cleanUps <- c
				return then(c)
			}
			return hold(c)
		})
		ctx, cancel := context.WithCancel(s.t.Context())
		defer cancel()
		waiting := s.waitFor(ctx, s.l, "job")
		harness.Receive(s.t, s.request.Arrived(), soon, "request to join the queue")
		cancel()
		err := harness.Receive(s.t, waiting, soon, "result of Acquire").err
		require.ErrorIs(s.t, err, fencelock.ErrNotAcquired)
		require.ErrorIs(s.t, err, context.Canceled)
	}
	passes := func(harness.Call) harness.Fate { return harness.Pass() }
	// cleanedUp waits until a clean-up has found nothing: there is a second one
	// only then.
	cleanedUp := func(s lost) {
		s.t.Helper()
		for range 2 {
			harness.Receive(s.t, s.cleanUps, soon, "clean-up")
		}
	}

	// A session's lease is not the Locker's to give up.
	adopted := func(t *testing.T, arrives bool) {
		b, _ := newCorner(t, harness.ClusterConfig{})
		w := b.wired()
		session, err := concurrency.NewSession(w.Client, concurrency.WithTTL(int(ttl/time.Second)))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, session.Close()) })
		j := newJournal()
		l, err := fencelock.New(w.Client, append(reportTo(j), fencelock.WithSession(session))...)
		require.NoError(t, err)
		t.Cleanup(func() { _ = l.Close() }) // again, if the test failed
		s := lost{b, l, b.locker(b.client()), w, j, harness.NewHeld(), make(chan harness.Call, 1024)}
		s.release(s.acquire(l, "job"))
		giveUp(s, passes)
		cleanedUp(s)

		// Acquires go on beside it, in another slot.
		k := s.acquire(l, "job")
		_, lease, _ := s.record("job")
		require.Equal(t, session.Lease(), lease)
		s.release(k)
		if !arrives {
			err := l.Close()
			require.ErrorIs(t, err, fencelock.ErrUnconfirmed)
			require.ErrorContains(t, err, "Session.Close")
			return
		}
		s.request.Release()
		require.NoError(t, harness.Receive(t, s.request.Answered(), soon, "answer to the late request"))
		s.othersIn(s.other, "job", inWithin)
		require.NoError(t, l.Close(), "the clean-up is over")
	}

	atOnce(t, map[string]func(*testing.T){
		"nothing is held on the lease": func(t *testing.T) {
			s := open(t)
			s.release(s.acquire(s.l, "job"))
			lease := harness.Leases(t, s.clean)[0]
			giveUp(s, passes)
			s.until("the lease is given up", func() bool { return !slices.Contains(harness.Leases(t, s.clean), lease) })
			s.until("it was revoked, and did not expire", func() bool { return s.w.lease.Answered(harness.OpRevoke) > 0 })
			s.request.Release()
			require.ErrorIs(t, harness.Receive(t, s.request.Answered(), soon, "answer to the late request"),
				rpctypes.ErrLeaseNotFound)
			s.awaitQueue("job", 0)
			s.othersIn(s.other, "job", inWithin)
			s.othersIn(s.l, "job", inWithin)
		},

		// The lease cannot be given up yet: it goes on carrying the lock, and only
		// that. The request still finds it alive, and the keeper finds the key.
		"a lock is held on the lease": func(t *testing.T) {
			s := open(t)
			kept := s.acquire(s.l, "kept")
			_, lease, _ := s.record("kept")
			giveUp(s, passes)
			cleanedUp(s)

			// What is acquired meanwhile is on a lease that can be trusted.
			s.until("the lease is retired", func() bool {
				k := s.acquire(s.l, "another")
				defer s.release(k)
				_, now, _ := s.record("another")
				return now != lease
			})

			gone := harness.WatchDeletions(t, s.clean, keyPrefix+"job/")
			s.request.Release()
			require.NoError(t, harness.Receive(t, s.request.Answered(), soon, "answer to the late request"))
			orphan := keyPrefix + "job/" + strconv.FormatInt(int64(lease), 16)
			s.until("the key that came late is deleted", func() bool {
				return slices.ContainsFunc(gone.All(), func(d harness.Deletion) bool { return strings.HasPrefix(d.Key, orphan) })
			})
			s.othersIn(s.other, "job", inWithin)
			s.stillHeld(kept)
			require.NoError(t, kept.Release(t.Context()), "the record named it from grant to release")
			require.Empty(t, reported[fencelock.LostInfo](s.j), "a retired lease is no lost lease")
		},

		// The first clean-up finds nothing, the others do not get through; the end
		// of the lease does.
		"a lock is held on the lease and the key is never found": func(t *testing.T) {
			s := open(t)
			kept := s.acquire(s.l, "kept")
			var looked atomic.Bool
			giveUp(s, func(harness.Call) harness.Fate {
				if looked.CompareAndSwap(false, true) {
					return harness.Pass()
				}
				return harness.LoseRequest(errBroken)
			})
			cleanedUp(s)
			s.request.Release()
			require.NoError(t, harness.Receive(t, s.request.Answered(), soon, "answer to the late request"))
			waiting := s.acquireLater(s.other, "job")
			s.awaitQueue("job", 2)
			// The orphan is kept alive for as long as the lock beside it, and no
			// longer.
			renewed := len(reported[fencelock.RenewedInfo](s.j))
			awaitReports[fencelock.RenewedInfo](t, s.j, renewed+4, soon)
			s.stillWaits(waiting)
			s.stillHeld(kept)
			require.NoError(t, kept.Release(t.Context()))
			s.release(s.granted(waiting))
			require.Empty(t, reported[fencelock.LostInfo](s.j))
		},

		"another waits on the lease": func(t *testing.T) {
			s := open(t)
			held := s.acquire(s.other, "contended")
			waiting := s.acquireLater(s.l, "contended")
			s.awaitQueue("contended", 2)
			first := harness.Keys(t, s.clean, keyPrefix+"contended/")[1]
			giveUp(s, passes)
			// Nobody holds anything on the lease, so it goes, and the waiter queues
			// again on the next.
			s.until("the waiter queues again, on another lease", func() bool {
				keys := harness.Keys(t, s.clean, keyPrefix+"contended/")
				return len(keys) == 2 && keys[1] != first
			})
			s.request.Release()
			require.ErrorIs(t, harness.Receive(t, s.request.Answered(), soon, "answer to the late request"),
				rpctypes.ErrLeaseNotFound)
			s.othersIn(s.other, "job", inWithin)
			s.stillWaits(waiting)
			s.release(held)
			k := s.granted(waiting)
			require.Positive(t, k.Token().Compare(held.Token()))
			s.stillHeld(k)
			s.release(k)
		},

		// Close does not wait for what may never come.
		"and the Locker is closed first": func(t *testing.T) {
			s := open(t)
			s.release(s.acquire(s.l, "job"))
			giveUp(s, passes)
			require.NoError(t, s.l.Close())
			s.request.Release()
			require.ErrorIs(t, harness.Receive(t, s.request.Answered(), soon, "answer to the late request"),
				rpctypes.ErrLeaseNotFound)
		},

		"on an adopted lease and it arrives":       func(t *testing.T) { adopted(t, true) },
		"on an adopted lease and it never arrives": func(t *testing.T) { adopted(t, false) },

		// The same with a network in place of a wrapper: two ways to etcd, one of
		// them slower than the request's patience.
		"one of two ways is slow": func(t *testing.T) {
			b, _ := newCorner(t, harness.ClusterConfig{})
			slow, fast := harness.NewProxy(t, b.addr), harness.NewProxy(t, b.addr)
			fast.Refuse()
			l := b.locker(harness.NewClient(t, slow.Addr(), fast.Addr()), fencelock.WithTTL(ttl))
			other := b.locker(b.client())
			b.release(b.acquire(l, "job"))

			slow.ToServer.Delay(2 * ttl)
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			_, err := l.Acquire(ctx, "job")
			require.ErrorIs(t, err, context.DeadlineExceeded)
			sent, delivered := slow.ToServer.Received(), slow.ToServer.Delivered()
			require.Greater(t, sent, delivered, "the request is not on the slow way")
			fast.Heal()
			b.until("the request arrives", func() bool { return slow.ToServer.Delivered() >= sent })
			b.othersIn(other, "job", 2*ttl+inWithin)
			slow.Heal()
			b.othersIn(l, "job", soon)
		},
	}, func(t *testing.T, run func(*testing.T)) { run(t) })
}
