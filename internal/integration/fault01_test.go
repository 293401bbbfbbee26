package integration

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/integration/harness"
)

// TestFault01LinkCut takes the holder's way to etcd away, in each way in which
// networks do. A library that waits for an answer, or for its client's word
// that the session is over, tells the holder when etcd has given the lock away
// already: the two clocks were started at different ends of the same request.
func TestFault01LinkCut(t *testing.T) {
	harness.Parallel(t)
	cluster := harness.StartCluster(t, harness.ClusterConfig{})
	clean := harness.NewClient(t, cluster.Endpoints()...)

	const ttl = 2 * time.Second
	type cut struct {
		do func(*harness.Proxy)
		// Renewals still arrive, so the lease lives on until they stop, which is
		// when the lock is lost.
		arrive bool
	}
	atOnce(t, map[string]cut{
		"reset and refused":  {do: func(p *harness.Proxy) { p.Refuse(); p.Cut() }},
		"swallowed":          {do: (*harness.Proxy).Blackhole},
		"requests swallowed": {do: func(p *harness.Proxy) { p.ToServer.Blackhole() }},
		"answers swallowed":  {do: func(p *harness.Proxy) { p.ToClient.Blackhole() }, arrive: true},
		"stalled":            {do: (*harness.Proxy).Stall},
	}, func(t *testing.T, cut cut) {
		proxy := harness.NewProxy(t, cluster.Members[0].Addr())
		holder := newParty(t, ttl, proxy.Addr())
		waiter := newParty(t, ttl, cluster.Endpoints()...)
		name := t.Name()
		deletions := harness.WatchDeletions(t, clean, queueOf(name))

		h := holder.acquire(t, name)
		granted := waiter.queue(t, clean, name, 1)
		awaitReports[fencelock.RenewedInfo](t, holder.told, 2, eventually)
		cut.do(proxy)
		dead := time.Now()

		told := h.ended(t, eventually)
		if cut.arrive {
			dead = told
		}
		next := harness.Receive(t, granted, eventually, "grant to the waiter")
		gone := deletions.Expect(h.Token().Revision(), eventually)
		holder.requireToldInTime(t, h, gone, next)
		requireWithin(t, ttl+time.Second, dead, next.at, "from the cut to the grant")
		require.Positive(t, next.lock.Token().Compare(h.Token()), "tokens rise")
		holder.requireLossReported(t, h, fencelock.LostExpired)
		holder.requireLostRelease(t, h)

		require.NoError(t, next.lock.Release(t.Context()))
		proxy.Heal()
		holder.reconnect(t)
		require.NoError(t, holder.Close())
		require.NoError(t, waiter.Close())
	})
	harness.NothingLeft(t, clean, keyPrefix)
}
