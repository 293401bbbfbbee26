package fencelock

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

func lostBy(t *testing.T, lock *Lock) Reason {
	t.Helper()
	return requireAs[*LostError](t, lock.Err()).Reason
}

// A short hold, as most are, costs no watch. A longer one watches its key alone,
// from now, with a read after; and closes that watch with the hold.
func TestOwnKeyIsWatchedAfterHalfASecond(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *fakeEtcd, l *fakeLink) {
		locker := newLocker(t, l)
		lock := mustAcquire(t, locker, "n")
		time.Sleep(400 * time.Millisecond)
		require.NoError(t, lock.Release(t.Context()))
		time.Sleep(time.Second)
		require.Empty(t, l.requests(fakeWatchReq, fakeGet))

		start := time.Now()
		lock = mustAcquire(t, locker, "n")
		time.Sleep(600 * time.Millisecond)
		require.Equal(t, 1, l.watches())
		watch, read := l.requests(fakeWatchReq)[0], l.requests(fakeGet)[0]
		assert.Equal(t, 500*time.Millisecond, watch.sent.Sub(start))
		assert.False(t, read.sent.Before(watch.answered))
		op := watch.req.(clientv3.Op)
		assert.Equal(t, lock.entry.key, string(op.KeyBytes()))
		assert.Empty(t, op.RangeBytes(), "one key")
		assert.Zero(t, op.Rev())

		require.NoError(t, lock.Release(t.Context()))
		synctest.Wait()
		assert.Zero(t, l.watches(), "nobody else will use it")
	})
}

// Where the Locker has the name's view open, that serves for the holder too.
func TestOwnKeyIsWatchedByTheNamesView(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		held := mustAcquire(t, newLocker(t, l), "n")
		link := e.dial(t)
		locker := newLocker(t, link)
		waiter := acquireLater(t.Context(), locker, "n")
		synctest.Wait()
		require.NoError(t, held.Release(t.Context()))
		lock := waiter.granted(t)
		time.Sleep(time.Minute)
		require.Len(t, link.requests(fakeWatchReq), 1)
		require.Equal(t, 1, link.watches(), "it is used, and does not linger out")

		e.deleteKey(t, lock.entry.key)
		synctest.Wait()
		assert.Equal(t, LostDeleted, lostBy(t, lock))
		require.ErrorIs(t, lock.Release(t.Context()), ErrLost)
		time.Sleep(viewLinger)
		synctest.Wait()
		assert.Zero(t, link.watches())
	})
}

func TestDeletionIsFeltAtOnce(t *testing.T) {
	for name, c := range map[string]struct {
		after time.Duration // the grant
		felt  time.Duration
	}{
		"before its key is watched": {after: 100 * time.Millisecond, felt: 500 * time.Millisecond},
		"while it is watched":       {after: time.Second, felt: time.Second},
		"much later":                {after: time.Hour + time.Second, felt: time.Hour + time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
				locker := newLocker(t, l)
				lock, other := mustAcquire(t, locker, "n"), mustAcquire(t, locker, "other")
				start := time.Now()
				time.Sleep(c.after)
				e.deleteKey(t, lock.entry.key)
				awaitIn(t, lock.Context().Done())
				assert.Equal(t, c.felt, time.Since(start))
				assert.Equal(t, LostDeleted, lostBy(t, lock))
				synctest.Wait()
				require.NoError(t, other.Err(), "its lease lives on")
				require.ErrorIs(t, lock.Release(t.Context()), ErrLost)
				require.NoError(t, other.Release(t.Context()))
			})
		})
	}
}

// A key that was deleted and put anew, by whomever, is not this acquisition's.
func TestKeyPutAnewIsNotOurs(t *testing.T) {
	for _, after := range []time.Duration{100 * time.Millisecond, time.Second} {
		t.Run(after.String(), func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
				lock := mustAcquire(t, newLocker(t, l), "n")
				time.Sleep(after)
				e.deleteKey(t, lock.entry.key)
				mustPut(t, e.dial(t), lock.entry.key, clientv3.WithLease(lock.entry.lease.id))
				time.Sleep(time.Second)
				assert.Equal(t, LostDeleted, lostBy(t, lock))
				require.ErrorIs(t, lock.Release(t.Context()), ErrLost)
				assert.Len(t, e.keys("fencelock/"), 1, "and not ours to delete")
			})
		})
	}
}

// The watch of a key can be deaf, so each answered renewal is followed by a look
// at the keys.
func TestDeafOwnWatch(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		start := time.Now()
		lock := mustAcquire(t, newLocker(t, l), "n")
		time.Sleep(6 * time.Second)
		require.Equal(t, 1, l.watches())
		l.deafen()
		e.deleteKey(t, lock.entry.key)
		awaitIn(t, lock.Context().Done())
		assert.Equal(t, 10*time.Second, time.Since(start), "the second renewal")
		assert.Equal(t, LostDeleted, lostBy(t, lock))
		require.ErrorIs(t, lock.Release(t.Context()), ErrLost)
	})
}

// Of many held locks only some are watched. The others' keys are looked at often
// enough for a deletion to be felt within a second, as many at once as etcd takes
// in a Txn; those of the watched, because a watch can be deaf, after each renewal.
func TestKeysOfManyLocksArePolled(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		const n = maxOwnWatches + maxTxnOps + 44
		locker := newLocker(t, l)
		locks := make([]*Lock, n)
		for i := range locks {
			locks[i] = mustAcquire(t, locker, fmt.Sprint("n", i))
		}
		time.Sleep(6 * time.Second)
		assert.Equal(t, maxOwnWatches, l.watches())
		sizes := map[int]int{}
		for _, r := range checks.of(l) {
			require.NoError(t, r.err)
			sizes[len(r.req.(*pb.TxnRequest).Compare)]++
		}
		polls := int(5500 * time.Millisecond / pollEvery)
		assert.Equal(t, map[int]int{maxTxnOps: polls, 44: polls, maxOwnWatches: 1}, sizes)

		// Whichever Txn a key is in, its loss is found, and no other's.
		l.deafen()
		watched := map[int]bool{}
		for i, lock := range locks {
			watched[i] = lock.view != nil
		}
		gone := map[int]bool{0: true, n / 3: true, n / 2: true, n - 1: true}
		for i := range gone {
			e.deleteKey(t, locks[i].entry.key)
		}
		time.Sleep(pollEvery)
		synctest.Wait()
		for i, lock := range locks {
			if gone[i] && !watched[i] {
				assert.Equal(t, LostDeleted, lostBy(t, lock))
			}
		}
		time.Sleep(5 * time.Second)
		for i, lock := range locks {
			if gone[i] {
				assert.Equal(t, LostDeleted, lostBy(t, lock))
				assert.ErrorIs(t, lock.Release(t.Context()), ErrLost)
			} else {
				assert.NoError(t, lock.Release(t.Context()))
			}
		}
	})
}

// A check that gets no answer proves nothing. It is repeated with more and more
// patience up to the next renewal: 0.5 s, 1 s, 2 s and what is left of 5 s.
func TestUnansweredCheckLosesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *fakeEtcd, l *fakeLink) {
		l.intercept(checks.all(fault{loseReply: true}))
		lock := mustAcquire(t, newLocker(t, l), "n")
		time.Sleep(5*time.Minute - time.Second)
		require.NoError(t, lock.Err())
		assert.Len(t, checks.of(l), 4*59, "four for each renewal")
		l.intercept(nil)
		require.NoError(t, lock.Release(t.Context()))
	})
}

// A revoke deletes all keys of the lease. Whoever feels the deletion of its own
// asks for a renewal now, whose answer tells all others, watched or not.
func TestRevokeIsToldToAllHoldersAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		locker := newLocker(t, l)
		watched := mustAcquire(t, locker, "watched")
		time.Sleep(time.Second)
		fresh, second := mustAcquire(t, locker, "fresh"), mustAcquire(t, locker, "second")
		time.Sleep(100 * time.Millisecond)
		require.Equal(t, 1, l.watches())
		e.revokeLease(t, watched.entry.lease.id)
		synctest.Wait()
		assert.Equal(t, LostDeleted, lostBy(t, watched))
		assert.Equal(t, LostRevoked, lostBy(t, fresh))
		assert.Equal(t, LostRevoked, lostBy(t, second))
		assert.Len(t, l.requests(fakeKeepAlive), 1)
		for _, lock := range []*Lock{watched, fresh, second} {
			require.ErrorIs(t, lock.Release(t.Context()), ErrLost)
		}
		// The next one is not held up by any of that.
		again := mustAcquire(t, locker, "watched")
		require.NoError(t, again.Release(t.Context()))
	})
}

// The same deletion of one key alone loses nothing else.
func TestDeletionOfOneKeyIsNotTheLeases(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		locker := newLocker(t, l)
		lost, kept := mustAcquire(t, locker, "lost"), mustAcquire(t, locker, "kept")
		time.Sleep(time.Second)
		e.deleteKey(t, lost.entry.key)
		time.Sleep(time.Minute)
		require.NoError(t, kept.Err())
		require.ErrorIs(t, lost.Release(t.Context()), ErrLost)
		require.NoError(t, kept.Release(t.Context()))
	})
}

// Nothing polls for locks that were given back, and what comes later is polled
// again.
func TestPollingEndsWithTheLocks(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		locker := newLocker(t, l)
		for range 2 {
			var locks []*Lock
			for i := range maxOwnWatches + 3 {
				locks = append(locks, mustAcquire(t, locker, fmt.Sprint("n", i)))
			}
			time.Sleep(2 * time.Second)
			assert.Equal(t, maxOwnWatches, l.watches())
			for _, lock := range locks {
				require.NoError(t, lock.Release(t.Context()))
			}
			asked := len(checks.of(l))
			require.NotZero(t, asked)
			time.Sleep(2 * time.Second)
			assert.Len(t, checks.of(l), asked)
			assert.Zero(t, l.watches())
		}
	})
}

// A poll without an answer loses nothing, and one that is denied all of them.
func TestPollsFate(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		locker := newLocker(t, l)
		var locks []*Lock
		for i := range maxOwnWatches + 3 {
			locks = append(locks, mustAcquire(t, locker, fmt.Sprint("n", i)))
		}
		l.intercept(checks.all(fault{loseReply: true}))
		time.Sleep(time.Minute)
		for _, lock := range locks {
			require.NoError(t, lock.Err())
		}
		l.intercept(checks.all(fault{err: rpctypes.ErrGRPCPermissionDenied}))
		time.Sleep(time.Second)
		for _, lock := range locks {
			assert.Equal(t, LostDenied, lostBy(t, lock))
			require.ErrorIs(t, lock.Release(t.Context()), ErrLost)
		}
	})
}
