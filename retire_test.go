package fencelock

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// An acquire whose Txn got no answer may have left a key, or leave one later. A
// shared lease must not keep that alive. The figures here: the Txn's answer is
// awaited for 10 s, whoever gave up before; the clean-up comes then. The key is
// looked for a quarter of a second after the caller gave up already, since others
// wait for it; finding it settles the matter.

// ask makes an acquire that gives up after a second.
func ask(t *testing.T, l *Locker, name string) {
	t.Helper()
	start := time.Now()
	_, err := l.Acquire(within(t, time.Second), name)
	requireIs(t, err, ErrNotAcquired, context.DeadlineExceeded)
	require.Equal(t, time.Second, time.Since(start))
}

// stillThere returns which of the leases etcd has.
func stillThere(e *fakeEtcd, leases ...*lease) []bool {
	synctest.Wait()
	expiries := e.expiries()
	out := make([]bool, len(leases))
	for i, le := range leases {
		_, out[i] = expiries[le.id]
	}
	return out
}

func (l *Locker) currentLease() *lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.current
}

// What became of the Txn decides what becomes of the lease.
func TestUnansweredAcquire(t *testing.T) {
	const early = time.Second + unansweredAfter
	for name, c := range map[string]struct {
		fault   fault
		settled time.Duration // when nothing of it is left
		retired bool
		deletes int
	}{
		"never arrives": {fault: fault{loseRequest: true}, settled: 10 * time.Second, retired: true, deletes: 2},
		"arrives after the lease was revoked": {fault: fault{requestDelay: 12 * time.Second},
			settled: 10 * time.Second, retired: true, deletes: 2},
		"its reply is lost":             {fault: fault{loseReply: true}, settled: early, deletes: 1},
		"its reply is late":             {fault: fault{replyDelay: 3 * time.Second}, settled: early, deletes: 1},
		"arrives late, and is answered": {fault: fault{requestDelay: 3 * time.Second}, settled: 3 * time.Second, deletes: 2},
		"an ambiguous error, carried out": {fault: fault{errAfter: rpctypes.ErrGRPCTimeout, replyDelay: 3 * time.Second},
			settled: early, deletes: 1},
		"an ambiguous error, not carried out": {fault: fault{err: rpctypes.ErrGRPCTimeout, replyDelay: 3 * time.Second},
			settled: 3 * time.Second, retired: true, deletes: 2},
		"a refusal": {fault: fault{err: rpctypes.ErrGRPCRequestTooManyRequests, replyDelay: 3 * time.Second}, settled: 3 * time.Second, deletes: 1},
		"out of space, not carried out": {fault: fault{err: rpctypes.ErrGRPCNoSpace, replyDelay: 3 * time.Second},
			settled: 3 * time.Second, deletes: 2},
		"out of space, carried out": {fault: fault{errAfter: rpctypes.ErrGRPCNoSpace, replyDelay: 3 * time.Second},
			settled: early, deletes: 1},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
				locker := newLocker(t, l)
				old := mustAcquire(t, locker, "other")
				require.NoError(t, old.Release(t.Context()))
				le, deleted := old.entry.lease, len(deletes.of(l))

				start := time.Now()
				l.intercept(joins.first(1, c.fault))
				ask(t, locker, "n")
				// The slot is in use up to the end, the lease is not yet given up.
				between := mustAcquire(t, locker, "n", MaxWait(20*time.Second))
				assert.NotZero(t, between.entry.slot)
				require.NoError(t, between.Release(t.Context()))

				time.Sleep(c.settled - time.Since(start))
				assert.Equal(t, []bool{!c.retired}, stillThere(e, le))
				assert.Equal(t, !c.retired, locker.currentLease() == le)
				assert.Empty(t, e.keys("fencelock/"))
				time.Sleep(5 * time.Second)
				synctest.Wait()
				assert.Empty(t, e.keys("fencelock/"), "nothing arrived later")
				assert.Len(t, deletes.of(l), deleted+1+c.deletes, "and one for the hold in between")
				renewed := len(l.requests(fakeKeepAlive))
				time.Sleep(time.Minute)
				assert.Len(t, l.requests(fakeKeepAlive), renewed, "nothing is renewed for it")

				again := mustAcquire(t, locker, "n")
				assert.Zero(t, again.entry.slot)
				require.NoError(t, again.Release(t.Context()))
			})
		})
	}
}

// A lease with holders is retired too, and revoked when the last of them has
// returned and its release was answered, or given up. Until then it is renewed.
func TestRetiredLeaseIsRevokedAfterItsLastHolder(t *testing.T) {
	for name, c := range map[string]struct {
		release   func(string, any) fault
		unclear   bool
		longerFor time.Duration
	}{
		"answered":   {},
		"slow":       {release: deletes.all(fault{replyDelay: 1500 * time.Millisecond}), longerFor: 1500 * time.Millisecond},
		"unanswered": {release: deletes.all(fault{loseRequest: true}), unclear: true, longerFor: 4 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
				locker := newLocker(t, l)
				first, last := mustAcquire(t, locker, "first"), mustAcquire(t, locker, "last")
				le := first.entry.lease
				l.intercept(joins.first(1, fault{loseRequest: true}))
				ask(t, locker, "n")
				onOld := mustAcquire(t, locker, "on the old one")
				require.Same(t, le, onOld.entry.lease)
				time.Sleep(9 * time.Second)
				synctest.Wait()

				onNew := mustAcquire(t, locker, "n")
				require.NotSame(t, le, onNew.entry.lease)
				assert.Zero(t, onNew.entry.slot)
				time.Sleep(time.Minute)
				for _, lock := range []*Lock{first, last, onOld, onNew} {
					require.NoError(t, lock.Err(), "both leases are renewed")
				}

				require.NoError(t, onOld.Release(t.Context()))
				require.NoError(t, first.Release(t.Context()))
				time.Sleep(10 * time.Second)
				require.Equal(t, []bool{true, true}, stillThere(e, le, onNew.entry.lease))
				renewed := len(l.requests(fakeKeepAlive))

				l.intercept(c.release)
				called := time.Now()
				if err := last.Release(within(t, 4*time.Second)); c.unclear {
					require.ErrorIs(t, err, ErrUnconfirmed)
				} else {
					require.NoError(t, err)
				}
				require.Equal(t, c.longerFor, time.Since(called))
				require.Equal(t, []bool{false, true}, stillThere(e, le, onNew.entry.lease))
				revokes := l.requests(fakeRevoke)
				require.Len(t, revokes, 1)
				assert.Equal(t, called.Add(c.longerFor), revokes[0].sent)
				l.intercept(nil)

				time.Sleep(time.Minute)
				require.NoError(t, onNew.Err())
				for _, r := range l.requests(fakeKeepAlive)[renewed:] {
					if id := r.req.(*pb.LeaseKeepAliveRequest).ID; id == int64(le.id) {
						assert.False(t, r.sent.After(revokes[0].sent))
					}
				}
				require.NoError(t, onNew.Release(t.Context()))
			})
		})
	}
}

// While holders keep a retired lease alive, the Txn that was given up can still
// put its key. It is looked for again and again, so that the key blocks nobody
// for longer than a third of the TTL.
func TestLateKeyOnARetiredLeaseIsFound(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		locker := newLocker(t, l)
		held := mustAcquire(t, locker, "held")
		start := time.Now()
		l.intercept(joins.first(1, fault{requestDelay: 40 * time.Second}))
		ask(t, locker, "n")
		time.Sleep(time.Until(start.Add(40 * time.Second)))
		synctest.Wait()
		require.Len(t, e.keys("fencelock/n/"), 1)
		other := acquireLater(t.Context(), newLocker(t, e.dial(t)), "n")
		require.NoError(t, other.granted(t).Release(t.Context()))
		assert.LessOrEqual(t, other.took, 5*time.Second)

		require.NoError(t, held.Err())
		sent := len(deletes.of(l))
		time.Sleep(time.Minute)
		assert.Len(t, deletes.of(l), sent, "finding it settled it")
		require.NoError(t, held.Release(t.Context()))
		assert.Equal(t, []bool{false}, stillThere(e, held.entry.lease))
	})
}

// A waiter on a lease that is revoked queues again on the new one.
func TestWaitersLeaveARetiredLease(t *testing.T) {
	t.Run("without holders, at once", func(t *testing.T) {
		inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
			held := mustAcquire(t, newLocker(t, e.dial(t)), "m")
			locker := newLocker(t, l)
			waiter := acquireLater(t.Context(), locker, "m")
			synctest.Wait()
			le := locker.currentLease()
			_, before := queueOf(e, "m")

			start := time.Now()
			l.intercept(joins.first(1, fault{loseRequest: true}))
			ask(t, locker, "n")
			time.Sleep(10*time.Second - time.Since(start))
			assert.Equal(t, []bool{false}, stillThere(e, le))
			time.Sleep(time.Second)
			_, after := queueOf(e, "m")
			require.Len(t, after, 2)
			assert.Greater(t, after[1], before[1])
			require.NoError(t, held.Release(t.Context()))
			lock := waiter.granted(t)
			assert.Equal(t, after[1], lock.Token().Revision())
			require.NoError(t, lock.Release(t.Context()))
		})
	})
	t.Run("with one, when that has returned", func(t *testing.T) {
		inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
			held := mustAcquire(t, newLocker(t, e.dial(t)), "m")
			locker := newLocker(t, l)
			mine := mustAcquire(t, locker, "mine")
			waiter := acquireLater(t.Context(), locker, "m")
			synctest.Wait()
			_, before := queueOf(e, "m")
			l.intercept(joins.first(1, fault{loseRequest: true}))
			ask(t, locker, "n")
			time.Sleep(time.Minute)
			_, same := queueOf(e, "m")
			require.Equal(t, before, same, "it has its place as long as the lease lives")

			require.NoError(t, mine.Release(t.Context()))
			time.Sleep(time.Second)
			_, after := queueOf(e, "m")
			require.Len(t, after, 2)
			assert.Greater(t, after[1], before[1])
			require.NoError(t, held.Release(t.Context()))
			lock := waiter.granted(t)
			assert.Equal(t, after[1], lock.Token().Revision())
			require.NoError(t, lock.Release(t.Context()))
		})
	})
}

// The decision to revoke is taken under the lock that guards grants: what is
// answered later, on a Txn that came before, is not granted.
func TestNothingIsGrantedOnALeaseBeingRevoked(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		var granted []int64
		locker := newLocker(t, l, WithHooks(Hooks{
			Acquired: func(i AcquiredInfo) { granted = append(granted, i.Token.Revision()) },
		}))
		old := mustAcquire(t, locker, "old")
		require.NoError(t, old.Release(t.Context()))
		le := old.entry.lease
		start := time.Now()
		l.intercept(both(joins.first(1, fault{loseRequest: true}), ofKind(fakeRevoke).all(fault{requestDelay: time.Second})))
		ask(t, locker, "lost")
		time.Sleep(7 * time.Second)
		l.intercept(both(joins.first(1, fault{replyDelay: 2500 * time.Millisecond}), ofKind(fakeRevoke).all(fault{requestDelay: time.Second})))
		late := acquireLater(t.Context(), locker, "late") // put at 8 s, answered at 10.5
		synctest.Wait()
		require.Len(t, e.keys("fencelock/late/"), 1)
		put := e.keys("fencelock/late/")[0]
		require.EqualValues(t, le.id, put.Lease)

		time.Sleep(time.Until(start.Add(10600 * time.Millisecond)))
		require.Equal(t, []bool{true}, stillThere(e, le), "the revoke is still under way")
		lock := late.granted(t)
		assert.NotContains(t, granted, put.CreateRevision)
		assert.Greater(t, lock.Token().Revision(), put.CreateRevision)
		assert.NotSame(t, le, lock.entry.lease)
		time.Sleep(time.Minute)
		require.NoError(t, lock.Release(t.Context()))
	})
}

// A session's lease cannot be given up. Nothing is revoked; the slot stays
// reserved and its key is looked for, while others go on in other slots.
func TestUnansweredAcquireOnAnAdoptedLease(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		session := newSession(t, l, 15)
		locker := newLocker(t, l, WithSession(session))
		held := mustAcquire(t, locker, "held")
		start := time.Now()
		l.intercept(joins.first(1, fault{requestDelay: 60 * time.Second}))
		ask(t, locker, "n")
		time.Sleep(20 * time.Second)

		second := mustAcquire(t, locker, "n")
		assert.Equal(t, 1, second.entry.slot, "slot 0 is reserved")
		assert.Equal(t, session.Lease(), second.entry.lease.id)
		require.NoError(t, second.Release(t.Context()))
		time.Sleep(time.Until(start.Add(60 * time.Second)))
		synctest.Wait()
		require.Len(t, e.keys("fencelock/n/"), 1, "it arrives")
		time.Sleep(5 * time.Second)
		require.Empty(t, e.keys("fencelock/n/"), "and is found")

		third := mustAcquire(t, locker, "n")
		assert.Zero(t, third.entry.slot)
		require.NoError(t, third.Release(t.Context()))
		require.NoError(t, held.Err())
		require.NoError(t, held.Release(t.Context()))
		require.NoError(t, locker.Close())
		assert.Empty(t, l.requests(fakeRevoke))
		assert.Contains(t, e.expiries(), session.Lease())
		require.NoError(t, session.Close())
	})
}

// Close says so while such a clean-up is open: only Session.Close ends it.
func TestCloseWithAnOpenCleanUpOnAnAdoptedLease(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		session := newSession(t, l, 15)
		locker := newLocker(t, l, WithSession(session))
		l.intercept(joins.first(1, fault{requestDelay: 60 * time.Second}))
		ask(t, locker, "n")
		time.Sleep(20 * time.Second)
		start := time.Now()
		err := locker.Close()
		assert.Equal(t, attemptBound, time.Since(start))
		requireIs(t, err, ErrUnconfirmed)
		assert.ErrorContains(t, err, "only Session.Close ends them")
		require.NoError(t, session.Close())
		time.Sleep(time.Minute)
		assert.Empty(t, e.keys("fencelock/"), "what arrives then fails")
	})
}

// A revoke that gets no answer is repeated until it does, or the lease has
// expired by itself.
func TestRevokeIsRepeated(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		locker := newLocker(t, l, WithTTL(time.Minute))
		l.intercept(both(joins.first(1, fault{loseRequest: true}), ofKind(fakeRevoke).first(2, fault{loseRequest: true})))
		start := time.Now()
		ask(t, locker, "n")
		time.Sleep(time.Until(start.Add(21 * time.Second))) // 10 s, two attempts of 5 s, two pauses
		synctest.Wait()
		assert.Len(t, l.requests(fakeRevoke), 3)
		requireNothingLeft(t, e)
		require.NoError(t, locker.Close())
		assert.Len(t, l.requests(fakeRevoke), 3)
	})
}

// Without permission to revoke, the keys are deleted one by one.
func TestDeniedRevokeDeletesTheKeys(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		locker := newLocker(t, l)
		a, b := mustAcquire(t, locker, "a"), mustAcquire(t, locker, "b")
		l.intercept(func(kind string, _ any) fault {
			if kind == fakeKeepAlive || kind == fakeRevoke {
				return fault{err: rpctypes.ErrGRPCPermissionDenied}
			}
			return fault{}
		})
		awaitIn(t, a.Context().Done())
		assert.Equal(t, LostDenied, lostBy(t, b))
		require.ErrorIs(t, a.Release(t.Context()), ErrLost)
		synctest.Wait()
		require.Len(t, e.keys("fencelock/"), 2, "b's holder has not returned")
		require.ErrorIs(t, b.Release(t.Context()), ErrLost)
		synctest.Wait()
		assert.Empty(t, e.keys("fencelock/"))
		assert.Contains(t, e.expiries(), a.entry.lease.id, "it expires by itself")
	})
}

// A clean-up that is never answered, while renewals are, must not keep a key
// alive that nobody knows: after a TTL of it the lease is retired too.
func TestUnheardCleanUpRetiresTheLease(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		locker := newLocker(t, l)
		join, deleted := joins.first(1, fault{loseReply: true}), deletes.all(fault{loseRequest: true})
		l.intercept(func(kind string, req any) fault {
			if f := join(kind, req); f != (fault{}) {
				return f
			}
			return deleted(kind, req)
		})
		ask(t, locker, "n")
		require.Len(t, e.keys("fencelock/n/"), 1)
		le := locker.currentLease()
		// 10 s for the answer, a TTL of attempts, and up to two more to end one.
		time.Sleep(10*time.Second + 15*time.Second + 2*attemptBound)
		assert.Equal(t, []bool{false}, stillThere(e, le))
		assert.Empty(t, e.keys("fencelock/"))
		l.intercept(nil)
		lock := mustAcquire(t, locker, "n")
		require.NotSame(t, le, lock.entry.lease)
		require.NoError(t, lock.Release(t.Context()))
	})
}
