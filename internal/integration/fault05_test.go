package integration

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/integration/harness"
)

// TestFault05LeaderMovesAndDies moves the leader five times in a row, kills it,
// and starts it again. A library that takes one failed renewal, or one watch that
// ended, for a loss gives up a lock that etcd kept for it throughout: to a new
// leader every lease is as if it had just been renewed.
func TestFault05LeaderMovesAndDies(t *testing.T) {
	harness.Parallel(t)
	cluster := harness.StartCluster(t, harness.ClusterConfig{Members: 3})
	clean := harness.NewClient(t, cluster.Endpoints()...)

	const ttl = 6 * time.Second // a busy machine takes seconds to elect a leader
	holder := newParty(t, ttl, cluster.Endpoints()...)
	waiter := newParty(t, ttl, cluster.Endpoints()...)
	h := holder.acquire(t, "leader")
	granted := waiter.queue(t, clean, "leader", 1)
	stillHeld := func() {
		t.Helper()
		var record *clientv3.TxnResponse
		until(t, "answer to a read", func() bool {
			// The reads make it linearizable; a Txn of compares alone is not.
			queue := clientv3.OpGet(queueOf("leader"), clientv3.WithPrefix(), clientv3.WithKeysOnly())
			var err error
			record, err = clean.Txn(atMost(t, time.Second)).If(h.Token().IsOwner()).Then(queue).Else(queue).Commit()
			return err == nil
		})
		require.True(t, record.Succeeded, "etcd's record names another")
		require.NoError(t, h.Err())
		require.Empty(t, granted, "another has the lock")
	}
	renewed := func() {
		t.Helper()
		before := len(reported[fencelock.RenewedInfo](holder.told))
		awaitReports[fencelock.RenewedInfo](t, holder.told, before+2, eventually) // the next may have been under way
	}

	for range 5 {
		i := slices.Index(cluster.Members, cluster.Leader())
		cluster.MoveLeader(cluster.Members[(i+1)%len(cluster.Members)])
		stillHeld()
	}
	renewed()
	stillHeld()

	leader := cluster.Leader()
	leader.Kill()
	renewed()
	stillHeld()
	leader.Restart()
	renewed()
	stillHeld()

	requireHeldThroughout(t, holder, h)
	released := time.Now()
	next := harness.Receive(t, granted, eventually, "grant to the waiter")
	require.NoError(t, next.err)
	requireWithin(t, time.Second, released, next.at, "from the release to the grant: one watch delivery")
	require.Positive(t, next.lock.Token().Compare(h.Token()), "tokens rise")
	require.NoError(t, next.lock.Release(t.Context()))
	require.NoError(t, holder.Close())
	require.NoError(t, waiter.Close())
	harness.NothingLeft(t, clean, keyPrefix)
}
