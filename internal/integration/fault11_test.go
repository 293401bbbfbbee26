package integration

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/integration/harness"
	"github.com/fencelock/fencelock/internal/integration/resource"
)

// TestFault11StoppedWhileRevoked stops the process of a holder for a moment that
// is nothing beside its TTL, in which its lease is revoked and another gets the
// lock and writes. No clock can tell the holder, as it can after a suspend of the
// machine (the root's tests have that one, with a clock of their own).
//
// A naive library hears of it with its next renewal, a third of the TTL later.
func TestFault11StoppedWhileRevoked(t *testing.T) {
	harness.NoLeaks(t)
	cluster := harness.StartCluster(t, harness.ClusterConfig{})
	clean := harness.NewClient(t, cluster.Endpoints()...)
	server := resource.Start(t, "")

	const stopFor = 200 * time.Millisecond
	atOnce(t, map[string]stoppingHolder{
		"right after the grant":   {},
		"when its key is watched": {Watched: true},
	}, func(t *testing.T, s stoppingHolder) {
		name := t.Name()
		r := server.Client(t)
		next := newParty(t, calmTTL, cluster.Endpoints()...)
		s.Etcd, s.Resource, s.Lock, s.TTL = cluster.Members[0].Addr(), server.Addr, name, longTTL
		s.StopsAt = beforeCheck
		holder := s.start(t)
		old, err := fencelock.ParseToken(name, holder.Expect("granted", eventually).Text)
		require.NoError(t, err)
		awaitStopped(t, holder)
		over := time.After(stopFor)

		queue, err := clean.Get(t.Context(), queueOf(name), clientv3.WithPrefix())
		require.NoError(t, err)
		require.Len(t, queue.Kvs, 1)
		_, err = clean.Revoke(t.Context(), clientv3.LeaseID(queue.Kvs[0].Lease))
		require.NoError(t, err)
		lock := next.acquire(t, name)
		require.Positive(t, lock.Token().Compare(old), "tokens rise")
		nextHolderWrites(t, r, lock.Token(), "next")
		<-over
		continued := time.Now()
		require.NoError(t, holder.Cont())

		said := func(event string) harness.Event { return holder.Expect(event, eventually) }
		t.Logf("the first look after the stop: %s", said("check").Text)
		require.Equal(t, "refused", said("write").Text)
		require.Equal(t, "done", said("overwrite").Text, "of the control")
		told := said("told")
		// Deleted, if the watch was first to tell of what the revoke did.
		lost := []string{string(fencelock.LostRevoked), string(fencelock.LostDeleted)}
		require.Contains(t, lost, told.Text)
		t.Logf("told %v after it was continued", told.Sent.Sub(continued))
		require.Less(t, told.Sent.Sub(continued), tellWithin)
		require.Equal(t, told.Text+" and refused", said("did").Text)
		require.Equal(t, told.Text+" true", said("hook").Text)
		require.Equal(t, "WARN "+name+" "+told.Text, said("log").Text)
		harness.Receive(t, holder.Exited(), eventually, "exit of the holder")
		require.NoError(t, holder.Err())

		requireOnlyFenceKept(t, r, name, "next")
		require.NoError(t, lock.Err(), "the next holder has the lock all the time")
		require.NoError(t, lock.Release(t.Context()))
		require.NoError(t, next.Close())
	})
	harness.NothingLeft(t, clean, keyPrefix)
}
