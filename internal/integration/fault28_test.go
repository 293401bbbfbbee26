package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/integration/harness"
)

// A naive library wakes all waiters at each release, lets the fastest win, and
// leaves the key of a waiter that gave up, behind which all others wait for its
// lease to end.
func TestFault28ManyWaitersHalfCancelled(t *testing.T) {
	const (
		lockers = 4
		waiters = 200
	)
	b := newBench(t)
	holder := b.acquire(b.locker(b.client()), "x")
	var clients []wired
	var ls []*fencelock.Locker
	for range lockers {
		client := b.wired()
		clients = append(clients, client)
		ls = append(ls, b.locker(client.Client))
	}

	type granted struct {
		waiter int
		rev    int64
	}
	order := make(chan granted, waiters) // in which they were granted
	cancels := make([]context.CancelFunc, waiters)
	results := make([]<-chan error, waiters)
	for i := range waiters {
		var ctx context.Context
		ctx, cancels[i] = context.WithCancel(t.Context())
		results[i] = inBackground(t, func() error {
			return ls[i%lockers].Do(ctx, "x", func(_ context.Context, token fencelock.Token) error {
				order <- granted{i, token.Revision()}
				return nil
			})
		})
		if i%20 == 19 {
			b.awaitQueue("x", 2+i) // a busy machine should not be asked for all at once
		}
	}
	queue, err := ls[0].Inspect(t.Context(), "x")
	require.NoError(t, err)
	require.Len(t, queue.Waiters, waiters)

	cancelled := map[int]bool{}
	for _, i := range rand.Perm(waiters)[:waiters/2] {
		cancelled[i] = true
		cancels[i]()
	}
	for i := range cancelled {
		err := harness.Receive(t, results[i], soon, "end of a cancelled wait")
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, fencelock.ErrNotAcquired)
	}
	b.awaitQueue("x", 1+waiters-len(cancelled))

	var reads, txns int
	for _, c := range clients {
		reads -= c.kv.Calls(harness.OpGet)
		txns -= c.kv.Calls(harness.OpTxn)
	}
	b.release(holder)
	var last int64
	next := 0 // in the queue as it was
	for range waiters - len(cancelled) {
		g := harness.Receive(t, order, soon, "next grant")
		assert.False(t, cancelled[g.waiter])
		assert.Greater(t, g.rev, last)
		last = g.rev
		for next < waiters && queue.Waiters[next].Token.Revision() != g.rev {
			next++
		}
		require.Less(t, next, waiters, "granted out of the queue's order")
	}
	for i, cancel := range cancels {
		if !cancelled[i] {
			require.NoError(t, harness.Receive(t, results[i], soon, "end of Do"))
		}
		cancel()
	}
	require.Empty(t, order)

	// One wake-up a release: a hand-over is the Txn that releases, and one
	// event for each Locker. Nobody reads, or tries and fails.
	for _, c := range clients {
		reads += c.kv.Calls(harness.OpGet)
		txns += c.kv.Calls(harness.OpTxn)
	}
	assert.LessOrEqual(t, txns, waiters-len(cancelled)+lockers, "beside them, checks of a holder's key")
	assert.LessOrEqual(t, reads, lockers)
}

// A naive library that keeps one key for each lease takes another goroutine's
// place in the queue for its own, and lets two in.
func TestFault28GoroutinesOfOneLocker(t *testing.T) {
	const (
		goroutines = 16
		rounds     = 12
	)
	b := newBench(t)
	l := b.locker(b.client())
	var inside sync.Mutex
	var last int64
	holders := map[string]bool{}
	var work sync.WaitGroup
	for range goroutines {
		work.Go(func() {
			for range rounds {
				err := l.Do(t.Context(), "x", func(_ context.Context, token fencelock.Token) error {
					if !inside.TryLock() {
						return fmt.Errorf("two hold the lock at once")
					}
					defer inside.Unlock()
					if rev := token.Revision(); rev <= last {
						return fmt.Errorf("token %d after %d", rev, last)
					}
					last = token.Revision()
					if holders[token.Holder()] {
						return fmt.Errorf("holder id %s was used before", token.Holder())
					}
					holders[token.Holder()] = true
					return nil
				})
				if !assert.NoError(t, err) {
					return
				}
			}
		})
	}
	work.Wait()
	assert.Len(t, holders, goroutines*rounds)
	assert.Empty(t, harness.Keys(t, b.clean, keyPrefix))
}

// Fencelocks and the locks of etcd's own package, all at once on one queue.
func TestFault28MixedWithConcurrencyMutex(t *testing.T) {
	const (
		each   = 4 // of either kind
		rounds = 10
	)
	b := newBench(t)
	var inside sync.Mutex
	var entries int
	critical := func() error {
		if !inside.TryLock() {
			return fmt.Errorf("two hold the lock at once")
		}
		entries++
		inside.Unlock()
		return nil
	}
	var work sync.WaitGroup
	for range each {
		l := b.locker(b.client())
		work.Go(func() {
			for range rounds {
				err := l.DoAdvisory(t.Context(), "x", func(context.Context) error { return critical() })
				if !assert.NoError(t, err) {
					return
				}
			}
		})
		session := b.session(b.client(), 20)
		work.Go(func() {
			m := concurrency.NewMutex(session, "fencelock/x")
			for range rounds {
				if !assert.NoError(t, m.Lock(t.Context())) {
					return
				}
				err := critical()
				if !assert.NoError(t, m.Unlock(t.Context())) || !assert.NoError(t, err) {
					return
				}
			}
		})
	}
	work.Wait()
	assert.Equal(t, 2*each*rounds, entries)
}

// session is a session of etcd's own, of so many seconds, that is closed at the
// end of the test.
func (b *bench) session(client *clientv3.Client, ttl int) *concurrency.Session {
	b.t.Helper()
	s, err := concurrency.NewSession(client, concurrency.WithTTL(ttl))
	require.NoError(b.t, err)
	b.t.Cleanup(func() { _ = s.Close() })
	return s
}
