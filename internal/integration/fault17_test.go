package integration

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/integration/harness"
)

// A waiter's own key disappears. A naive library waits for the keys ahead of it
// to go and then holds a lock that no record names it for; or waits on for ever,
// as nobody will ever hand over to it.
func TestFault17WaiterLosesItsPlace(t *testing.T) {
	b := newBench(t)

	// queued is a holder, and a waiter behind it.
	type queued struct {
		corner
		holder, waiter *fencelock.Locker
		w              wired // the waiter's
		j              *journal
		held           *fencelock.Lock
		waiting        <-chan attempt
	}
	queue := func(t *testing.T, opts ...fencelock.LockOption) queued {
		b := b.corner(t)
		w, j := b.wired(), newJournal()
		q := queued{corner: b, holder: b.locker(b.client()), waiter: b.locker(w.Client, reportTo(j)...), w: w, j: j}
		q.held = b.acquire(q.holder, "job")
		q.waiting = b.acquireLater(q.waiter, "job", opts...)
		b.awaitQueue("job", 2)
		return q
	}
	// place is the waiter's key in etcd.
	place := func(q queued) (key string, lease clientv3.LeaseID, token int64) {
		q.t.Helper()
		resp, err := q.clean.Get(q.t.Context(), keyPrefix+"job/", clientv3.WithLastCreate()...)
		require.NoError(q.t, err)
		require.Len(q.t, resp.Kvs, 1)
		kv := resp.Kvs[0]
		require.NotEqual(q.t, q.held.Token().Revision(), kv.CreateRevision, "the waiter has no place")
		return string(kv.Key), clientv3.LeaseID(kv.Lease), kv.CreateRevision
	}
	// awaitPlace waits for the waiter's next place, behind the one it lost.
	awaitPlace := func(q queued, lost int64) (key string, token int64) {
		q.t.Helper()
		q.until("it queues again", func() bool {
			resp, err := q.clean.Get(q.t.Context(), keyPrefix+"job/", clientv3.WithLastCreate()...)
			require.NoError(q.t, err)
			if len(resp.Kvs) == 0 || resp.Kvs[0].CreateRevision <= lost {
				return false
			}
			key, token = string(resp.Kvs[0].Key), resp.Kvs[0].CreateRevision
			return true
		})
		return key, token
	}
	// hands over, and checks that the waiter is granted the lock on this place.
	handsOver := func(q queued, token int64) {
		q.t.Helper()
		q.release(q.held)
		k := q.granted(q.waiting)
		require.Equal(q.t, token, k.Token().Revision())
		require.Positive(q.t, k.Token().Compare(q.held.Token()))
		q.stillHeld(k)
		require.Len(q.t, reported[fencelock.WaitedInfo](q.j), 1, "one wait, in two places")
		require.Len(q.t, reported[fencelock.AcquiredInfo](q.j), 1)
		q.release(k)
		require.Empty(q.t, reported[fencelock.LostInfo](q.j))
	}

	t.Run("key deleted", func(t *testing.T) {
		q := queue(t)
		q.awaitReads(q.w, 1)
		key, _, token := place(q)
		for range 3 {
			_, err := q.clean.Delete(t.Context(), key)
			require.NoError(t, err)
			key, token = awaitPlace(q, token)
		}
		require.Empty(t, q.waiting, "granted while another holds")
		handsOver(q, token)
	})

	// The view of the queue that would show the deletion is not there yet.
	t.Run("key deleted before the queue was read", func(t *testing.T) {
		b := b.corner(t)
		w, j := b.wired(), newJournal()
		q := queued{corner: b, holder: b.locker(b.client()), waiter: b.locker(w.Client, reportTo(j)...), w: w, j: j}
		q.held = b.acquire(q.holder, "job")
		read := harness.NewHeld()
		w.kv.SetHook(harness.Nth(harness.OpGet, 1, harness.Hold(read)))
		q.waiting = b.acquireLater(q.waiter, "job")
		harness.Receive(t, read.Arrived(), soon, "read of the queue")
		key, _, token := place(q)
		_, err := q.clean.Delete(t.Context(), key)
		require.NoError(t, err)
		read.Release()
		_, token = awaitPlace(q, token)
		handsOver(q, token)
	})

	t.Run("lease revoked", func(t *testing.T) {
		q := queue(t)
		q.awaitReads(q.w, 1)
		_, lease, token := place(q)
		_, err := q.clean.Revoke(t.Context(), lease)
		require.NoError(t, err)
		_, token = awaitPlace(q, token)
		_, next, _ := place(q)
		require.NotEqual(t, lease, next, "queued on a dead lease")
		handsOver(q, token)
	})

	// The waiter's key goes together with the one ahead of it: for whoever looks
	// at those ahead only, it is the turn of the waiter.
	t.Run("in the revision in which its turn comes", func(t *testing.T) {
		b := b.corner(t)
		w, j := b.wired(), newJournal()
		holder, waiter := b.locker(b.client()), b.locker(w.Client, reportTo(j)...)
		for range 20 {
			held := b.acquire(holder, "job")
			waiting := b.acquireLater(waiter, "job")
			b.awaitQueue("job", 2)
			q := queued{corner: b, held: held}
			_, _, token := place(q)
			gone, err := b.clean.Delete(t.Context(), keyPrefix+"job/", clientv3.WithPrefix())
			require.NoError(t, err)
			require.EqualValues(t, 2, gone.Deleted)
			k := b.granted(waiting)
			require.Greater(t, k.Token().Revision(), token, "granted on a dead key")
			b.stillHeld(k)
			b.release(k)
			require.ErrorIs(t, held.Release(t.Context()), fencelock.ErrLost)
		}
	})

	// In this order an event of the waiter's death and one of its turn come at
	// nearly the same time.
	t.Run("right before its turn comes", func(t *testing.T) {
		b := b.corner(t)
		holder, waiter := b.locker(b.client()), b.locker(b.client())
		for range 20 {
			held := b.acquire(holder, "job")
			waiting := b.acquireLater(waiter, "job")
			b.awaitQueue("job", 2)
			q := queued{corner: b, held: held}
			key, _, token := place(q)
			_, err := b.clean.Delete(t.Context(), key)
			require.NoError(t, err)
			b.release(held)
			k := b.granted(waiting)
			require.Greater(t, k.Token().Revision(), token, "granted on a dead key")
			b.stillHeld(k)
			b.release(k)
		}
	})

	t.Run("and its time in the queue is up", func(t *testing.T) {
		const maxWait = 300 * time.Millisecond
		b := b.corner(t)
		holder, waiter := b.locker(b.client()), b.locker(b.client())
		held := b.acquire(holder, "job")
		waiting := b.acquireLater(waiter, "job", fencelock.MaxWait(maxWait))
		b.awaitQueue("job", 2)
		q := queued{corner: b, held: held}
		key, _, _ := place(q)
		_, err := b.clean.Delete(t.Context(), key)
		require.NoError(t, err)
		// MaxWait counts from the first place.
		err = harness.Receive(t, waiting, soon, "result of Acquire").err
		var other *fencelock.HeldError
		require.ErrorAs(t, err, &other)
		require.Equal(t, held.Token().Holder(), other.Holder.Token.Holder())
		b.awaitQueue("job", 1)
		b.stillHeld(held)
		b.release(held)
	})

	t.Run("and its context ends", func(t *testing.T) {
		b := b.corner(t)
		holder, waiter := b.locker(b.client()), b.locker(b.client())
		held := b.acquire(holder, "job")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		waiting := b.waitFor(ctx, waiter, "job")
		b.awaitQueue("job", 2)
		q := queued{corner: b, held: held}
		key, _, token := place(q)
		_, err := b.clean.Delete(t.Context(), key)
		require.NoError(t, err)
		awaitPlace(q, token)
		cancel()
		err = harness.Receive(t, waiting, soon, "result of Acquire").err
		var failure *fencelock.AcquireError
		require.ErrorAs(t, err, &failure)
		// Its second place is in etcd, which it may not have been told yet.
		require.Contains(t, []fencelock.Phase{fencelock.PhaseQueue, fencelock.PhaseWait}, failure.Phase)
		require.ErrorIs(t, err, context.Canceled)
		b.awaitQueue("job", 1)
		b.stillHeld(held)
		b.release(held)
	})
}
