package integration

import (
	"context"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strconv"
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
	var before []int
	until(t, "watch of the holder's", func() bool {
		before = watches(t, cluster)
		return slices.Max(before) > 0
	})
	granted := waiter.queue(t, clean, "deaf", 1)
	deaf := carrier(t, cluster, proxies, before)
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

	before := watches(t, cluster)
	h := holder.acquire(t, "evicted")
	keys := harness.Keys(t, clean, queueOf("evicted"))
	deaf := carrier(t, cluster, proxies, before)
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

// carrier returns the proxy before the member that serves one watch more than
// before.
func carrier(t *testing.T, cluster *harness.Cluster, proxies []*harness.Proxy, before []int) (deaf *harness.Proxy) {
	t.Helper()
	until(t, "another watch", func() bool {
		for i, n := range watches(t, cluster) {
			if n > before[i] {
				deaf = proxies[i]
			}
		}
		return deaf != nil
	})
	return deaf
}

var watcherMetric = regexp.MustCompile(`(?m)^etcd_debugging_mvcc_watcher_total (\d+)$`)

// watches returns how many watches each member serves.
func watches(t *testing.T, cluster *harness.Cluster) (each []int) {
	t.Helper()
	for _, m := range cluster.Members {
		req, err := http.NewRequestWithContext(atMost(t, eventually), http.MethodGet, "http://"+m.Addr()+"/metrics", nil)
		require.NoError(t, err)
		req.Close = true
		resp, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		page, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		found := watcherMetric.FindSubmatch(page)
		require.NotNil(t, found, "the member does not say how many watches it serves")
		n, err := strconv.Atoi(string(found[1]))
		require.NoError(t, err)
		each = append(each, n)
	}
	return each
}
