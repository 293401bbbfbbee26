package integration

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/integration/harness"
)

// TestFault06QuorumLost kills two of three members for longer than the TTL, and
// starts them again. Nothing expires without a quorum, so a library that asks
// etcd whether its lease has expired hears that it has not, and goes on: but the
// moment the quorum is back is the moment at which it can be gone, and nobody
// tells it when that is.
func TestFault06QuorumLost(t *testing.T) {
	harness.Parallel(t)
	cluster := harness.StartCluster(t, harness.ClusterConfig{Members: 3})
	clean := harness.NewClient(t, cluster.Endpoints()...)

	const ttl = 2 * time.Second
	holder := newParty(t, ttl, cluster.Endpoints()...)
	waiter := newParty(t, ttl, cluster.Endpoints()...)
	h := holder.acquire(t, "quorum")
	granted := waiter.queue(t, clean, "quorum", 1)
	awaitReports[fencelock.RenewedInfo](t, holder.told, 1, eventually)

	for _, m := range cluster.Members[1:] {
		m.Kill()
	}
	// Without a quorum nothing is deleted: to be told now is to be told in time.
	told := h.ended(t, eventually)
	holder.requireToldByDeadline(t, h)
	holder.requireLossReported(t, h, fencelock.LostExpired)
	require.Empty(t, granted)

	for _, m := range cluster.Members[1:] {
		m.Start()
	}
	cluster.WaitReady()
	regained, term := time.Now(), raftTerm(t, clean)
	next := harness.Receive(t, granted, eventually, "grant to the waiter")
	require.NoError(t, next.err)
	require.Less(t, told, next.at)
	elections := raftTerm(t, clean) - term
	requireWithin(t, time.Duration(1+elections)*ttl+time.Second, regained, next.at, "from the quorum to the grant")
	holder.requireLostRelease(t, h)

	require.NoError(t, next.lock.Release(atMost(t, eventually)))
	require.NoError(t, holder.Close())
	require.NoError(t, waiter.Close())
	harness.NothingLeft(t, clean, keyPrefix)
}

// TestFault06AllRestarted kills all three members, and starts them again within
// the TTL. Their leases survive in the data they wrote. A library that takes
// unanswered renewals or a broken watch for a loss gives the lock up for nothing.
func TestFault06AllRestarted(t *testing.T) {
	harness.Parallel(t)
	cluster := harness.StartCluster(t, harness.ClusterConfig{Members: 3})
	clean := harness.NewClient(t, cluster.Endpoints()...)

	holder := newParty(t, 10*time.Second, cluster.Endpoints()...)
	waiter := newParty(t, 10*time.Second, cluster.Endpoints()...)
	h := holder.acquire(t, "restart")
	granted := waiter.queue(t, clean, "restart", 1)

	for _, m := range cluster.Members {
		m.Kill()
	}
	for _, m := range cluster.Members {
		m.Start()
	}
	cluster.WaitReady()
	awaitReports[fencelock.RenewedInfo](t, holder.told, 1, eventually)
	require.Empty(t, granted)

	requireHeldThroughout(t, holder, h)
	released := time.Now()
	next := harness.Receive(t, granted, eventually, "grant to the waiter")
	require.NoError(t, next.err)
	requireWithin(t, time.Second, released, next.at, "from the release to the grant: one watch delivery")
	require.Positive(t, next.lock.Token().Compare(h.Token()), "tokens rise")
	require.NoError(t, next.lock.Release(atMost(t, eventually)))
	require.NoError(t, holder.Close())
	require.NoError(t, waiter.Close())
	harness.NothingLeft(t, clean, keyPrefix)
}
