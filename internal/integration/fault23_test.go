package integration

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/integration/harness"
)

// closeBound is what Close promises beside the margin.
const closeBound = 5 * time.Second

// A naive Close runs its clean-up once for each caller, closes a channel twice,
// leaves waiters in the queue and holders in the belief that they hold.
func TestFault23CloseWhileHoldingAndWaiting(t *testing.T) {
	const n = 3
	b := newBench(t)
	j := newJournal()
	l := b.openLocker(b.client(), reportTo(j)...)
	other := b.locker(b.client())
	gone := harness.WatchDeletions(t, b.clean, keyPrefix)

	holders := make([]<-chan error, n)
	waiters := make([]<-chan attempt, n)
	var theirs []*fencelock.Lock
	for i := range n {
		theirs = append(theirs, b.acquire(other, fmt.Sprint("theirs", i)))
		holders[i] = inBackground(t, func() error {
			return l.Do(t.Context(), fmt.Sprint("ours", i), func(ctx context.Context, _ fencelock.Token) error {
				<-ctx.Done()
				return context.Cause(ctx)
			})
		})
		waiters[i] = b.acquireLater(l, fmt.Sprint("theirs", i))
	}
	acquired := awaitReports[fencelock.AcquiredInfo](t, j, n, soon)
	var places []fencelock.Token
	for i := range n {
		b.awaitQueue(fmt.Sprint("theirs", i), 2)
		queue, err := other.Inspect(t.Context(), fmt.Sprint("theirs", i))
		require.NoError(t, err)
		require.Len(t, queue.Waiters, 1)
		places = append(places, queue.Waiters[0].Token)
	}
	for _, a := range acquired {
		places = append(places, a.Token)
	}

	called := time.Now()
	results := make([]error, 8)
	var closers sync.WaitGroup
	for i := range results {
		closers.Go(func() { results[i] = l.Close() })
	}
	closers.Wait()
	assert.Less(t, time.Since(called), calmTTL/5+closeBound)
	for _, err := range append(results, l.Close()) {
		require.NoError(t, err)
	}

	for i := range n {
		err := harness.Receive(t, holders[i], soon, "end of a holder")
		var lost *fencelock.LostError
		require.ErrorAs(t, err, &lost)
		assert.Equal(t, fencelock.LostClosed, lost.Reason)

		err = harness.Receive(t, waiters[i], soon, "end of a waiter").err
		require.ErrorIs(t, err, fencelock.ErrClosed)
		require.ErrorIs(t, err, fencelock.ErrNotAcquired)
	}
	for _, place := range places {
		freed := gone.Expect(place.Revision(), soon)
		assert.Less(t, freed.At.Sub(called), time.Second)
	}
	assert.Len(t, awaitReports[fencelock.LostInfo](t, j, n, soon), n)
	assert.Len(t, reported[fencelock.ReturnedAfterLossInfo](j), n)
	assert.Len(t, warnings(j, "lock lost"), n)
	for _, k := range theirs {
		require.NoError(t, k.Err())
		b.release(k)
	}
}

// A naive Close waits for a callback that never returns, or pulls the lock from
// under it without the time to stop.
func TestFault23CloseWithAHolderThatDoesNotListen(t *testing.T) {
	const margin = 500 * time.Millisecond
	b := newBench(t)
	j := newJournal()
	l := b.openLocker(b.client(), append(reportTo(j), fencelock.WithMargin(margin))...)
	gone := harness.WatchDeletions(t, b.clean, keyPrefix)

	finish := make(chan struct{})
	result := inBackground(t, func() error {
		return l.Do(t.Context(), "x", func(ctx context.Context, _ fencelock.Token) error {
			untilClosed(t, finish)
			return nil
		})
	})
	token := awaitReports[fencelock.AcquiredInfo](t, j, 1, soon)[0].Token
	forgotten := b.acquire(l, "y")

	called := time.Now()
	require.NoError(t, l.Close())
	assert.Less(t, time.Since(called), margin+closeBound)
	for _, tok := range []fencelock.Token{token, forgotten.Token()} {
		freed := gone.Expect(tok.Revision(), soon)
		assert.GreaterOrEqual(t, freed.At.Sub(called), margin)
		assert.Less(t, freed.At.Sub(called), margin+2*time.Second)
	}

	// Whoever comes back after Close is told, and nothing is sent any more.
	require.ErrorIs(t, forgotten.Err(), fencelock.ErrLost)
	var lost *fencelock.LostError
	require.ErrorAs(t, forgotten.Release(t.Context()), &lost)
	assert.Equal(t, fencelock.LostClosed, lost.Reason)
	close(finish)
	require.ErrorIs(t, harness.Receive(t, result, soon, "end of Do"), fencelock.ErrLost)
	assert.Len(t, reported[fencelock.ReturnedAfterLossInfo](j), 2)
}

// A naive library panics on use after Close, or quietly makes a new lease that
// nobody will ever revoke.
func TestFault23UseAfterClose(t *testing.T) {
	for name, end := range map[string]func(*fencelock.Locker) error{
		"Close":    (*fencelock.Locker).Close,
		"Shutdown": func(l *fencelock.Locker) error { return l.Shutdown(t.Context()) },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			client := b.wired()
			l := b.openLocker(client.Client)
			k := b.acquire(l, "x")
			b.release(k)
			require.NoError(t, end(l))

			before := client.requests()
			ctx := t.Context()
			for name, call := range map[string]func() error{
				"Do": func() error {
					return l.Do(ctx, "x", func(context.Context, fencelock.Token) error { t.Error("fn ran"); return nil })
				},
				"DoAdvisory": func() error {
					return l.DoAdvisory(ctx, "x", func(context.Context) error { t.Error("fn ran"); return nil })
				},
				"Lead": func() error {
					return l.Lead(ctx, "x", func(context.Context, fencelock.Token) error { t.Error("fn ran"); return nil })
				},
				"Acquire":    func() error { _, err := l.Acquire(ctx, "x"); return err },
				"TryAcquire": func() error { _, err := l.TryAcquire(ctx, "x"); return err },
				"Inspect":    func() error { _, err := l.Inspect(ctx, "x"); return err },
				"Shutdown":   func() error { return l.Shutdown(ctx) },
			} {
				assert.ErrorIs(t, call(), fencelock.ErrClosed, name)
			}
			assert.NoError(t, l.Close())

			// What a lock knows it knows without its Locker.
			assert.NoError(t, k.Release(ctx))
			assert.ErrorIs(t, k.Err(), fencelock.ErrReleased)
			assert.ErrorIs(t, context.Cause(k.Context()), fencelock.ErrReleased)
			assert.Equal(t, "x", k.Name())
			assert.False(t, k.Token().IsZero())
			assert.Equal(t, before, client.requests())
		})
	}
}

// A naive library waits for answers that a closed client will never give, asks
// it again in a busy loop, or panics. Its holder goes on, and nobody tells it.
func TestFault23ClientClosedFirst(t *testing.T) {
	harness.Parallel(t)
	const ttl = 2 * time.Second
	b := newBench(t)
	j := newJournal()
	client := b.wired()
	l := b.openLocker(client.Client, append(reportTo(j), fencelock.WithTTL(ttl))...)
	other := b.locker(b.client())
	theirs := b.acquire(other, "theirs")
	gone := harness.WatchDeletions(t, b.clean, keyPrefix)

	k := b.acquire(l, "ours")
	waiter := b.acquireLater(l, "theirs")
	b.awaitQueue("theirs", 2)
	require.NoError(t, client.Close())

	err := harness.Receive(t, waiter, soon, "end of the waiter").err
	require.ErrorIs(t, err, fencelock.ErrNotAcquired)
	assert.ErrorContains(t, err, "close the Locker before its client")

	harness.Receive(t, k.Context().Done(), soon, "end of the held context")
	freed := gone.Expect(k.Token().Revision(), soon)
	var lost *fencelock.LostError
	require.ErrorAs(t, k.Err(), &lost)
	assert.Equal(t, fencelock.LostExpired, lost.Reason)
	assert.Less(t, lost.LostAt.UnixNano(), freed.At.UnixNano())
	require.ErrorIs(t, k.Release(t.Context()), fencelock.ErrLost)

	// TTL and more after the client was closed: a busy loop would have made
	// thousands of requests.
	assert.Less(t, client.requests(), 200)

	before := client.requests()
	_, err = l.TryAcquire(t.Context(), "x")
	require.ErrorIs(t, err, fencelock.ErrNotAcquired)
	assert.ErrorContains(t, err, "close the Locker before its client")
	_, err = l.Inspect(t.Context(), "x")
	assert.ErrorContains(t, err, "close the Locker before its client")
	assert.Equal(t, before, client.requests())

	called := time.Now()
	err = l.Close()
	assert.Less(t, time.Since(called), ttl/5+closeBound)
	assert.NotPanics(t, func() { assert.Equal(t, err, l.Close()) })
	require.NoError(t, theirs.Err())
	b.release(theirs)
}

// The same with a lock held at the very moment of Close.
func TestFault23ClientClosedFirstThenCloseWhileHolding(t *testing.T) {
	harness.Parallel(t)
	const ttl = 2 * time.Second
	b := newBench(t)
	client := b.client()
	l := b.openLocker(client, fencelock.WithTTL(ttl))
	gone := harness.WatchDeletions(t, b.clean, keyPrefix)
	k := b.acquire(l, "x")
	require.NoError(t, client.Close())

	called := time.Now()
	err := l.Close()
	assert.Less(t, time.Since(called), ttl/5+closeBound)
	require.ErrorIs(t, err, fencelock.ErrUnconfirmed)
	assert.ErrorContains(t, err, "close the Locker before its client")
	require.ErrorIs(t, k.Release(t.Context()), fencelock.ErrLost)
	gone.Expect(k.Token().Revision(), ttl+soon)
}

// A naive Shutdown stops renewing while it waits, or forgets the waiters.
func TestFault23ShutdownWaitsForHolders(t *testing.T) {
	harness.Parallel(t)
	b := newBench(t)
	j := newJournal()
	l := b.openLocker(b.client(), append(reportTo(j), fencelock.WithTTL(2*time.Second))...)
	other := b.locker(b.client())
	theirs := b.acquire(other, "theirs")
	k := b.acquire(l, "ours")
	waiter := b.acquireLater(l, "theirs")
	b.awaitQueue("theirs", 2)

	shutdown := inBackground(t, func() error { return l.Shutdown(t.Context()) })
	require.ErrorIs(t, harness.Receive(t, waiter, soon, "end of the waiter").err, fencelock.ErrClosed)
	_, err := l.Acquire(t.Context(), "more")
	require.ErrorIs(t, err, fencelock.ErrClosed)
	_, err = l.Inspect(t.Context(), "ours")
	require.ErrorIs(t, err, fencelock.ErrClosed)
	require.ErrorIs(t, l.Shutdown(t.Context()), fencelock.ErrClosed)

	// Three answered renewals are a TTL.
	awaitReports[fencelock.RenewedInfo](t, j, len(reported[fencelock.RenewedInfo](j))+4, soon)
	require.NoError(t, k.Err())
	select {
	case err := <-shutdown:
		t.Fatalf("Shutdown returned %v while a lock was held", err)
	default:
	}
	released := time.Now()
	b.release(k)
	require.NoError(t, harness.Receive(t, shutdown, soon, "end of Shutdown"))
	assert.Less(t, time.Since(released), time.Second)
	require.NoError(t, l.Close())
	assert.Empty(t, reported[fencelock.LostInfo](j))
	b.release(theirs)
}

// A naive Shutdown waits for its holders for ever, or returns and leaves them
// in the belief that they hold.
func TestFault23ShutdownEndsWithItsContext(t *testing.T) {
	const margin = 500 * time.Millisecond
	b := newBench(t)
	l := b.openLocker(b.client(), fencelock.WithMargin(margin))
	gone := harness.WatchDeletions(t, b.clean, keyPrefix)
	k := b.acquire(l, "x")

	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	err := l.Shutdown(ctx)
	late := time.Now()
	require.ErrorIs(t, err, context.DeadlineExceeded)
	deadline, _ := ctx.Deadline()
	assert.Less(t, late.Sub(deadline), 200*time.Millisecond)

	harness.Receive(t, k.Context().Done(), soon, "end of the held context")
	var lost *fencelock.LostError
	require.ErrorAs(t, k.Err(), &lost)
	assert.Equal(t, fencelock.LostClosed, lost.Reason)
	require.NoError(t, l.Close())
	freed := gone.Expect(k.Token().Revision(), soon)
	assert.GreaterOrEqual(t, freed.At.UnixNano()-lost.LostAt.UnixNano(), margin.Nanoseconds())
	require.ErrorIs(t, k.Release(t.Context()), fencelock.ErrLost)
}

// A naive Close overlooks what is on its way: a Txn that joins a queue and
// arrives when the Locker is gone leaves a key that nobody knows.
func TestFault23CloseWhileAnAcquireIsInTheNetwork(t *testing.T) {
	b := newBench(t)
	client := b.wired()
	l := b.openLocker(client.Client)
	network := harness.NewHeld()
	client.kv.SetHook(harness.Nth(harness.OpTxn, 1, harness.Hold(network)))
	result := b.acquireLater(l, "x")
	harness.Receive(t, network.Arrived(), soon, "acquiring request")

	require.NoError(t, l.Close())
	require.ErrorIs(t, harness.Receive(t, result, soon, "end of Acquire").err, fencelock.ErrClosed)
	network.Release()
	require.Error(t, harness.Receive(t, network.Answered(), soon, "late answer"), "the late request must fail")
	assert.Empty(t, harness.Keys(t, b.clean, keyPrefix))
}
