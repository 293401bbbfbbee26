package fencelock

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// queueOf is what the record says of a name, oldest first.
func queueOf(e *fakeEtcd, name string) (keys []string, revs []int64) {
	for _, kv := range e.keys(queuePrefix(defaultPrefix, name)) {
		keys, revs = append(keys, string(kv.Key)), append(revs, kv.CreateRevision)
	}
	return keys, revs
}

// A hand-over is one event: the waiter sends nothing, neither before it is
// granted nor at that moment.
func TestWaiterIsGrantedByOneEvent(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		held := mustAcquire(t, newLocker(t, l), "n")
		link := e.dial(t)
		waiter := acquireLater(t.Context(), newLocker(t, link), "n")
		time.Sleep(time.Second)
		link.intercept(events.all(fault{replyDelay: 20 * time.Millisecond}))
		sent := len(link.requests())

		require.NoError(t, held.Release(t.Context()))
		lock := waiter.granted(t)
		assert.Equal(t, 1020*time.Millisecond, waiter.took)
		assert.Len(t, link.requests(), sent)
		assert.Len(t, link.requests(fakeWatchReq), 1)
		require.NoError(t, lock.Release(t.Context()))
	})
}

// All waiters of a Locker on one name share one watch, and are granted the lock
// in the order in which they came.
func TestWaitersShareAView(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		held := mustAcquire(t, newLocker(t, l), "n")
		link := e.dial(t)
		locker := newLocker(t, link)
		var waiters []*running
		for range 10 {
			waiters = append(waiters, acquireLater(t.Context(), locker, "n"))
			synctest.Wait()
		}
		_, revs := queueOf(e, "n")
		time.Sleep(time.Second)
		require.NoError(t, held.Release(t.Context()))
		for i, w := range waiters {
			lock := w.granted(t)
			assert.Equal(t, revs[i+1], lock.Token().Revision())
			for _, later := range waiters[i+1:] {
				require.False(t, later.isDone())
			}
			require.NoError(t, lock.Release(t.Context()))
		}
		assert.Len(t, link.requests(fakeWatchReq), 1)
		assert.Len(t, link.requests(fakeGet), 1)
	})
}

// The watch starts from now, and the queue is read only once it stands: what
// happens in between is in the read or comes as an event.
func TestQueueIsReadAfterTheWatchStands(t *testing.T) {
	for name, c := range map[string]fault{
		"released before the watch stands": {requestDelay: 300 * time.Millisecond},
		"released before it is confirmed":  {replyDelay: 300 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
				held := mustAcquire(t, newLocker(t, l), "n")
				link := e.dial(t)
				link.intercept(only(fakeWatchReq, c))
				waiter := acquireLater(t.Context(), newLocker(t, link), "n")
				time.Sleep(150 * time.Millisecond)
				require.NoError(t, held.Release(t.Context()))
				lock := waiter.granted(t)
				assert.Equal(t, 300*time.Millisecond, waiter.took)
				watch, read := link.requests(fakeWatchReq)[0], link.requests(fakeGet)[0]
				assert.False(t, read.sent.Before(watch.answered))
				op := watch.req.(clientv3.Op)
				assert.Zero(t, op.Rev(), "a watch from a revision is served on a 100 ms tick only")
				require.NoError(t, lock.Release(t.Context()))
			})
		})
	}
}

// Slots are reused, so a key in the snapshot can have had earlier lives, and
// their events can arrive after it. Here both the key ahead and the waiter's own
// were deleted and put anew before the read.
func TestEventsUpToTheSnapshotAreIgnored(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		other := e.dial(t)
		ahead := func() { mustPut(t, other, "fencelock/n/ahead-0", clientv3.WithLease(mustGrant(t, other, 600))) }
		ahead()
		l.intercept(both(
			only(fakeGet, fault{requestDelay: 300 * time.Millisecond}),
			events.all(fault{replyDelay: time.Second}),
		))
		locker := newLocker(t, l)
		first := acquireLater(within(t, 50*time.Millisecond), locker, "n")
		require.ErrorIs(t, first.wait(t).err, context.DeadlineExceeded)
		time.Sleep(50 * time.Millisecond)
		e.deleteKey(t, "fencelock/n/ahead-0")
		ahead()
		time.Sleep(50 * time.Millisecond)
		waiter := acquireLater(t.Context(), locker, "n")
		synctest.Wait()
		keys, revs := queueOf(e, "n")
		require.Len(t, keys, 2)

		time.Sleep(2 * time.Second) // the old events have come
		require.False(t, waiter.isDone())
		_, now := queueOf(e, "n")
		assert.Equal(t, revs, now, "the waiter kept its place")
		assert.Len(t, l.requests(fakeGet), 1)

		e.deleteKey(t, "fencelock/n/ahead-0")
		lock := waiter.granted(t)
		assert.Equal(t, revs[1], lock.Token().Revision())
		require.NoError(t, lock.Release(t.Context()))
	})
}

// A revoke deletes a holder's and a waiter's key in one revision. Were half of
// it applied, the dead waiter would head the queue.
func TestResponseIsAppliedWhole(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		var granted []int64
		doomed := newLocker(t, l, WithHooks(Hooks{
			Acquired: func(i AcquiredInfo) { granted = append(granted, i.Token.Revision()) },
		}))
		held := mustAcquire(t, doomed, "n")
		var dead []*running
		for range 5 {
			dead = append(dead, background(func(r *running) {
				if r.lock, r.err = doomed.Acquire(t.Context(), "n"); r.err == nil {
					r.err = r.lock.Release(t.Context())
				}
			}))
			synctest.Wait()
		}
		next := acquireLater(t.Context(), newLocker(t, e.dial(t)), "n")
		time.Sleep(time.Second)

		_, before := queueOf(e, "n")
		require.Len(t, before, 7)
		e.revokeLease(t, held.entry.lease.id)
		lock := next.granted(t)
		assert.Equal(t, time.Second, next.took, "at the moment of the revoke")
		assert.Equal(t, before[6], lock.Token().Revision())
		time.Sleep(time.Second)
		synctest.Wait()
		assert.Equal(t, before[:1], granted, "nothing was granted on a dead entry")
		require.ErrorIs(t, held.Release(t.Context()), ErrLost)

		require.NoError(t, lock.Release(t.Context()))
		for _, w := range dead {
			require.NoError(t, w.wait(t).err)
			assert.Greater(t, w.lock.Token().Revision(), before[6], "it queued again")
		}
	})
}

// A watch can go silent without an error. Whoever waits on it is granted the
// lock within a third of the TTL and 2 s all the same, on the first watch and on
// those that replaced a deaf one, at whatever moment it went deaf, and also if
// the connection that took it took the first read and the next watch with it.
func TestDeafWatch(t *testing.T) {
	const ttl = 15 * time.Second
	lost := fault{loseRequest: true}
	for _, earlier := range []int{0, 1, 3} {
		for _, phase := range []time.Duration{10 * time.Millisecond, 1700 * time.Millisecond, 4990 * time.Millisecond} {
			for name, c := range map[string]struct {
				lost int           // reads, and watches after them
				more time.Duration // the patience with those
			}{
				"watch only":    {},
				"more was lost": {lost: 1, more: time.Second},
			} {
				t.Run(fmt.Sprint(earlier, " ", phase, " ", name), func(t *testing.T) {
					inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
						held := mustAcquire(t, newLocker(t, l, WithTTL(ttl)), "n")
						between := func(i int) string { return fmt.Sprint("fencelock/n/between-", i) }
						for i := range earlier {
							mustPut(t, l, between(i), clientv3.WithLease(mustGrant(t, l, 600)))
						}
						link := e.dial(t)
						waiter := acquireLater(t.Context(), newLocker(t, link, WithTTL(ttl)), "n")
						synctest.Wait()
						_, revs := queueOf(e, "n")
						for i := range earlier {
							link.deafen()
							e.deleteKey(t, between(i))
							time.Sleep(ttl / 3) // it is read, and another watch stands
							synctest.Wait()
						}
						require.Len(t, link.requests(fakeWatchReq), 1+earlier)

						time.Sleep(phase)
						link.deafen()
						link.intercept(both(ofKind(fakeGet).first(c.lost, lost), ofKind(fakeWatchReq).first(c.lost, lost)))
						require.NoError(t, held.Release(t.Context()))
						released := time.Now()
						lock := waiter.granted(t)
						took := time.Since(released)
						assert.Equal(t, ttl/3-phase+c.more, took)
						assert.LessOrEqual(t, took, ttl/3+2*time.Second)
						assert.Equal(t, revs[1+earlier], lock.Token().Revision(), "the place was kept")
						require.NoError(t, lock.Release(t.Context()))
					})
				})
			}
		}
	}
}

// A view that nobody waits on, and one that hears events, is not checked; a
// silent one that is well is read, and goes on.
func TestDeafnessIsLookedForOnlyInSilence(t *testing.T) {
	const ttl = 15 * time.Second
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		held := mustAcquire(t, newLocker(t, l, WithTTL(ttl)), "n")
		link := e.dial(t)
		waiter := acquireLater(t.Context(), newLocker(t, link, WithTTL(ttl)), "n")
		synctest.Wait() // what its view has not seen from its entry on costs a read later
		lease := clientv3.WithLease(mustGrant(t, l, 600))
		for range 10 {
			mustPut(t, l, "fencelock/n/later-0", lease)
			time.Sleep(4 * time.Second)
			e.deleteKey(t, "fencelock/n/later-0")
		}
		synctest.Wait()
		assert.Len(t, link.requests(fakeGet), 1)

		quiet := time.Now()
		time.Sleep(21 * time.Second)
		assert.Equal(t, every(5*time.Second, 4), sentAt(quiet, link.requests(fakeGet)[1:]))
		assert.Len(t, link.requests(fakeWatchReq), 1)

		require.NoError(t, held.Release(t.Context()))
		lock := waiter.granted(t)
		read := len(link.requests(fakeGet))
		time.Sleep(time.Minute) // it holds now, and its key is looked at with each renewal
		assert.Len(t, link.requests(fakeGet), read)
		require.NoError(t, lock.Release(t.Context()))
	})
}

// The read that looks for deafness is never installed: an event that overtakes
// it is not undone, and does not make the watch deaf.
func TestCheckOvertakenByAnEvent(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		held := mustAcquire(t, newLocker(t, l), "n")
		link := e.dial(t)
		locker := newLocker(t, link)
		waiter := acquireLater(t.Context(), locker, "n")
		synctest.Wait()
		second := acquireLater(t.Context(), locker, "n")
		time.Sleep(time.Second)
		link.intercept(only(fakeGet, fault{replyDelay: 400 * time.Millisecond}))
		time.Sleep(4200 * time.Millisecond) // the read has been served, its answer is under way
		require.NoError(t, held.Release(t.Context()))
		lock := waiter.granted(t)
		require.NoError(t, lock.Release(t.Context()))
		lock = second.granted(t)
		assert.Equal(t, 5200*time.Millisecond, second.took)
		time.Sleep(time.Second)
		assert.Len(t, link.requests(fakeWatchReq), 1)
		require.NoError(t, lock.Release(t.Context()))
	})
}

// A store restored to an earlier revision says nothing for as long as its
// revisions are old ones: to a watch that is deafness.
func TestRestoredStoreRestartsTheView(t *testing.T) {
	t.Run("the keys are there", func(t *testing.T) {
		inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
			held := mustAcquire(t, newLocker(t, l), "n")
			for range 10 {
				mustPut(t, l, "elsewhere")
			}
			link := e.dial(t)
			waiter := acquireLater(t.Context(), newLocker(t, link), "n")
			time.Sleep(time.Second)
			_, revs := queueOf(e, "n")
			e.mu.Lock()
			e.rev = revs[1] - 1
			e.mu.Unlock()
			time.Sleep(4 * time.Second)
			synctest.Wait()
			assert.Len(t, link.requests(fakeWatchReq), 2)
			require.NoError(t, held.Release(t.Context()))
			assert.Equal(t, revs[1], waiter.granted(t).Token().Revision())
		})
	})
	t.Run("the waiter's key is not there", func(t *testing.T) {
		inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
			held := mustAcquire(t, newLocker(t, l), "n")
			link := e.dial(t)
			waiter := acquireLater(t.Context(), newLocker(t, link), "n")
			time.Sleep(time.Second)
			keys, _ := queueOf(e, "n")
			link.deafen()
			e.mu.Lock()
			e.rev = held.Token().Revision()
			delete(e.kvs, keys[1])
			e.mu.Unlock()
			// Its revision, by which it is known, may never come again.
			time.Sleep(4 * time.Second)
			synctest.Wait()
			now, _ := queueOf(e, "n")
			assert.Len(t, now, 2, "it queued again")
			require.NoError(t, held.Release(t.Context()))
			require.NoError(t, waiter.granted(t).Release(t.Context()))
		})
	})
}

// Whatever ends a watch costs a read and another watch, and never the place in
// the queue.
func TestBrokenWatchKeepsThePlace(t *testing.T) {
	for name, c := range map[string]struct {
		breakIt func(t *testing.T, e *fakeEtcd, link *fakeLink)
		took    time.Duration // until the view is whole again
	}{
		"no leader":      {breakIt: func(_ *testing.T, _ *fakeEtcd, link *fakeLink) { link.breakWatches(rpctypes.ErrNoLeader) }},
		"closed":         {breakIt: func(_ *testing.T, _ *fakeEtcd, link *fakeLink) { link.breakWatches(nil) }},
		"an odd error":   {breakIt: func(_ *testing.T, _ *fakeEtcd, link *fakeLink) { link.breakWatches(rpctypes.ErrCorrupt) }},
		"compacted":      {breakIt: compactBehind, took: time.Second},
		"for a while":    {breakIt: noWatchFor(3 * time.Second), took: 4 * time.Second},
		"reads for long": {breakIt: noReadFor(3 * time.Second), took: 4 * time.Second},
	} {
		for _, during := range []bool{false, true} {
			t.Run(fmt.Sprint(name, " ", during), func(t *testing.T) {
				inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
					held := mustAcquire(t, newLocker(t, l, WithTTL(time.Hour)), "n")
					link := e.dial(t)
					waiter := acquireLater(t.Context(), newLocker(t, link, WithTTL(time.Minute)), "n")
					time.Sleep(time.Second)
					_, revs := queueOf(e, "n")
					broken := time.Now()
					c.breakIt(t, e, link)
					if !during {
						time.Sleep(c.took - time.Since(broken))
						synctest.Wait()
						assert.Equal(t, 1, link.watches())
					}
					require.NoError(t, held.Release(t.Context()))
					released := time.Now()
					lock := waiter.granted(t)
					assert.Equal(t, revs[1], lock.Token().Revision())
					if !during {
						assert.Zero(t, time.Since(released))
					}
					assert.LessOrEqual(t, time.Since(broken), max(c.took, released.Sub(broken)))
					require.NoError(t, lock.Release(t.Context()))
				})
			})
		}
	}
}

// compactBehind cuts the waiter, compacts what it has not heard of, and heals.
func compactBehind(t *testing.T, e *fakeEtcd, link *fakeLink) {
	link.cut()
	other := e.dial(t)
	var rev int64
	for range 10 {
		mustPut(t, other, "fencelock/n/later", clientv3.WithLease(mustGrant(t, other, 600)))
		e.deleteKey(t, "fencelock/n/later")
		rev = mustPut(t, other, "elsewhere")
	}
	_, err := other.client.Compact(t.Context(), rev)
	require.NoError(t, err)
	time.Sleep(time.Second)
	link.heal()
}

func noWatchFor(d time.Duration) func(*testing.T, *fakeEtcd, *fakeLink) {
	return func(_ *testing.T, _ *fakeEtcd, link *fakeLink) {
		link.intercept(only(fakeWatchReq, fault{err: rpctypes.ErrGRPCNoLeader}))
		link.breakWatches(rpctypes.ErrNoLeader)
		time.AfterFunc(d, func() { link.intercept(nil) })
	}
}

func noReadFor(d time.Duration) func(*testing.T, *fakeEtcd, *fakeLink) {
	return func(_ *testing.T, _ *fakeEtcd, link *fakeLink) {
		link.intercept(only(fakeGet, fault{loseRequest: true}))
		link.breakWatches(nil)
		time.AfterFunc(d, func() { link.intercept(nil) })
	}
}

// A slow link is served too: patience grows until an answer fits in it.
func TestViewOverASlowLink(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		held := mustAcquire(t, newLocker(t, l, WithTTL(time.Hour)), "n")
		link := e.dial(t)
		link.intercept(func(string, any) fault {
			return fault{requestDelay: 1500 * time.Millisecond, replyDelay: 1500 * time.Millisecond}
		})
		waiter := acquireLater(t.Context(), newLocker(t, link, WithTTL(time.Minute)), "n")
		time.Sleep(30 * time.Second)
		require.NoError(t, held.Release(t.Context()))
		released := time.Now()
		lock := waiter.granted(t)
		assert.Equal(t, 1500*time.Millisecond, time.Since(released))
		link.intercept(nil)
		require.NoError(t, lock.Release(t.Context()))
	})
}

// A view outlives its last waiter by 3 s, for a name contended once is contended
// again; then its watch is closed.
func TestViewLingers(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		const linger = 3 * time.Second
		holder, link := newLocker(t, l), e.dial(t)
		locker := newLocker(t, link)
		contend := func() {
			held := mustAcquire(t, holder, "n")
			waiter := acquireLater(t.Context(), locker, "n")
			synctest.Wait()
			require.NoError(t, held.Release(t.Context()))
			require.NoError(t, waiter.granted(t).Release(t.Context()))
			synctest.Wait()
		}
		contend()
		require.Equal(t, 1, link.watches())
		time.Sleep(linger - time.Millisecond)
		contend() // just in time
		assert.Len(t, link.requests(fakeWatchReq), 1)
		assert.Len(t, link.requests(fakeGet), 1, "a view that is there needs no read")

		time.Sleep(linger - time.Millisecond)
		synctest.Wait()
		require.Equal(t, 1, link.watches(), "the 3 s begin anew")
		time.Sleep(time.Millisecond)
		synctest.Wait()
		assert.Zero(t, link.watches())

		contend()
		assert.Len(t, link.requests(fakeWatchReq), 2)
	})
}

// A key without a lease further ahead would block the waiter for ever once those
// before it are gone. One behind it does not concern it.
func TestStrayKeyAheadIsReported(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		held := mustAcquire(t, newLocker(t, l), "n")
		other := newLocker(t, e.dial(t))
		before := acquireLater(t.Context(), other, "n")
		time.Sleep(time.Second)
		mustPut(t, l, "fencelock/n/stray")
		behind := acquireLater(t.Context(), other, "n")
		require.True(t, behind.isDone())
		requireIs(t, behind.err, ErrNotAcquired, ErrForeignKey)
		assert.ErrorContains(t, behind.err, `"fencelock/n/stray"`)
		assert.Equal(t, PhaseWait, requireAs[*AcquireError](t, behind.err).Phase)
		assert.Len(t, e.keys("fencelock/"), 3, "it left the queue")

		require.False(t, before.isDone())
		require.NoError(t, held.Release(t.Context()))
		require.NoError(t, before.granted(t).Release(t.Context()))
	})
}

// A watch that is denied ends the waits on it, and takes nothing from a holder,
// whose renewals go on.
func TestDeniedWatch(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		l.intercept(only(fakeWatchReq, fault{err: rpctypes.ErrGRPCPermissionDenied}))
		locker := newLocker(t, l)
		held := mustAcquire(t, locker, "n")
		start := time.Now()
		_, err := locker.Acquire(t.Context(), "n")
		requireIs(t, err, ErrNotAcquired, rpctypes.ErrPermissionDenied)
		assert.ErrorContains(t, err, `"fencelock/n/"`)
		assert.Equal(t, PhaseWait, requireAs[*AcquireError](t, err).Phase)
		assert.Zero(t, time.Since(start))
		synctest.Wait()
		assert.Len(t, e.keys("fencelock/"), 1)

		time.Sleep(time.Minute)
		require.NoError(t, held.Err())
		assert.Less(t, len(l.requests(fakeWatchReq)), 100, "it is tried again, with pauses")
		require.NoError(t, held.Release(t.Context()))
	})
}
