package integration

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/integration/harness"
)

// TestFault03FirstRenewalLost loses the first renewal, which comes right after
// the grant, and every third answer in mid-hold.
//
// etcd's KeepAlive gives the first renewal DialTimeout and one second, whatever
// the TTL. With 9 s a holder of a 2 s lease learns of its loss 8 s after
// another may have the lock; with 1 s a holder of a 60 s lease is told after 2 s
// that it lost a lock that nobody can get for another 58 s.
func TestFault03FirstRenewalLost(t *testing.T) {
	harness.Parallel(t)
	cluster := harness.StartCluster(t, harness.ClusterConfig{})
	clean := harness.NewClient(t, cluster.Endpoints()...)

	cases := map[string]func(*testing.T){"every third answer lost": func(t *testing.T) {
		everyThirdAnswerLost(t, cluster)
	}}
	for _, dial := range []time.Duration{time.Second, 9 * time.Second} {
		name := func(what string) string { return fmt.Sprintf("%s, DialTimeout %v", what, dial) }
		cases[name("and all after it, TTL 2s")] = func(t *testing.T) { everyRenewalLost(t, cluster, clean, dial) }
		cases[name("and none after it, TTL 2s")] = func(t *testing.T) { onlyFirstRenewalLost(t, cluster, dial) }
		cases[name("and the link for a while, TTL 60s")] = func(t *testing.T) { longLeaseOutlivesOutage(t, cluster, dial) }
	}
	atOnce(t, cases, func(t *testing.T, run func(*testing.T)) { run(t) })
	harness.NothingLeft(t, clean, keyPrefix)
}

// everyRenewalLost: nothing arrives any more once the lock is granted.
func everyRenewalLost(t *testing.T, cluster *harness.Cluster, clean *clientv3.Client, dial time.Duration) {
	const ttl = 2 * time.Second
	proxy := harness.NewProxy(t, cluster.Members[0].Addr())
	holder := newPartyWith(t, clientv3.Config{Endpoints: []string{proxy.Addr()}, DialTimeout: dial}, ttl, ttl/5)
	waiter := newParty(t, ttl, cluster.Endpoints()...)
	name := t.Name()
	deletions := harness.WatchDeletions(t, clean, queueOf(name))

	// The hook is there because the black hole can be late for the first one.
	holder.wire.SetHook(func(c harness.Call) harness.Fate {
		if c.Op == harness.OpKeepAliveOnce {
			return harness.LoseRequest(nil)
		}
		return harness.Pass()
	})
	h := holder.acquire(t, name)
	proxy.Blackhole()
	dead := time.Now()
	granted := waiter.queue(t, clean, name, 1)

	h.ended(t, eventually)
	next := harness.Receive(t, granted, eventually, "grant to the waiter")
	gone := deletions.Expect(h.Token().Revision(), eventually)
	holder.requireToldInTime(t, h, gone, next)
	requireWithin(t, ttl+time.Second, dead, next.at, "from the cut to the grant")
	holder.requireLossReported(t, h, fencelock.LostExpired)
	holder.requireLostRelease(t, h)

	require.NoError(t, next.lock.Release(t.Context()))
	require.NoError(t, waiter.Close())
	proxy.Heal()
	holder.reconnect(t)
	require.NoError(t, holder.Close())
}

// onlyFirstRenewalLost: the next attempt is answered, long before the deadline.
func onlyFirstRenewalLost(t *testing.T, cluster *harness.Cluster, dial time.Duration) {
	const ttl = 2 * time.Second
	cfg := clientv3.Config{Endpoints: cluster.Endpoints(), DialTimeout: dial}
	holder := newPartyWith(t, cfg, ttl, ttl/5)
	holder.wire.SetHook(harness.Nth(harness.OpKeepAliveOnce, 1, harness.LoseRequest(nil)))

	h := holder.acquire(t, t.Name())
	failed := awaitReports[fencelock.RenewalFailedInfo](t, holder.told, 1, eventually)
	require.Positive(t, failed[0].Left)
	require.Equal(t, 1, failed[0].Locks)
	awaitReports[fencelock.RenewedInfo](t, holder.told, 8, eventually) // more than 2 TTLs
	requireHeldThroughout(t, holder, h)
	require.NoError(t, holder.Close())
}

// longLeaseOutlivesOutage: an outage that is short for the lease is none for
// the holder, however impatient the client is.
func longLeaseOutlivesOutage(t *testing.T, cluster *harness.Cluster, dial time.Duration) {
	proxy := harness.NewProxy(t, cluster.Members[0].Addr())
	cfg := clientv3.Config{Endpoints: []string{proxy.Addr()}, DialTimeout: dial}
	holder := newPartyWith(t, cfg, time.Minute, 12*time.Second)
	other := newParty(t, 2*time.Second, cluster.Endpoints()...)

	h := holder.acquire(t, t.Name())
	proxy.Blackhole()
	select {
	case <-h.done:
	case <-time.After(dial + 2*time.Second):
	}
	require.NoError(t, h.Err())
	_, err := other.TryAcquire(t.Context(), t.Name())
	require.ErrorIs(t, err, fencelock.ErrHeld)
	proxy.Heal()
	requireHeldThroughout(t, holder, h)
	require.NoError(t, holder.Close())
	require.NoError(t, other.Close())
}

// everyThirdAnswerLost: the renewals arrive and count at etcd, and the holder
// does not hear of every third.
func everyThirdAnswerLost(t *testing.T, cluster *harness.Cluster) {
	holding := 30 * time.Second
	if testing.Short() {
		holding = 5 * time.Second
	}
	holder := newParty(t, 2*time.Second, cluster.Endpoints()...)
	holder.wire.SetHook(func(c harness.Call) harness.Fate {
		if c.Op == harness.OpKeepAliveOnce && c.N%3 == 0 {
			return harness.LoseReply(nil)
		}
		return harness.Pass()
	})

	h := holder.acquire(t, t.Name())
	select {
	case <-h.done:
	case <-time.After(holding):
	}
	failed := reported[fencelock.RenewalFailedInfo](holder.told)
	assert.NotEmpty(t, failed, "no answer was lost: nothing was tested")
	requireHeldThroughout(t, holder, h)
	require.NoError(t, holder.Close())
}
