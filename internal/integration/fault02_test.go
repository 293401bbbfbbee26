package integration

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/integration/harness"
)

// TestFault02LateRenewalsThenCut delays every answer, and then cuts the link at
// a random moment. A library that starts the holder's clock when a renewal is
// answered is late by as much as the answer was: with 2.5 s each way it goes on
// for 5 s after its TTL began, and another holds the lock by then. A cut of a
// link without a delay hides that.
//
// Every TTL here leaves room for answers that are late and still in time, except
// where they are to come too late. Half a TTL is more than the way there and back,
// since after that a renewal is given up.
func TestFault02LateRenewalsThenCut(t *testing.T) {
	harness.Parallel(t)
	random := newRandom(t)
	cluster := harness.StartCluster(t, harness.ClusterConfig{})
	clean := harness.NewClient(t, cluster.Endpoints()...)
	waiter := newParty(t, 5*time.Second, cluster.Endpoints()...)

	type phase struct {
		delay       time.Duration // each way
		ttl, margin time.Duration
		inTime      bool          // whether late answers prolong the hold
		cut         time.Duration // after the first late answer, or after the delay began
	}
	kinds := []phase{
		{delay: 900 * time.Millisecond, ttl: 5 * time.Second, margin: 500 * time.Millisecond, inTime: true},
		{delay: 1500 * time.Millisecond, ttl: 7 * time.Second, margin: 500 * time.Millisecond, inTime: true},
		{delay: 2500 * time.Millisecond, ttl: 11 * time.Second, margin: 500 * time.Millisecond, inTime: true},
		{delay: 900 * time.Millisecond, ttl: 2 * time.Second, margin: 400 * time.Millisecond},
		{delay: 2500 * time.Millisecond, ttl: 3 * time.Second, margin: 600 * time.Millisecond},
	}
	const phases = 30
	cases := map[string]phase{}
	for i := range phases {
		p := kinds[i%len(kinds)]
		within := p.ttl // after which it is lost in any case
		if p.inTime {
			within = p.ttl / 3 // up to the next renewal
		}
		p.cut = time.Duration(random.Int64N(int64(within)))
		cases[fmt.Sprintf("%02d delay %v TTL %v cut %v", i, p.delay, p.ttl, p.cut.Round(time.Millisecond))] = p
	}

	var prolonged sync.Map // by delay: whether a late answer came in time
	atOnce(t, cases, func(t *testing.T, phase phase) {
		proxy := harness.NewProxy(t, cluster.Members[0].Addr())
		holder := newPartyWith(t, clientv3.Config{Endpoints: []string{proxy.Addr()}}, phase.ttl, phase.margin)
		name := t.Name()
		deletions := harness.WatchDeletions(t, clean, queueOf(name))

		h := holder.acquire(t, name)
		granted := waiter.queue(t, clean, name, 1)
		proxy.Delay(phase.delay)
		if phase.inTime && awaitLateAnswer(t, holder, h, 2*phase.delay) {
			prolonged.Store(phase.delay, true)
		}
		select {
		case <-time.After(phase.cut):
		case <-h.done: // a late answer was too late
		}
		proxy.Refuse()
		proxy.Cut()
		dead := time.Now()

		h.ended(t, eventually)
		next := harness.Receive(t, granted, eventually, "grant to the waiter")
		gone := deletions.Expect(h.Token().Revision(), eventually)
		holder.requireToldInTime(t, h, gone, next)
		requireWithin(t, phase.ttl+time.Second, dead, next.at, "from the cut to the grant")
		holder.requireLossReported(t, h, fencelock.LostExpired)
		holder.requireLostRelease(t, h)

		require.NoError(t, next.lock.Release(t.Context()))
		proxy.Heal()
		holder.reconnect(t)
		require.NoError(t, holder.Close())
	})
	require.NoError(t, waiter.Close())
	harness.NothingLeft(t, clean, keyPrefix)
	for _, kind := range kinds {
		if kind.inTime {
			_, once := prolonged.Load(kind.delay)
			assert.True(t, once, "no hold was prolonged by an answer delayed by %v each way: nothing was tested", kind.delay)
		}
	}
}

// awaitLateAnswer waits until a renewal that took so long has prolonged the
// hold, and reports false if the hold ended before.
func awaitLateAnswer(t *testing.T, p *party, h *hold, took time.Duration) bool {
	t.Helper()
	timeout := time.After(eventually)
	for {
		reports, more := p.told.look()
		if slices.ContainsFunc(only[fencelock.RenewedInfo](reports), func(r fencelock.RenewedInfo) bool { return r.Took >= took }) {
			return true
		}
		select {
		case <-more:
		case <-h.done:
			return false
		case <-timeout:
			t.Fatal("no late answer, and no loss")
		}
	}
}
