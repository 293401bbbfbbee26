package fencelock

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// queueUp has n waiters, each in a process of its own, queue behind a holder.
func queueUp(t *testing.T, e *fakeEtcd, n int) (waiters []*running, links []*fakeLink) {
	t.Helper()
	for range n {
		link := e.dial(t)
		waiters = append(waiters, acquireLater(t.Context(), newLocker(t, link), "n"))
		links = append(links, link)
		synctest.Wait()
	}
	time.Sleep(100 * time.Millisecond)
	synctest.Wait()
	return waiters, links
}

// watched returns what the link's watches were opened on.
func watched(l *fakeLink) (keys []string) {
	for _, r := range l.requests(fakeWatchReq) {
		op := r.req.(clientv3.Op)
		keys = append(keys, string(op.KeyBytes()))
	}
	return keys
}

// A waiter that more are ahead of than a view follows sleeps on the key some
// places ahead, and hears nothing of the turns before that. When that is gone it
// follows the queue. Tokens rise, and the order is that of the queue.
func TestDeepWaiterSleeps(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		const n = 45
		held := mustAcquire(t, newLocker(t, l), "n")
		waiters, links := queueUp(t, e, n)
		keys, revs := queueOf(e, "n")
		for i, link := range links { // its own key is keys[i+1]; i+1 are ahead of it
			if i+1 <= viewDepth {
				assert.Equal(t, []string{"fencelock/n/"}, watched(link), i)
				assert.Len(t, link.requests(fakeGet), 1, i)
			} else {
				assert.Equal(t, []string{keys[i+1-sleepDepth]}, watched(link), i)
			}
		}

		require.NoError(t, held.Release(t.Context()))
		for i, w := range waiters {
			lock := w.granted(t)
			assert.Equal(t, revs[i+1], lock.Token().Revision())
			synctest.Wait()
			for j := i + 1; j < n; j++ {
				require.False(t, waiters[j].isDone())
				followed := len(watched(links[j])) > 1 || j+1 <= viewDepth
				assert.Equal(t, j-i < sleepDepth || j+1 <= viewDepth, followed, "%d when %d holds", j, i)
			}
			require.NoError(t, lock.Release(t.Context()))
		}
		for i, link := range links {
			if i+1 > viewDepth {
				assert.Equal(t, []string{keys[i+1-sleepDepth], "fencelock/n/"}, watched(link), i)
			}
		}
	})
}

// Whoever is slept on can leave before its turn. The sleeper then sleeps on
// another.
func TestSleepOnAnotherKey(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		held := mustAcquire(t, newLocker(t, l), "n")
		waiters, links := queueUp(t, e, 30)
		keys, revs := queueOf(e, "n")
		last := links[29]
		on := 30 - sleepDepth // its own key is the 30th
		require.Equal(t, []string{keys[on]}, watched(last))
		e.deleteKey(t, keys[on]) // its waiter queues again, at the end
		synctest.Wait()
		require.Equal(t, []string{keys[on], "fencelock/n/", keys[on-1]}, watched(last))
		require.Equal(t, 1, last.watches(), "it does not follow the queue from so far")

		require.NoError(t, held.Release(t.Context()))
		for i, w := range waiters {
			if i+1 == on {
				continue
			}
			lock := w.granted(t)
			assert.Equal(t, revs[i+1], lock.Token().Revision())
			require.NoError(t, lock.Release(t.Context()))
		}
		lock := waiters[on-1].granted(t)
		assert.Greater(t, lock.Token().Revision(), revs[30])
		require.NoError(t, lock.Release(t.Context()))
	})
}

// serveAll releases each lock when it is granted, until everybody has had it. It
// returns whose turn it was, in order.
func serveAll(t *testing.T, waiters []*running) (served []int) {
	t.Helper()
	var last int64
	for len(served) < len(waiters) {
		turn := -1
		for i, w := range waiters {
			if !slices.Contains(served, i) && w.isDone() {
				turn = i
				break
			}
		}
		if turn < 0 {
			time.Sleep(time.Second) // the bubble's
			require.Less(t, time.Since(waiters[0].started), 24*time.Hour, "nobody is granted after %v", served)
			continue
		}
		lock := waiters[turn].granted(t)
		require.Greater(t, lock.Token().Revision(), last)
		last = lock.Token().Revision()
		require.NoError(t, lock.Release(t.Context()))
		served = append(served, turn)
	}
	return served
}

// A sleeper that is deleted itself hears of that when it is looked for deafness,
// and queues again; it is never granted on a dead entry.
func TestDeadSleeperQueuesAgain(t *testing.T) {
	for _, awake := range []bool{false, true} {
		t.Run(fmt.Sprint("woken meanwhile ", awake), func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
				held := mustAcquire(t, newLocker(t, l), "n")
				waiters, _ := queueUp(t, e, 20)
				keys, revs := queueOf(e, "n")
				e.deleteKey(t, keys[20])
				if awake {
					e.deleteKey(t, keys[20-sleepDepth])
				} else {
					time.Sleep(15 * time.Second / 3)
				}
				synctest.Wait()
				now, _ := queueOf(e, "n")
				if assert.Contains(t, now, keys[20], "it has queued again") {
					assert.NotEqual(t, revs[20], e.keys(keys[20])[0].CreateRevision)
				}
				require.NoError(t, held.Release(t.Context()))
				// Who of the deleted queues again first is not said.
				served := serveAll(t, waiters)
				again := served[len(served)-1:]
				if awake {
					again = served[len(served)-2:]
					assert.Contains(t, again, 20-sleepDepth-1)
				}
				assert.Contains(t, again, 19)
				assert.Greater(t, waiters[19].lock.Token().Revision(), revs[20])
			})
		})
	}
}

// Somebody else can have put its key on the slot a sleeper watches, before the
// watch stood. That is not who it sleeps on.
func TestSleepersKeyPutAnew(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		held := mustAcquire(t, newLocker(t, l), "n")
		waiters, _ := queueUp(t, e, 19)
		keys, revs := queueOf(e, "n")
		link := e.dial(t)
		link.intercept(only(fakeWatchReq, fault{requestDelay: 300 * time.Millisecond}))
		sleeper := acquireLater(t.Context(), newLocker(t, link), "n")
		synctest.Wait()
		on := keys[20-sleepDepth]
		e.deleteKey(t, on)
		synctest.Wait() // its waiter has put it anew
		require.NotEqual(t, revs[20-sleepDepth], e.keys(on)[0].CreateRevision)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		link.intercept(nil)
		assert.Equal(t, []string{on, "fencelock/n/", keys[20-sleepDepth-1]}, watched(link)[:3])

		require.NoError(t, held.Release(t.Context()))
		for i, w := range waiters {
			if i+1 != 20-sleepDepth {
				require.NoError(t, w.granted(t).Release(t.Context()))
			}
		}
		require.NoError(t, sleeper.granted(t).Release(t.Context()))
		require.NoError(t, waiters[20-sleepDepth-1].granted(t).Release(t.Context()))
	})
}

// The watch of a sleeper can be deaf, as a view's. The read that shows it wakes
// the sleeper, in the bound that holds for a view.
func TestDeafSleeper(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		const ttl = 15 * time.Second
		held := mustAcquire(t, newLocker(t, l), "n")
		waiters, links := queueUp(t, e, 20)
		links[19].deafen()
		require.NoError(t, held.Release(t.Context()))
		for _, w := range waiters[:19] {
			require.NoError(t, w.granted(t).Release(t.Context()))
		}
		came := time.Now()
		require.NoError(t, waiters[19].granted(t).Release(t.Context()))
		assert.LessOrEqual(t, time.Since(came), ttl/3)
	})
}

// A key without a lease among those ahead is reported to a deep waiter too: at
// once if it is near, else when the waiter comes near.
func TestStrayKeyAheadOfADeepWaiter(t *testing.T) {
	for _, after := range []int{2, 15} {
		t.Run(fmt.Sprint(after), func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
				held := mustAcquire(t, newLocker(t, l), "n")
				before, _ := queueUp(t, e, after)
				mustPut(t, l, "fencelock/n/stray")
				var behind []*running
				for range 25 {
					behind = append(behind, acquireLater(t.Context(), newLocker(t, e.dial(t)), "n"))
					synctest.Wait()
				}
				time.Sleep(time.Second)
				for _, w := range behind {
					require.True(t, w.isDone(), "whoever can see it leaves, and so the next can")
					require.ErrorIs(t, w.err, ErrForeignKey)
				}
				require.NoError(t, held.Release(t.Context()))
				for _, w := range before {
					require.NoError(t, w.granted(t).Release(t.Context()))
				}
				keys, _ := queueOf(e, "n")
				assert.Equal(t, []string{"fencelock/n/stray"}, keys)
			})
		})
	}
}

// Many waiters of one Locker on one name share its view, however many they are:
// they sleep nowhere, since every turn is an event for this process anyway.
func TestManyWaitersOfOneLocker(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		const n = 60
		locker := newLocker(t, l)
		held := mustAcquire(t, locker, "n")
		var waiters []*running
		for range n {
			waiters = append(waiters, acquireLater(t.Context(), locker, "n"))
			synctest.Wait()
		}
		_, revs := queueOf(e, "n")
		time.Sleep(time.Second)
		require.NoError(t, held.Release(t.Context()))
		for i, w := range waiters {
			lock := w.granted(t)
			require.Equal(t, revs[i+1], lock.Token().Revision())
			require.NoError(t, lock.Release(t.Context()))
		}
		assert.Len(t, l.requests(fakeWatchReq), 1)
	})
}

// A view remembers so many deletions. A waiter whose snapshot is older than that
// is not left with half of them: it costs a read.
func TestWaiterOlderThanTheViewKnows(t *testing.T) {
	for _, turns := range []int{maxRecent / 2, 3 * maxRecent} {
		t.Run(fmt.Sprint(turns), func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
				other := e.dial(t)
				held := mustAcquire(t, newLocker(t, l), "n")
				link := e.dial(t)
				locker := newLocker(t, link)
				first := acquireLater(t.Context(), locker, "n")
				time.Sleep(time.Second)
				reads := len(link.requests(fakeGet))

				link.intercept(joins.all(fault{replyDelay: time.Second}))
				second := acquireLater(t.Context(), locker, "n")
				synctest.Wait()
				require.NoError(t, held.Release(t.Context()))
				require.NoError(t, first.granted(t).Release(t.Context()))
				lease := clientv3.WithLease(mustGrant(t, other, 600))
				for range turns {
					mustPut(t, other, "fencelock/n/passing-0", lease)
					e.deleteKey(t, "fencelock/n/passing-0")
				}
				start := time.Now()
				lock := second.granted(t)
				assert.Equal(t, time.Second, time.Since(start), "as soon as it knows of its place")
				read := 0
				if turns > maxRecent {
					read = 1
				}
				assert.Len(t, link.requests(fakeGet), reads+read)
				require.NoError(t, lock.Release(t.Context()))
			})
		})
	}
}

// After a restore to an earlier revision a waiter's snapshot is older than the
// view, and so is every read. That is a deaf watch, and no reason to read for
// ever.
func TestWaiterAfterARestore(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		held := mustAcquire(t, newLocker(t, l), "n")
		for range 10 {
			mustPut(t, l, "elsewhere")
		}
		link := e.dial(t)
		locker := newLocker(t, link)
		first := acquireLater(t.Context(), locker, "n")
		time.Sleep(time.Second)
		keys, _ := queueOf(e, "n")
		e.mu.Lock()
		e.rev = held.Token().Revision() + 1
		delete(e.kvs, keys[1])
		e.mu.Unlock()
		second := acquireLater(t.Context(), locker, "n")
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		assert.Len(t, link.requests(fakeWatchReq), 2)
		assert.LessOrEqual(t, len(link.requests(fakeGet)), 3)
		require.NoError(t, held.Release(t.Context()))
		// The first was not there any more, and has queued again.
		require.NoError(t, second.granted(t).Release(t.Context()))
		require.NoError(t, first.granted(t).Release(t.Context()))
	})
}

// The waiters of one Locker are behind its foremost one, so it sleeps for all of
// them: one watch and one read, however many they are.
func TestLockerSleepsForItsForemostWaiter(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		held := mustAcquire(t, newLocker(t, l), "n")
		waiters, _ := queueUp(t, e, 25)
		link := e.dial(t)
		locker := newLocker(t, link)
		for range 10 {
			waiters = append(waiters, acquireLater(t.Context(), locker, "n"))
			synctest.Wait()
		}
		time.Sleep(time.Second)
		more, _ := queueUp(t, e, 25)
		waiters = append(waiters, more...)
		waiters = append(waiters, acquireLater(t.Context(), locker, "n"))
		time.Sleep(time.Second)
		keys, revs := queueOf(e, "n")
		require.Equal(t, []string{keys[26-sleepDepth]}, watched(link))
		require.Empty(t, link.requests(fakeGet))

		require.NoError(t, held.Release(t.Context()))
		for i, w := range waiters {
			lock := w.granted(t)
			assert.Equal(t, revs[i+1], lock.Token().Revision())
			require.NoError(t, lock.Release(t.Context()))
			synctest.Wait()
		}
		assert.Equal(t, []string{keys[26-sleepDepth], "fencelock/n/", keys[61-sleepDepth], "fencelock/n/"}, watched(link),
			"it slept again when those near the head had their turns")
		assert.Len(t, link.requests(fakeGet), 2)
	})
}

// A holder's key is watched by the name's view, which then cannot sleep.
func TestViewAwakensForAHolder(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		link := e.dial(t)
		locker := newLocker(t, link)
		held := mustAcquire(t, locker, "n")
		waiters, _ := queueUp(t, e, 20)
		own := acquireLater(t.Context(), locker, "n")
		synctest.Wait()
		keys, _ := queueOf(e, "n")
		require.Equal(t, []string{keys[21-sleepDepth]}, watched(link))
		time.Sleep(ownWatchAfter)
		synctest.Wait()
		require.Equal(t, []string{keys[21-sleepDepth], "fencelock/n/"}, watched(link))

		e.deleteKey(t, keys[0])
		synctest.Wait()
		assert.Equal(t, LostDeleted, lostBy(t, held))
		require.ErrorIs(t, held.Release(t.Context()), ErrLost)
		for _, w := range append(waiters, own) {
			require.NoError(t, w.granted(t).Release(t.Context()))
		}
	})
}

// Waiters do not come to the view in the order in which they joined the queue: an
// answer takes the time it takes. A view that sleeps for a later one, on a key behind
// an earlier one, would wait for ever for a turn that waits for it.
func TestEarlierWaiterComesLater(t *testing.T) {
	for _, between := range []int{1, sleepDepth, sleepDepth + 1, 10} {
		t.Run(fmt.Sprint(between), func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
				held := mustAcquire(t, newLocker(t, l), "n")
				others, _ := queueUp(t, e, 20)
				link := e.dial(t)
				locker := newLocker(t, link)
				link.intercept(joins.first(1, fault{replyDelay: time.Second}))
				earlier := acquireLater(t.Context(), locker, "n")
				synctest.Wait()
				more, _ := queueUp(t, e, between)
				later := acquireLater(t.Context(), locker, "n")
				time.Sleep(2 * time.Second)
				_, revs := queueOf(e, "n")

				require.NoError(t, held.Release(t.Context()))
				waiters := append(append(append(others, earlier), more...), later)
				came := time.Now()
				for i, w := range waiters {
					lock := w.granted(t)
					assert.Equal(t, revs[i+1], lock.Token().Revision())
					require.NoError(t, lock.Release(t.Context()))
				}
				assert.Zero(t, time.Since(came), "nobody waited for a check")
			})
		})
	}
}
