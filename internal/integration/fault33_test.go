package integration

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/integration/harness"
)

// TestFault33PermissionForOneNameWithdrawn takes one of three names from a Locker
// that holds all three. etcd renews a lease only for somebody who may write every
// key on it, so all three are lost. A naive library tells only the holder of the one, or
// leaves the keys of the other two behind with the lease that it may not revoke.
func TestFault33PermissionForOneNameWithdrawn(t *testing.T) {
	harness.Parallel(t)
	const ttl = 4 * time.Second
	g := newGuarded(t, 0)
	g.addWorker("other")
	g.addUser("worker")
	names := []string{"first", "second", "withdrawn"}
	for _, name := range names {
		g.allow("worker", queueOf(name), clientv3.PermReadWrite)
	}
	p := newPartyWith(t, g.configOf("worker"), ttl, ttl/5)
	other := newPartyWith(t, g.configOf("other"), calmTTL, time.Second)
	deletions := harness.WatchDeletions(t, g.clean, keyPrefix)
	held, granted := map[string]*hold{}, map[string]<-chan grant{}
	for _, name := range names {
		held[name] = p.acquire(t, name)
	}
	for _, name := range names {
		granted[name] = other.queue(t, g.clean, name, 1)
	}

	g.forbid("worker", queueOf("withdrawn"))
	for _, name := range names {
		h := held[name]
		p.requireToldByDeadline(t, h)
		loss := p.requireLossReported(t, h, fencelock.LostDenied)
		require.ErrorIs(t, loss, rpctypes.ErrPermissionDenied)
		require.ErrorContains(t, loss, queueOf("withdrawn"))
	}
	// Those that it may still delete go when the last holder has returned, the
	// other one with the lease.
	for _, name := range names {
		p.requireLostRelease(t, held[name])
	}
	returned := time.Now()
	for _, name := range names {
		next := harness.Receive(t, granted[name], eventually, "grant to the waiter")
		p.requireToldInTime(t, held[name], deletions.Expect(held[name].Token().Revision(), eventually), next)
		t.Logf("%s: granted to another %v after the holders returned", name, next.at.Sub(returned))
		require.Less(t, next.at.Sub(returned), ttl+time.Second+late)
		require.NoError(t, next.lock.Release(t.Context()))
	}

	for _, name := range names[:2] {
		require.NoError(t, p.acquire(t, name).Release(t.Context()))
	}
	for call, do := range p.acquiringCalls("withdrawn") {
		err := g.requireDenied(p.told, rpctypes.ErrPermissionDenied, do)
		require.ErrorContains(t, err, queueOf("withdrawn"), call)
	}
	require.NoError(t, p.acquire(t, "first").Release(t.Context()))
	require.NoError(t, other.Close())
	require.NoError(t, p.Close())
}
