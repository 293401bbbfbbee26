package integration

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/integration/harness"
)

// A fleet is moved over one process at a time: the old ones, with etcd's own
// concurrency.Mutex, and the new ones have to exclude each other meanwhile.
func TestMutexHolderBlocksFencelock(t *testing.T) {
	b := newBench(t)
	l := b.locker(b.client())
	session := b.session(b.client(), 20)
	m := concurrency.NewMutex(session, "fencelock/x")
	require.NoError(t, m.Lock(t.Context()))

	_, err := l.TryAcquire(t.Context(), "x")
	var taken *fencelock.HeldError
	require.ErrorAs(t, err, &taken)
	assert.Equal(t, strconv.FormatInt(int64(session.Lease()), 16), taken.Holder.Token.Holder())
	assert.Equal(t, m.Header().Revision, taken.Holder.Token.Revision())
	assert.Empty(t, taken.Holder.Label)
	_, err = l.Acquire(t.Context(), "x", fencelock.MaxWait(50*time.Millisecond))
	require.ErrorIs(t, err, fencelock.ErrHeld)

	waiter := b.acquireLater(l, "x")
	b.awaitQueue("x", 2)
	b.stillWaits(waiter)
	require.NoError(t, m.Unlock(t.Context()))
	k := b.granted(waiter)
	assert.Positive(t, k.Token().Compare(taken.Holder.Token))
	b.release(k)
}

// The other way round: a key that the Mutex does not look for, or finds in
// another place, would not stop it.
func TestFencelockHolderBlocksMutex(t *testing.T) {
	b := newBench(t)
	l := b.locker(b.client())
	m := concurrency.NewMutex(b.session(b.client(), 20), "fencelock/x")
	k := b.acquire(l, "x")

	require.ErrorIs(t, m.TryLock(t.Context()), concurrency.ErrLocked)
	waiter := inBackground(t, func() error { return m.Lock(t.Context()) })
	b.awaitQueue("x", 2)
	select {
	case err := <-waiter:
		t.Fatalf("Mutex.Lock returned %v while a fencelock held", err)
	default:
	}
	b.release(k)
	require.NoError(t, harness.Receive(t, waiter, soon, "lock of the Mutex"))
	_, err := l.TryAcquire(t.Context(), "x")
	require.ErrorIs(t, err, fencelock.ErrHeld)
	require.NoError(t, m.Unlock(t.Context()))
	b.release(b.acquire(l, "x"))
}

// One that has lost its session, or dies, must not block the other kind for
// longer than its own.
func TestFencelockGetsTheLockOfADeadSession(t *testing.T) {
	b := newBench(t)
	l := b.locker(b.client())
	session := b.session(b.client(), 1)
	m := concurrency.NewMutex(session, "fencelock/x")
	require.NoError(t, m.Lock(t.Context()))
	waiter := b.acquireLater(l, "x")
	b.awaitQueue("x", 2)
	session.Orphan() // as if its process had died
	b.release(b.granted(waiter))
}

// First come, first served, whoever it is: a naive library goes by key or by
// revision of change, and overtakes.
func TestMixedQueueIsFirstInFirstOut(t *testing.T) {
	const pairs = 4
	b := newBench(t)
	holder := b.acquire(b.locker(b.client()), "x")

	order := make(chan int, 2*pairs)
	finish := make(chan struct{}, 2*pairs)
	var results []<-chan error
	var want []int
	for i := range pairs {
		l := b.locker(b.client())
		results = append(results, inBackground(t, func() error {
			return l.DoAdvisory(t.Context(), "x", func(context.Context) error {
				order <- 2 * i
				untilClosed(t, finish)
				return nil
			})
		}))
		b.awaitQueue("x", 2+2*i)

		m := concurrency.NewMutex(b.session(b.client(), 20), "fencelock/x")
		results = append(results, inBackground(t, func() error {
			if err := m.Lock(t.Context()); err != nil {
				return err
			}
			order <- 2*i + 1
			untilClosed(t, finish)
			return m.Unlock(context.Background())
		}))
		b.awaitQueue("x", 3+2*i)
		want = append(want, 2*i, 2*i+1)
	}
	b.release(holder)
	var got []int
	for range want {
		got = append(got, harness.Receive(t, order, soon, "next grant"))
		select {
		case next := <-order:
			t.Fatalf("%d was granted beside %v", next, got)
		default:
		}
		finish <- struct{}{}
	}
	assert.Equal(t, want, got)
	for _, result := range results {
		require.NoError(t, harness.Receive(t, result, soon, "end of a holder"))
	}
}
