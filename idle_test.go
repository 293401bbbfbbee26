package fencelock

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// After the last release of a lease nothing is sent any more: an idle process
// costs etcd nothing.
func TestNoRequestAfterTheLastRelease(t *testing.T) {
	const cycles, workers = 2000, 8
	for name, c := range map[string]struct {
		trip    time.Duration // of each request, both ways
		renewed bool          // while the cycles went on
	}{
		"in no time": {},
		"slow":       {trip: 20 * time.Millisecond, renewed: true},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
				const ttl = 3 * time.Second
				l.intercept(func(string, any) fault { return fault{replyDelay: c.trip} })
				locker := newLocker(t, l, WithTTL(ttl))
				var wg sync.WaitGroup
				for w := range workers {
					wg.Go(func() {
						for range cycles / workers {
							err := locker.DoAdvisory(t.Context(), fmt.Sprint("n", w), func(context.Context) error { return nil })
							assert.NoError(t, err)
						}
					})
				}
				wg.Wait()

				sent := len(l.requests())
				time.Sleep(10 * ttl)
				synctest.Wait()
				assert.Zero(t, len(l.requests())-sent)
				assert.Equal(t, 2*cycles, len(l.requests(fakeTxn)), "a cycle is two requests")
				assert.Len(t, l.requests(fakeGrant), 1)
				assert.Equal(t, c.renewed, len(l.requests(fakeKeepAlive)) > 0)
				requireNothingLeft(t, e)
				assert.Zero(t, l.watches())
			})
		})
	}
}

// A hold that begins after much use is renewed as any other.
func TestHoldAfterManyCyclesIsKept(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *fakeEtcd, l *fakeLink) {
		locker := newLocker(t, l, WithTTL(3*time.Second))
		for range 500 {
			require.NoError(t, locker.DoAdvisory(t.Context(), "n", func(context.Context) error { return nil }))
		}
		lock := mustAcquire(t, locker, "n")
		time.Sleep(10500 * time.Millisecond)
		require.NoError(t, lock.Err())
		assert.Equal(t, 10, len(l.requests(fakeKeepAlive)))
		require.NoError(t, lock.Release(t.Context()))
		sent := len(l.requests())
		time.Sleep(30 * time.Second)
		assert.Zero(t, len(l.requests())-sent)
	})
}

// An acquire that finds less than half of the TTL left makes the lease usable
// first. Else it waits for nothing: a renewal that is due goes beside it.
func TestIdleLeaseIsMadeUsableFirst(t *testing.T) {
	const ttl = 10 * time.Second
	large := []Option{WithMargin(9 * time.Second)}
	for name, c := range map[string]struct {
		idle    time.Duration
		opts    []Option
		revoked bool     // by somebody else, meanwhile
		first   []string // what is answered before the Txn that is granted is sent
		fresh   bool     // another lease
	}{
		"more than half is left":        {idle: 4900 * time.Millisecond},
		"less than half is left":        {idle: 5100 * time.Millisecond, first: []string{fakeKeepAlive}},
		"just before the deadline":      {idle: 7900 * time.Millisecond, first: []string{fakeKeepAlive}},
		"past the deadline":             {idle: 8100 * time.Millisecond, first: []string{fakeGrant}, fresh: true},
		"lapsed":                        {idle: 10 * ttl, first: []string{fakeGrant}, fresh: true},
		"revoked while it seems young":  {idle: time.Second, revoked: true, first: []string{fakeTxn, fakeGrant}, fresh: true},
		"revoked while it seems old":    {idle: 6 * time.Second, revoked: true, first: []string{fakeKeepAlive, fakeGrant}, fresh: true},
		"a quarter of what margin left": {idle: 700 * time.Millisecond, opts: large},
		"less of what margin left":      {idle: 800 * time.Millisecond, opts: large, first: []string{fakeKeepAlive}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
				locker := newLocker(t, l, append(c.opts, WithTTL(ttl))...)
				old := mustAcquire(t, locker, "n")
				require.NoError(t, old.Release(t.Context()))
				if c.revoked {
					e.revokeLease(t, old.entry.lease.id)
				}
				time.Sleep(c.idle)
				before := len(l.requests())
				l.intercept(func(string, any) fault { return fault{replyDelay: time.Millisecond} })
				lock := mustAcquire(t, locker, "n")
				sent := joins.of(l)
				join := sent[len(sent)-1]

				var first []string
				for _, r := range l.requests()[before:] {
					if r.kind != fakeRevoke && !r.answered.IsZero() && !r.answered.After(join.sent) {
						first = append(first, r.kind)
					}
				}
				assert.Equal(t, c.first, first)
				assert.Equal(t, c.fresh, lock.entry.lease != old.entry.lease)
				assert.Zero(t, lock.entry.slot, "the slot is used again")
				time.Sleep(3*ttl + ttl/10)
				require.NoError(t, lock.Err())
				require.NoError(t, lock.Release(t.Context()))
			})
		})
	}
}

// An idle lease lapses by itself: nobody renews it and nobody revokes it.
func TestIdleLeaseLapses(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		lock := mustAcquire(t, newLocker(t, l, WithTTL(3*time.Second)), "n")
		require.NoError(t, lock.Release(t.Context()))
		require.Len(t, e.expiries(), 1)
		time.Sleep(3500 * time.Millisecond)
		synctest.Wait()
		assert.Empty(t, e.expiries())
		assert.Empty(t, l.requests(fakeRevoke, fakeKeepAlive))
	})
}

// Acquires that come together share one grant, and one renewal of an old lease.
func TestPreparationIsShared(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		l.intercept(func(string, any) fault { return fault{replyDelay: 10 * time.Millisecond} })
		locker := newLocker(t, l)
		for range 2 {
			var calls []*running
			for i := range 20 {
				calls = append(calls, acquireLater(t.Context(), locker, fmt.Sprint("n", i)))
			}
			for _, r := range calls {
				require.NoError(t, r.granted(t).Release(t.Context()))
			}
			time.Sleep(8 * time.Second)
		}
		assert.Len(t, l.requests(fakeGrant), 1)
		assert.Len(t, l.requests(fakeKeepAlive), 1)
		assert.Len(t, e.expiries(), 1)
	})
}

// The TTL that counts is the smaller of what was asked and granted.
func TestGrantedTTLMayBeLarger(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *fakeEtcd, l *fakeLink) {
		start := time.Now()
		lock := mustAcquire(t, newLocker(t, l, WithTTL(time.Second)), "n") // etcd grants 2 s
		l.intercept(only(fakeKeepAlive, fault{loseRequest: true}))
		awaitIn(t, lock.Context().Done())
		assert.Equal(t, 800*time.Millisecond, time.Since(start))
		require.ErrorIs(t, lock.Release(t.Context()), ErrLost)
	})
}
