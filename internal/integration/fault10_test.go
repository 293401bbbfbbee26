package integration

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/integration/harness"
	"github.com/fencelock/fencelock/internal/integration/resource"
)

// TestFault10StoppedPastTheTTL stops the process of a holder for longer than its
// lease lives, at three places, while another gets the lock and writes. The
// resource is a third process.
//
// A naive library tells the holder through a channel that some goroutine closes
// when it comes to run, so a holder that asks right after the stop may hear that
// all is well. The best library in the world cannot help one that was stopped
// right after it asked: it is the resource that has to refuse.
func TestFault10StoppedPastTheTTL(t *testing.T) {
	harness.Parallel(t)
	cluster := harness.StartCluster(t, harness.ClusterConfig{})
	clean := harness.NewClient(t, cluster.Endpoints()...)

	type stop struct {
		at           string
		claim, check string
		resource     *resource.Process
	}
	cases := map[string]stop{}
	for kind, r := range fencedResources(t) {
		for _, s := range []stop{
			{at: beforeRead, claim: "refused", check: "expired"},
			{at: beforeCheck, claim: "done", check: "expired"},
			{at: beforeWrite, claim: "done", check: "held"},
		} {
			s.resource = r
			cases[s.at+", "+kind] = s
		}
	}
	atOnce(t, cases, func(t *testing.T, s stop) {
		const ttl = 2 * time.Second
		name := t.Name()
		r := s.resource.Client(t)
		next := newParty(t, calmTTL, cluster.Endpoints()...)
		holder := stoppingHolder{
			Etcd: cluster.Members[0].Addr(), Resource: s.resource.Addr, Lock: name, TTL: ttl, StopsAt: s.at,
		}.start(t)
		old, err := fencelock.ParseToken(name, holder.Expect("granted", eventually).Text)
		require.NoError(t, err)
		awaitStopped(t, holder)
		stopped := time.Now()

		grant := harness.Receive(t, next.queue(t, clean, name, 1), eventually, "grant to the waiter")
		require.NoError(t, grant.err)
		t.Logf("the lock went to the next %v after the stop", grant.at.Sub(stopped))
		token := grant.lock.Token()
		require.Positive(t, token.Compare(old), "tokens rise")
		nextHolderWrites(t, r, token, "next")
		require.NoError(t, holder.Cont())

		said := func(event string) string { return holder.Expect(event, eventually).Text }
		require.Equal(t, s.claim, said("claim"))
		require.Equal(t, s.check, said("check"), "the first look after the stop")
		require.Equal(t, "refused", said("write"))
		require.Equal(t, "done", said("overwrite"), "of the control")
		require.Equal(t, "expired", said("told"))
		require.Equal(t, "expired and refused", said("did"))
		require.Equal(t, "expired true", said("hook"))
		require.Equal(t, "WARN "+name+" expired", said("log"))
		harness.Receive(t, holder.Exited(), eventually, "exit of the holder")
		require.NoError(t, holder.Err())

		requireOnlyFenceKept(t, r, name, "next")
		require.NoError(t, grant.lock.Err(), "the next holder has the lock all the time")
		require.NoError(t, grant.lock.Release(t.Context()))
		require.NoError(t, next.Close())
	})
	harness.NothingLeft(t, clean, keyPrefix)
}
