package fencelock

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// orphan is a session that does not renew its lease any more, so that all
// renewals are the Locker's.
func orphan(t *testing.T, l *fakeLink, ttl int) *concurrency.Session {
	s := newSession(t, l, ttl)
	s.Orphan()
	synctest.Wait()
	return s
}

// The first use renews the lease once: the TTL it answers counts, from when that
// was sent, and nothing is granted before it.
func TestAdoptedLeaseIsRenewedFirst(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *fakeEtcd, l *fakeLink) {
		session := orphan(t, l, 6)
		before := len(l.requests())
		locker := newLocker(t, l, WithSession(session))
		assert.Len(t, l.requests(), before)

		time.Sleep(5 * time.Second)
		start := time.Now()
		l.intercept(only(fakeKeepAlive, fault{replyDelay: 100 * time.Millisecond}))
		lock := mustAcquire(t, locker, "n")
		sent := l.requests()[before:]
		assert.Equal(t, fakeKeepAlive, sent[0].kind)
		assert.EqualValues(t, session.Lease(), sent[0].req.(*pb.LeaseKeepAliveRequest).ID)
		assert.Equal(t, 100*time.Millisecond, joins.of(l)[0].sent.Sub(start))

		time.Sleep(time.Second)
		l.intercept(only(fakeKeepAlive, fault{loseRequest: true}))
		awaitIn(t, lock.Context().Done())
		// The session's end made the keeper renew once more when it started.
		assert.Equal(t, 4900*time.Millisecond, time.Since(start))
		require.ErrorIs(t, lock.Release(t.Context()), ErrLost)
	})
}

// After its loss an adopted lease is not replaced, and what is left of it in etcd
// is not revoked but deleted key by key.
func TestLostAdoptedLeaseIsNotReplaced(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		session := orphan(t, l, 60)
		locker := newLocker(t, l, WithSession(session))
		lock := mustAcquire(t, locker, "n")
		l.intercept(only(fakeKeepAlive, fault{loseRequest: true}))
		awaitIn(t, lock.Context().Done())
		l.intercept(nil)
		before := len(l.requests())
		for method, call := range acquiringCalls(t, locker) {
			err := call(t.Context(), "m")
			require.ErrorIs(t, err, ErrLost, method)
			require.ErrorIs(t, err, ErrNotAcquired, method)
		}
		assert.Len(t, l.requests(), before)
		require.ErrorIs(t, lock.Release(t.Context()), ErrLost)
		synctest.Wait()
		assert.Empty(t, e.keys("fencelock/"))
		require.NoError(t, locker.Close())
		assert.Empty(t, l.requests(fakeRevoke))
		assert.Contains(t, e.expiries(), session.Lease())
	})
}

// While it is idle its session renews it, and the Locker need not. It is asked
// again before it is used.
func TestIdleAdoptedLease(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *fakeEtcd, l *fakeLink) {
		locker := newLocker(t, l, WithSession(newSession(t, l, 6)))
		require.NoError(t, mustAcquire(t, locker, "n").Release(t.Context()))
		time.Sleep(10*time.Minute + time.Second)
		lock := mustAcquire(t, locker, "n")
		time.Sleep(time.Minute)
		require.NoError(t, lock.Err())
		require.NoError(t, lock.Release(t.Context()))
	})
}

// The session's own keep-alive can learn first that the lease is gone: its end
// causes a renewal now, and that tells the holders.
func TestEndOfTheSessionIsFelt(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		session := newSession(t, l, 60) // it renews every 20 s or little more
		locker := newLocker(t, l, WithSession(session))
		time.Sleep(10 * time.Second)
		lock := mustAcquire(t, locker, "n") // is renewed at 30 s, and at 50 s
		time.Sleep(25 * time.Second)
		l.deafen()
		e.revokeLease(t, session.Lease())
		start := time.Now()
		awaitIn(t, lock.Context().Done())
		assert.InDelta(t, 5*time.Second, time.Since(start), float64(1500*time.Millisecond))
		assert.Equal(t, LostSession, lostBy(t, lock))
		require.ErrorIs(t, lock.Release(t.Context()), ErrLost)
	})
}

// Two Lockers on one session have one lease and so the same slots. A slot that is
// taken in etcd is never taken for one's own: the second one queues in another.
func TestTwoLockersOnOneSession(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		session := newSession(t, l, 15)
		first, second := newLocker(t, l, WithSession(session)), newLocker(t, l, WithSession(session))
		held := mustAcquire(t, first, "n")
		_, err := second.TryAcquire(t.Context(), "n")
		require.ErrorIs(t, err, ErrHeld)
		waiter := acquireLater(t.Context(), second, "n")
		time.Sleep(time.Second)
		require.False(t, waiter.isDone())
		keys, revs := queueOf(e, "n")
		require.Len(t, keys, 2)

		require.NoError(t, held.Release(t.Context()))
		lock := waiter.granted(t)
		assert.Equal(t, 1, lock.entry.slot)
		assert.Equal(t, revs[1], lock.Token().Revision())
		assert.NotEqual(t, held.Token().Holder(), lock.Token().Holder())
		require.NoError(t, lock.Release(t.Context()))
		again := mustAcquire(t, second, "n")
		assert.Zero(t, again.entry.slot, "the slot that was not its own is free")
		require.NoError(t, again.Release(t.Context()))
	})
}
