package fencelock

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// put makes a key on the lease, as a restore of etcd brings one back.
func (e *fakeEtcd) put(t *testing.T, key string, le *lease) {
	t.Helper()
	_, err := e.dial(t).client.Put(t.Context(), key, "an orphan", clientv3.WithLease(le.id))
	require.NoError(t, err)
}

// What the Locker does not know on its own lease goes within a TTL and a
// renewal, so that others can have the lock while it goes on with its own.
func TestOrphanIsSwept(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		const ttl = 15 * time.Second
		locker := newLocker(t, l, WithTTL(ttl))
		kept := mustAcquire(t, locker, "kept")
		le := kept.entry.lease
		e.put(t, string(slotKey(queuePrefix(defaultPrefix, "n"), le.id, 0)), le)
		e.put(t, string(slotKey(queuePrefix(defaultPrefix, "n"), le.id, 7)), le)
		e.put(t, string(slotKey(queuePrefix(defaultPrefix, "kept"), le.id, 1)), le)
		start := time.Now()
		lock := acquireLater(t.Context(), newLocker(t, e.dial(t)), "n").granted(t)
		assert.LessOrEqual(t, time.Since(start), ttl+ttl/3)
		require.NoError(t, lock.Release(t.Context()))

		time.Sleep(10*ttl + time.Second)
		require.NoError(t, kept.Err())
		keys, _ := queueOf(e, "kept")
		assert.Equal(t, []string{kept.entry.key}, keys)
		assert.Len(t, deletes.of(l), 3)
		assert.Len(t, ofKind(fakeTTL).of(l), 11, "once a TTL")
		require.NoError(t, kept.Release(t.Context()))
	})
}

// One that stands in the slot an acquire takes goes at once; one in another slot
// is ahead of the acquire, on the lease that it renews by waiting.
func TestOrphanOfTheSameLocker(t *testing.T) {
	for slot, bound := range map[int]time.Duration{0: 0, 1: 20 * time.Second} {
		inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
			locker := newLocker(t, l)
			lock := mustAcquire(t, locker, "n")
			require.NoError(t, lock.Release(t.Context()))
			e.put(t, string(slotKey(lock.entry.queue, lock.entry.lease.id, slot)), lock.entry.lease)
			start := time.Now()
			again := acquireLater(t.Context(), locker, "n").granted(t)
			assert.LessOrEqual(t, time.Since(start), bound)
			assert.Zero(t, again.entry.slot)
			keys, _ := queueOf(e, "n")
			assert.Equal(t, []string{again.entry.key}, keys)
			require.NoError(t, again.Release(t.Context()))
		})
	}
}

// A look takes time, and the slot of what it has found is taken again meanwhile.
func TestSweepLeavesTheLivingAlone(t *testing.T) {
	const late = 2 * time.Second // of the request under way
	var reads match = func(_ string, req any) bool {
		r, ok := req.(*pb.RangeRequest)
		return ok && strings.HasPrefix(string(r.Key), queuePrefix(defaultPrefix, "n"))
	}
	for name, under := range map[string]struct {
		way match
		f   fault
	}{
		"the list is under way":       {ofKind(fakeTTL), fault{replyDelay: late}},
		"the read is on its way":      {reads, fault{requestDelay: late}},
		"its answer is under way":     {reads, fault{replyDelay: late}},
		"the deletion is on its way":  {deletes, fault{requestDelay: late}},
		"a deletion arrives too late": {deletes, fault{requestDelay: time.Minute}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
				locker := newLocker(t, l, WithTTL(15*time.Second))
				kept := mustAcquire(t, locker, "kept")
				le := kept.entry.lease
				key := string(slotKey(queuePrefix(defaultPrefix, "n"), le.id, 0))
				e.put(t, key, le)
				l.intercept(under.way.first(1, under.f))
				for len(under.way.of(l)) == 0 {
					time.Sleep(10 * time.Millisecond)
				}
				// Another takes the orphan away, and a lock stands in its place.
				e.deleteKey(t, key)
				lock := mustAcquire(t, locker, "n")
				require.Equal(t, key, lock.entry.key)
				time.Sleep(10 * time.Minute)
				synctest.Wait()
				require.NoError(t, lock.Err())
				keys, revs := queueOf(e, "n")
				assert.Equal(t, []string{key}, keys)
				assert.Equal(t, []int64{lock.entry.rev}, revs)
				require.NoError(t, lock.Release(t.Context()))
				require.NoError(t, kept.Release(t.Context()))
			})
		})
	}
}

// Whoever else has put a key on the lease has his reasons.
func TestSweepLeavesForeignKeysAlone(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		locker := newLocker(t, l)
		lock := mustAcquire(t, locker, "n")
		foreign := []string{"somebody/else", "fencelock/n/somebody", "fencelock/m/1-0"}
		for _, k := range foreign {
			e.put(t, k, lock.entry.lease)
		}
		time.Sleep(5 * time.Minute)
		for _, k := range foreign {
			assert.Len(t, e.keys(k), 1)
		}
		require.NoError(t, lock.Release(t.Context()))
	})
}
