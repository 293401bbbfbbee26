package integration

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/fencelock/fencelock"
)

// evictedWithin is what is promised to an operator.
const evictedWithin = time.Second

// A naive eviction deletes the first key that it finds, which can be the next
// holder's by then, or leaves the evicted holder at work until its lease ends.
func TestEvict(t *testing.T) {
	b := newBench(t)
	operator := b.locker(b.client())
	holder := b.locker(b.client(), fencelock.WithLabel("hangs"))
	var fence fencelock.Fence

	for _, name := range []string{"x", "a/b"} {
		k, kept := b.acquire(holder, name), b.acquire(holder, "kept")
		require.NoError(t, fence.Advance(k.Token()))
		waits := b.acquireLater(b.locker(b.client(), fencelock.WithLabel("next")), name)
		var queue fencelock.Queue
		until(t, "waiter", func() bool {
			var err error
			queue, err = operator.Inspect(t.Context(), name)
			require.NoError(t, err)
			return len(queue.Waiters) == 1
		})
		token, err := fencelock.ParseToken(name, queue.Holder.Token.String())
		require.NoError(t, err)

		// Whoever holds it is named, and nobody is hit.
		err = operator.Evict(t.Context(), name, queue.Waiters[0].Token)
		require.ErrorIs(t, err, fencelock.ErrHeld)
		assert.ErrorContains(t, err, "hangs")
		require.NoError(t, k.Err())

		require.NoError(t, operator.Evict(t.Context(), name, token))
		evicted := time.Now()
		<-k.Context().Done()
		assert.LessOrEqual(t, time.Since(evicted), evictedWithin+allowance(evicted, time.Now()))
		var lost *fencelock.LostError
		require.ErrorAs(t, context.Cause(k.Context()), &lost)
		assert.Equal(t, fencelock.LostDeleted, lost.Reason)
		require.NoError(t, kept.Err(), "its other locks are left alone")

		next := b.granted(waits)
		require.NoError(t, fence.Advance(next.Token()))
		require.ErrorIs(t, fence.Advance(k.Token()), fencelock.ErrStale, "it goes on")
		err = operator.Evict(t.Context(), name, token)
		var held *fencelock.HeldError
		require.ErrorAs(t, err, &held)
		assert.Equal(t, "next", held.Holder.Label)
		assert.True(t, held.Holder.Token.Equal(next.Token()))
		b.release(next)
		require.ErrorIs(t, operator.Evict(t.Context(), name, token), fencelock.ErrNotHeld)
		require.ErrorIs(t, k.Release(t.Context()), fencelock.ErrLost)
		b.release(b.acquire(holder, name))
		b.release(kept)
		fence = fencelock.Fence{}
	}
}

// What blocks a queue can be cleared: a Mutex's key, and one without a lease.
func TestEvictForeignKeys(t *testing.T) {
	b := newBench(t)
	operator := b.locker(b.client())
	session := b.session(b.client(), 60)
	m := concurrency.NewMutex(session, "fencelock/x")
	require.NoError(t, m.Lock(t.Context()))
	_, err := b.clean.Put(t.Context(), "fencelock/x/stray", "")
	require.NoError(t, err)
	for range 2 {
		queue, err := operator.Inspect(t.Context(), "x")
		require.NoError(t, err)
		require.NoError(t, operator.Evict(t.Context(), "x", queue.Holder.Token))
	}
	b.release(b.acquire(operator, "x"))
	require.NoError(t, session.Close())
}

// Who may only read can look, and evicts nobody.
func TestEvictDenied(t *testing.T) {
	g := newGuarded(t, 0)
	g.addUser("reader")
	g.allow("reader", keyPrefix, clientv3.PermRead)
	holder := g.locker(g.clean)
	k := g.acquire(holder, "x")
	reader := g.locker(g.as("reader"))
	queues, err := listed(t.Context(), reader)
	require.NoError(t, err)
	require.Len(t, queues, 1)
	err = reader.Evict(t.Context(), "x", queues[0].Holder.Token)
	require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
	assert.ErrorContains(t, err, `"fencelock/x/"`)
	require.NoError(t, k.Err())
	g.forbid("reader", keyPrefix)
	_, err = listed(t.Context(), reader)
	require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
	g.release(k)
}
