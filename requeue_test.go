package fencelock

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A waiter whose own key is deleted queues again at once, with a larger token,
// and is never granted on the dead key: also if that was the head of the queue
// by then.
func TestWaiterWhoseKeyIsDeletedQueuesAgain(t *testing.T) {
	for name, byRevoke := range map[string]bool{"deleted": false, "revoked": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
				held := mustAcquire(t, newLocker(t, l), "n")
				var granted []int64
				locker := newLocker(t, e.dial(t), WithHooks(Hooks{
					Acquired: func(i AcquiredInfo) { granted = append(granted, i.Token.Revision()) },
				}))
				waiter := acquireLater(t.Context(), locker, "n")
				behind := acquireLater(t.Context(), newLocker(t, e.dial(t)), "n")
				time.Sleep(time.Second)
				for range 3 {
					keys, revs := queueOf(e, "n")
					require.Len(t, keys, 3)
					mine := locker.currentLease().id
					for i, kv := range e.keys("fencelock/n/") {
						if kv.Lease == int64(mine) {
							require.NotZero(t, i)
							if !byRevoke {
								e.deleteKey(t, keys[i])
							}
						}
					}
					if byRevoke {
						e.revokeLease(t, mine)
					}
					time.Sleep(2 * time.Second)
					_, now := queueOf(e, "n")
					require.Len(t, now, 3)
					assert.Greater(t, now[2], revs[2], "it stands at the end")
				}
				_, revs := queueOf(e, "n")
				require.NoError(t, held.Release(t.Context()))
				first := behind.granted(t)
				require.False(t, waiter.isDone())
				require.NoError(t, first.Release(t.Context()))
				lock := waiter.granted(t)
				assert.Equal(t, []int64{revs[2]}, granted)
				require.NoError(t, lock.Release(t.Context()))
			})
		})
	}
}

// The key of a waiter that is behind nobody any more, and is deleted before the
// news of heading the queue arrives, is not granted.
func TestHeadThatIsDeletedIsNotGranted(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		held := mustAcquire(t, newLocker(t, l), "n")
		link := e.dial(t)
		waiter := acquireLater(t.Context(), newLocker(t, link), "n")
		time.Sleep(time.Second)
		keys, revs := queueOf(e, "n")
		link.intercept(ofKind(fakeGet).all(fault{requestDelay: 300 * time.Millisecond}))
		link.breakWatches(nil) // it reads the queue again, and is late to
		synctest.Wait()
		require.NoError(t, held.Release(t.Context()))
		e.deleteKey(t, keys[1])
		lock := waiter.granted(t)
		assert.Greater(t, lock.Token().Revision(), revs[1])
		require.NoError(t, lock.Release(t.Context()))
	})
}

// A waiter that loses its lease in an outage goes on trying for as long as its
// context lives.
func TestWaiterOutlastsAnOutage(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		const ttl = 6 * time.Second
		held := mustAcquire(t, newLocker(t, l), "n")
		link := e.dial(t)
		locker := newLocker(t, link, WithTTL(ttl))
		waiter := acquireLater(t.Context(), locker, "n")
		time.Sleep(time.Second)
		_, before := queueOf(e, "n")
		link.cut()
		time.Sleep(5 * time.Minute)
		keys, _ := queueOf(e, "n")
		require.Len(t, keys, 1, "its key went with its lease")
		require.False(t, waiter.isDone())

		link.heal()
		time.Sleep(ttl + 2*time.Second) // the request that is being lost, a pause
		synctest.Wait()
		_, after := queueOf(e, "n")
		require.Len(t, after, 2)
		assert.Greater(t, after[1], before[1])
		require.NoError(t, held.Release(t.Context()))
		assert.Equal(t, after[1], waiter.granted(t).Token().Revision())
		require.NoError(t, waiter.lock.Release(t.Context()))
	})
}

func TestWaiterGivesUpWithItsContext(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		held := mustAcquire(t, newLocker(t, l, WithTTL(time.Hour)), "n")
		link := e.dial(t)
		waiter := acquireLater(within(t, 3*time.Minute), newLocker(t, link, WithTTL(6*time.Second)), "n")
		time.Sleep(time.Second)
		link.cut()
		err := waiter.wait(t).err
		assert.Equal(t, 3*time.Minute, waiter.took)
		requireIs(t, err, ErrNotAcquired, context.DeadlineExceeded)
		assert.ErrorContains(t, err, "no answer from etcd", "the last thing that was heard")
		link.heal()
		require.NoError(t, held.Release(t.Context()))
	})
}

// A lease whose deadline passed in the queue, while the process was held up, is
// not lost for a waiter: nothing was promised to anybody. One answered renewal
// proves that it lives, and the place is kept.
func TestLateWaiterProvesItsLease(t *testing.T) {
	for name, c := range map[string]struct {
		revoked bool
		kept    bool
	}{"it lives": {kept: true}, "it is gone": {revoked: true}} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
				held := mustAcquire(t, newLocker(t, l, WithTTL(time.Hour)), "n")
				link := e.dial(t)
				locker := newLocker(t, link, WithTTL(10*time.Second))
				waiter := acquireLater(t.Context(), locker, "n")
				synctest.Wait()
				_, revs := queueOf(e, "n")
				// Renewals are sent at 3.3, 5, 6.6 and 8.3 s and are being lost;
				// the deadline is at 8 s, and the first attempt given up at 8.3.
				link.intercept(only(fakeKeepAlive, fault{loseRequest: true}))
				time.Sleep(8100 * time.Millisecond)
				link.intercept(nil)
				require.True(t, locker.currentLease().expired())
				if c.revoked {
					link.deafen()
					e.revokeLease(t, locker.currentLease().id)
					link.breakWatches(nil)
				}
				require.NoError(t, held.Release(t.Context()))
				lock := waiter.granted(t)
				assert.Equal(t, c.kept, lock.Token().Revision() == revs[1])
				time.Sleep(time.Minute)
				require.NoError(t, lock.Err())
				require.NoError(t, lock.Release(t.Context()))
			})
		})
	}
}
