package fencelock

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

func TestRenewedEveryThirdOfTheTTL(t *testing.T) {
	for _, ttl := range []time.Duration{2 * time.Second, 6 * time.Second, time.Minute} {
		t.Run(ttl.String(), func(t *testing.T) {
			inBubble(t, func(t *testing.T, _ *fakeEtcd, l *fakeLink) {
				// The next one counts from when the last was sent, however long
				// its answer took.
				l.intercept(only(fakeKeepAlive, fault{requestDelay: ttl / 20, replyDelay: ttl / 20}))
				start := time.Now()
				lock := mustAcquire(t, newLocker(t, l, WithTTL(ttl)), "n")
				time.Sleep(5*ttl - ttl/6)
				assert.Equal(t, every(ttl/3, 14), sentAt(start, l.requests(fakeKeepAlive)))
				require.NoError(t, lock.Release(t.Context()))
			})
		})
	}
}

func TestRenewedForAWaiter(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		held := mustAcquire(t, newLocker(t, l, WithTTL(time.Hour)), "n")
		link, start := e.dial(t), time.Now()
		waiter := acquireLater(t.Context(), newLocker(t, link, WithTTL(6*time.Second)), "n")
		time.Sleep(30*time.Second - time.Millisecond)
		assert.Equal(t, every(2*time.Second, 14), sentAt(start, link.requests(fakeKeepAlive)))
		require.NoError(t, held.Release(t.Context()))
		require.NoError(t, waiter.granted(t).Release(t.Context()))
	})
}

// A key that could not be deleted is kept alive by nobody but its clean-up, and
// that only up to its end.
func TestRenewedForACleanUp(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		start := time.Now()
		lock := mustAcquire(t, newLocker(t, l, WithTTL(6*time.Second)), "n")
		l.intercept(deletes.all(fault{loseRequest: true}))
		require.ErrorIs(t, lock.Release(within(t, time.Second)), ErrUnconfirmed)
		time.Sleep(time.Until(start.Add(19 * time.Second)))
		assert.Equal(t, every(2*time.Second, 9), sentAt(start, l.requests(fakeKeepAlive)))

		l.intercept(nil)
		time.Sleep(10 * time.Second) // the attempt that is being lost, a pause, the next one
		require.Empty(t, e.keys("fencelock/"))
		renewed := len(l.requests(fakeKeepAlive))
		time.Sleep(time.Minute)
		assert.Len(t, l.requests(fakeKeepAlive), renewed)
		assert.Empty(t, e.expiries())
	})
}

// An attempt without an answer is joined by the next after half a third of the
// TTL, and is still the one that counts if it is answered first.
func TestUnansweredRenewalIsJoinedByTheNext(t *testing.T) {
	const ttl = 6 * time.Second
	t.Run("none is answered", func(t *testing.T) {
		inBubble(t, func(t *testing.T, _ *fakeEtcd, l *fakeLink) {
			l.intercept(only(fakeKeepAlive, fault{loseRequest: true}))
			start := time.Now()
			lock := mustAcquire(t, newLocker(t, l, WithTTL(ttl)), "n")
			awaitIn(t, lock.Context().Done())
			assert.Equal(t, 4800*time.Millisecond, time.Since(start))
			assert.Equal(t, []time.Duration{2 * time.Second, 3 * time.Second, 4 * time.Second},
				sentAt(start, l.requests(fakeKeepAlive)))
			require.ErrorIs(t, lock.Release(t.Context()), ErrLost)
		})
	})
	t.Run("the first is answered late", func(t *testing.T) {
		inBubble(t, func(t *testing.T, _ *fakeEtcd, l *fakeLink) {
			l.intercept(ofKind(fakeKeepAlive).first(1, fault{replyDelay: 1900 * time.Millisecond}))
			start := time.Now()
			lock := mustAcquire(t, newLocker(t, l, WithTTL(ttl)), "n")
			time.Sleep(2900 * time.Millisecond)
			assert.Len(t, l.requests(fakeKeepAlive), 1)
			time.Sleep(200 * time.Millisecond)
			assert.Equal(t, []time.Duration{2 * time.Second, 3 * time.Second}, sentAt(start, l.requests(fakeKeepAlive)))
			require.NoError(t, lock.Release(t.Context()))
		})
	})
	t.Run("all are answered late", func(t *testing.T) {
		inBubble(t, func(t *testing.T, _ *fakeEtcd, l *fakeLink) {
			// Longer than a third: nothing but joining keeps this lock.
			l.intercept(only(fakeKeepAlive, fault{requestDelay: time.Second, replyDelay: 1700 * time.Millisecond}))
			lock := mustAcquire(t, newLocker(t, l, WithTTL(ttl)), "n")
			time.Sleep(20 * ttl)
			require.NoError(t, lock.Err())
			require.NoError(t, lock.Release(t.Context()))
		})
	})
}

// A failure is no loss. It is repeated after pauses that grow from 50 ms to 1 s,
// each shortened by up to a half at random, up to the deadline and not beyond.
func TestFailedRenewalIsRepeatedUntilTheDeadline(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *fakeEtcd, l *fakeLink) {
		var failed []RenewalFailedInfo
		l.intercept(only(fakeKeepAlive, fault{err: rpctypes.ErrGRPCRequestTooManyRequests}))
		start := time.Now()
		lock := mustAcquire(t, newLocker(t, l, WithHooks(Hooks{
			RenewalFailed: func(i RenewalFailedInfo) { failed = append(failed, i) },
		})), "n")
		awaitIn(t, lock.Context().Done())
		assert.Equal(t, 12*time.Second, time.Since(start))
		time.Sleep(time.Minute)

		sent := sentAt(start, l.requests(fakeKeepAlive))
		assert.Equal(t, 5*time.Second, sent[0])
		assert.Less(t, sent[len(sent)-1], 12*time.Second, "no renewal after the loss")
		assert.Greater(t, sent[len(sent)-1], 11*time.Second, "it was tried to the end")
		for i, most := 1, 50*time.Millisecond; i < len(sent); i, most = i+1, min(2*most, time.Second) {
			gap := sent[i] - sent[i-1]
			assert.GreaterOrEqual(t, gap, most/2, i)
			assert.LessOrEqual(t, gap, most, i)
		}

		require.Len(t, failed, len(sent), "the hook hears of each")
		for i, f := range failed {
			assert.ErrorIs(t, f.Err, rpctypes.ErrTooManyRequests)
			assert.Equal(t, 12*time.Second-sent[i], f.Left)
			assert.Equal(t, 1, f.Locks)
			assert.EqualValues(t, lock.entry.lease.id, f.Lease)
		}
		require.ErrorIs(t, lock.Release(t.Context()), ErrLost)
	})
}

func TestFailingRenewalsThatEndInTimeLoseNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *fakeEtcd, l *fakeLink) {
		confirmed := time.Now()
		lock := mustAcquire(t, newLocker(t, l), "n")
		for range 10 {
			l.intercept(only(fakeKeepAlive, fault{err: rpctypes.ErrGRPCRequestTooManyRequests}))
			time.Sleep(10*time.Second - time.Since(confirmed)) // of the 12 s there are
			l.intercept(nil)
			time.Sleep(1100 * time.Millisecond)
			require.NoError(t, lock.Err())
			confirmed = lastRenewed(l)
		}
		require.NoError(t, lock.Release(t.Context()))
	})
}

func lastRenewed(l *fakeLink) (at time.Time) {
	for _, r := range l.requests(fakeKeepAlive) {
		if r.err == nil && !r.answered.IsZero() {
			at = r.sent
		}
	}
	return at
}

// A margin that leaves little of the TTL makes renewals more frequent, also the
// ones that follow one another quickly because an answer is missing.
func TestRenewedInTimeWithALargeMargin(t *testing.T) {
	const ttl = 15 * time.Second
	for name, c := range map[string]struct {
		left  time.Duration // of the TTL, by the margin
		fault fault
	}{
		"50ms":              {left: 50 * time.Millisecond},
		"50ms, a slow link": {left: 50 * time.Millisecond, fault: fault{requestDelay: 5 * time.Millisecond, replyDelay: 5 * time.Millisecond}},
		"3s":                {left: 3 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, _ *fakeEtcd, l *fakeLink) {
				l.intercept(only(fakeKeepAlive, c.fault))
				lock := mustAcquire(t, newLocker(t, l, WithTTL(ttl), WithMargin(ttl-c.left)), "n")
				time.Sleep(20 * c.left)
				require.NoError(t, lock.Err())
				assert.LessOrEqual(t, len(l.requests(fakeKeepAlive)), 40, "half of what is left is enough")

				// One that is lost is made good by the next, in time.
				l.intercept(ofKind(fakeKeepAlive).first(1, fault{loseRequest: true}))
				time.Sleep(20 * c.left)
				require.NoError(t, lock.Err())
				require.NoError(t, lock.Release(t.Context()))
			})
		})
	}
}

// A margin that leaves next to nothing cannot be served; it must not make a busy
// loop of the keeper either.
func TestMarginThatLeavesNothingEndsWithTheContext(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *fakeEtcd, l *fakeLink) {
		locker := newLocker(t, l, WithMargin(15*time.Second-1))
		start := time.Now()
		for {
			lock, err := locker.Acquire(within(t, 2*time.Second), "n")
			if err == nil {
				// In a bubble no time passes between the grant of the lease and
				// that of the lock.
				time.Sleep(time.Nanosecond)
				require.ErrorIs(t, lock.Release(t.Context()), ErrLost)
			}
			if time.Sleep(100 * time.Millisecond); time.Since(start) > 3*time.Second {
				break
			}
		}
		assert.Less(t, len(l.requests()), 1000)
	})
}

func TestRenewedHook(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *fakeEtcd, l *fakeLink) {
		var renewed []RenewedInfo
		locker := newLocker(t, l, WithTTL(6*time.Second), WithHooks(Hooks{
			Renewed: func(i RenewedInfo) { renewed = append(renewed, i) },
		}))
		l.intercept(only(fakeKeepAlive, fault{requestDelay: 100 * time.Millisecond, replyDelay: 300 * time.Millisecond}))
		a, b := mustAcquire(t, locker, "a"), mustAcquire(t, locker, "b")
		time.Sleep(3 * time.Second)
		require.NoError(t, b.Release(t.Context()))
		time.Sleep(2 * time.Second)
		synctest.Wait()
		first := RenewedInfo{
			Lease: int64(a.entry.lease.id), TTL: 6 * time.Second, Took: 400 * time.Millisecond,
			Margin: 2400 * time.Millisecond, Locks: 2,
		}
		second := first
		second.Locks = 1
		assert.Equal(t, []RenewedInfo{first, second}, renewed)
		require.NoError(t, a.Release(t.Context()))
	})
}

// The answer that the lease is gone is a loss at once, and ends its renewals.
func TestRenewalOfALeaseThatIsGone(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		start := time.Now()
		lock := mustAcquire(t, newLocker(t, l, WithTTL(6*time.Second)), "n")
		time.Sleep(time.Second)
		l.deafen()
		e.revokeLease(t, lock.entry.lease.id)
		awaitIn(t, lock.Context().Done())
		assert.Equal(t, 2*time.Second, time.Since(start))
		assert.Equal(t, LostRevoked, requireAs[*LostError](t, lock.Err()).Reason)
		time.Sleep(time.Minute)
		assert.Len(t, l.requests(fakeKeepAlive), 1)
		require.ErrorIs(t, lock.Release(t.Context()), ErrLost)
	})
}

// The margin is the time that a holder has to stop: a lease that was lost is not
// revoked before the last of its holders has returned, and at once then, so that
// the next one need not wait for its end.
func TestLostLeaseIsRevokedOnceItsHoldersReturned(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		locker := newLocker(t, l, WithTTL(60*time.Second), WithMargin(50*time.Second))
		a, b := mustAcquire(t, locker, "a"), mustAcquire(t, locker, "b")
		l.intercept(only(fakeKeepAlive, fault{loseRequest: true}))
		awaitIn(t, a.Context().Done())
		awaitIn(t, b.Context().Done())
		next := acquireLater(t.Context(), newLocker(t, e.dial(t)), "a")
		time.Sleep(20 * time.Second)
		require.ErrorIs(t, a.Release(t.Context()), ErrLost)
		time.Sleep(10 * time.Second)
		require.Empty(t, l.requests(fakeRevoke))
		require.False(t, next.isDone())

		require.ErrorIs(t, b.Release(t.Context()), ErrLost)
		synctest.Wait()
		assert.Len(t, l.requests(fakeRevoke), 1)
		assert.True(t, next.isDone())
		require.NoError(t, next.granted(t).Release(t.Context()))
	})
}
