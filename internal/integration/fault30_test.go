package integration

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/integration/harness"
)

// TestFault30DeafWatchOfWaiter swallows everything on the one connection that
// carries the waiter's watch, while those to the other members work. Such a
// watch reports no error, ever, and the renewals go on: who trusts its watch
// waits behind a holder that is long gone, and has all others wait behind it.
func TestFault30DeafWatchOfWaiter(t *testing.T) {
	harness.Parallel(t)
	cluster, proxies := startProxied(t)
	clean := harness.NewClient(t, cluster.Endpoints()...)
	const ttl = 6 * time.Second
	holder := newParty(t, ttl, cluster.Endpoints()...)
	waiter := newParty(t, ttl, addresses(proxies)...)

	h := holder.acquire(t, "deaf")
	granted := waiter.queue(t, clean, "deaf", 1)
	keys := harness.Keys(t, clean, queueOf("deaf"))
	deaf := carrier(t, proxies, clean, keys[0])
	deaf.Blackhole()
	require.NoError(t, h.Release(atMost(t, eventually)))
	released := time.Now()

	next := harness.Receive(t, granted, eventually, "grant to the waiter")
	require.NoError(t, next.err)
	t.Logf("granted %v after the release", next.at.Sub(released))
	requireWithin(t, ttl/3+2*time.Second, released, next.at, "from the release to the grant")
	require.Positive(t, deaf.ToClient.Lost(), "nothing was swallowed: nothing was tested")
	require.NoError(t, next.lock.Release(atMost(t, eventually)))
	deaf.Heal()
	require.NoError(t, waiter.Close())
	require.NoError(t, holder.Close())
	harness.NothingLeft(t, clean, keyPrefix)
}

// TestFault30DeafWatchOfHolder does the same to a holder that is evicted, and
// sees to it that the first look at its key, after the next renewal, is
// swallowed too: it takes more than one to be sure.
func TestFault30DeafWatchOfHolder(t *testing.T) {
	harness.Parallel(t)
	cluster, proxies := startProxied(t)
	clean := harness.NewClient(t, cluster.Endpoints()...)
	const ttl = 15 * time.Second // the default
	holder := newParty(t, ttl, addresses(proxies)...)

	h := holder.acquire(t, "evicted")
	keys := harness.Keys(t, clean, queueOf("evicted"))
	deaf := carrier(t, proxies, clean, keys[0])
	deaf.Blackhole()
	swallowNextButOne(t, holder.client)
	_, err := clean.Delete(atMost(t, eventually), keys[0])
	require.NoError(t, err)
	evicted := time.Now()

	told := h.ended(t, eventually)
	t.Logf("told %v after the eviction", told.Sub(evicted))
	requireWithin(t, ttl/3+2*time.Second, evicted, told, "from the eviction to the loss")
	holder.requireLossReported(t, h, fencelock.LostDeleted)
	holder.requireLostRelease(t, h)
	deaf.Heal()
	require.NoError(t, holder.Close())
	harness.NothingLeft(t, clean, keyPrefix)
}

// swallowNextButOne turns the balancer of a client with a dead connection among
// three, which it uses in turn, so that the next request but one goes there.
func swallowNextButOne(t *testing.T, client *clientv3.Client) {
	t.Helper()
	until(t, "request on the dead connection", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		_, err := client.Get(ctx, "turn")
		return err != nil
	})
	_, err := client.Get(atMost(t, eventually), "turn")
	require.NoError(t, err)
}

// startProxied returns a cluster of three with a proxy before each member. Its
// leader is patient: a watch that is opened again because a busy machine made
// the cluster elect another would take another connection.
func startProxied(t *testing.T) (*harness.Cluster, []*harness.Proxy) {
	t.Helper()
	cluster := harness.StartCluster(t, harness.ClusterConfig{Members: 3, TickMs: 100, ElectionMs: 1000})
	var proxies []*harness.Proxy
	for _, m := range cluster.Members {
		proxies = append(proxies, harness.NewProxy(t, m.Addr()))
	}
	return cluster, proxies
}

func addresses(proxies []*harness.Proxy) (all []string) {
	for _, p := range proxies {
		all = append(all, p.Addr())
	}
	return all
}

// carrier returns the proxy whose connection carries the watch of a key: the
// one on which much arrives each time the key is given a long value. Once would
// prove nothing, since a view that is being opened reads the key too.
func carrier(t *testing.T, proxies []*harness.Proxy, client *clientv3.Client, key string) *harness.Proxy {
	t.Helper()
	// Long against everything else, short against what gRPC sends before it has
	// to hear that the last was read: the event that is to be swallowed must
	// still be sent.
	long := strings.Repeat("x", 32<<10)
	var last *harness.Proxy
	inRow := 0
	until(t, "watch of the key", func() bool {
		var before []int64
		for _, p := range proxies {
			before = append(before, p.ToClient.Received())
		}
		_, err := client.Put(atMost(t, eventually), key, long, clientv3.WithIgnoreLease())
		require.NoError(t, err)
		for limit := time.Now().Add(500 * time.Millisecond); time.Now().Before(limit); time.Sleep(time.Millisecond) {
			for i, p := range proxies {
				if p.ToClient.Received()-before[i] < int64(len(long)) {
					continue
				}
				if p != last {
					last, inRow = p, 0
				}
				inRow++
				return inRow == 3
			}
		}
		return false
	})
	return last
}
