package integration

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/integration/harness"
)

// TestFault27MemberRemoved removes a member from the cluster, under a client that
// knows no other and under some that know all. The member answers nothing of
// consequence any more, and no error says that this is for good. A naive library
// hangs on it: its calls outlive their contexts, and its holder learns of the loss
// from the lease that it can no longer ask about.
func TestFault27MemberRemoved(t *testing.T) {
	harness.Parallel(t)
	type removal struct {
		leader bool // it was the leader
		hangs  bool // its process does not even exit, as etcd's does after a second
	}
	atOnce(t, map[string]removal{
		"the leader, which exits": {leader: true},
		"a follower, which hangs": {hangs: true},
	}, func(t *testing.T, r removal) {
		const ttl = 3 * time.Second
		cluster := harness.StartCluster(t, harness.ClusterConfig{Members: 3})
		member := cluster.Leader()
		if !r.leader {
			at := slices.IndexFunc(cluster.Members, func(m *harness.Member) bool { return m != member })
			member = cluster.Members[at]
		}
		rest := slices.DeleteFunc(cluster.Endpoints(), func(e string) bool { return e == member.Addr() })
		clean := harness.NewClient(t, rest...)
		deletions := harness.WatchDeletions(t, clean, keyPrefix)

		alone := newParty(t, ttl, member.Addr())
		closing := newParty(t, ttl, member.Addr())
		first, second := newParty(t, ttl, cluster.Endpoints()...), newParty(t, calmTTL, cluster.Endpoints()...)
		third := newParty(t, calmTTL, rest...)
		lost := alone.acquire(t, "lost")
		given := alone.acquire(t, "given back in time")
		closing.acquire(t, "closed in time")
		kept := first.acquire(t, "kept")
		granted := third.queueUpToReading(t, clean, "lost", 1)
		next := second.queueUpToReading(t, clean, "kept", 1)
		waiting, giveUp := context.WithCancel(context.Background())
		defer giveUp()
		waited := later(func() error { _, err := alone.Acquire(waiting, "kept"); return err })
		until(t, "third in the queue", func() bool { return len(harness.Keys(t, clean, queueOf("kept"))) == 3 })

		// etcd refuses until its members have been connected for 5 s.
		var err error
		until(t, "consent to the removal", func() bool {
			_, err = clean.MemberRemove(atMost(t, eventually), member.ID())
			return !errors.Is(err, rpctypes.ErrUnhealthy)
		})
		require.NoError(t, err)
		removed := time.Now()
		if r.hangs {
			member.Pause()
		}

		// C: whatever the one who knows no other member calls.
		const patience = time.Second
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		deadline, _ := ctx.Deadline()
		notAcquired := func(do func() (*fencelock.Lock, error)) func() error {
			return func() error {
				_, err := do()
				assert.ErrorIs(t, err, fencelock.ErrNotAcquired)
				return err
			}
		}
		calls := map[string]func() error{
			"Acquire":    notAcquired(func() (*fencelock.Lock, error) { return alone.Acquire(ctx, "free") }),
			"TryAcquire": notAcquired(func() (*fencelock.Lock, error) { return alone.TryAcquire(ctx, "free too") }),
			"Acquire in the queue": notAcquired(func() (*fencelock.Lock, error) {
				<-ctx.Done()
				giveUp()
				return nil, (<-waited).err
			}),
			"Inspect": func() error { _, err := alone.Inspect(ctx, "kept"); return err },
			"Release": func() error { return given.Release(ctx) },
		}
		returned := map[string]<-chan outcome{}
		for name, call := range calls {
			returned[name] = later(call)
		}
		closed := map[string]<-chan outcome{"Close": later(closing.Close)}
		for name := range calls {
			got := harness.Receive(t, returned[name], eventually, "return of "+name)
			assert.Error(t, got.err, name)
			assert.LessOrEqual(t, got.at.Sub(deadline), 200*time.Millisecond+late, "%s was late: %v", name, got.err)
		}

		// B and E for its lock. A new leader restarts every TTL.
		gone := deletions.Expect(lost.Token().Revision(), eventually)
		g := harness.Receive(t, granted, eventually, "grant to the waiter")
		alone.requireToldInTime(t, lost, gone, g)
		alone.requireLossReported(t, lost, fencelock.LostExpired)
		require.Less(t, g.at.Sub(removed), 2*ttl+time.Second+late)
		t.Logf("granted to another %v after the removal", g.at.Sub(removed))
		alone.requireLostRelease(t, lost)
		closingBegan := time.Now()
		closed["Close after a loss"] = later(alone.Close)

		// Nothing for those who know the others too.
		sofar := len(reported[fencelock.RenewedInfo](first.told))
		awaitReports[fencelock.RenewedInfo](t, first.told, sofar+2, eventually)
		if r.hangs {
			member.Kill() // as an operator does, who has removed it
		}
		requireHeldThroughout(t, first, kept)
		released := time.Now()
		g2 := harness.Receive(t, next, eventually, "grant to the waiter")
		require.NoError(t, g2.err)
		t.Logf("handed over in %v", g2.at.Sub(released))
		require.Positive(t, g2.lock.Token().Compare(kept.Token()))

		require.NoError(t, g.lock.Release(t.Context()))
		require.NoError(t, g2.lock.Release(t.Context()))
		for name, c := range closed {
			got := harness.Receive(t, c, eventually, "return of "+name)
			require.ErrorIs(t, got.err, fencelock.ErrUnconfirmed)
			require.LessOrEqual(t, got.at.Sub(closingBegan), alone.margin+5*time.Second+late, name)
		}
		require.NoError(t, first.Close())
		require.NoError(t, second.Close())
		require.NoError(t, third.Close())
		harness.NothingLeft(t, clean, keyPrefix)
	})
}

// TestFault27TLS is the whole life of a lock over TLS with client certificates, up
// to a holder that is cut off. Those whose certificate is missing or of another
// authority get an answer in the handshake of each connection only, which a
// naive library waits out of, for as long as it takes.
func TestFault27TLS(t *testing.T) {
	harness.Parallel(t)
	const ttl = 2 * time.Second
	harness.NoLeaks(t)
	ours, others := newAuthority(t), newAuthority(t)
	addr := startTLSEtcd(t, ours)
	config := func(addr string, who *authority) clientv3.Config {
		return clientv3.Config{Endpoints: []string{"https://" + addr}, TLS: who.client(t, ours)}
	}
	clean := harness.NewClientWith(t, config(addr, ours))
	proxy := harness.NewProxy(t, addr)
	holder := newPartyWith(t, config(proxy.Addr(), ours), ttl, ttl/5)
	waiter := newPartyWith(t, config(addr, ours), calmTTL, time.Second)

	deletions := harness.WatchDeletions(t, clean, keyPrefix)
	before := holder.acquire(t, "job")
	granted := waiter.queue(t, clean, "job", 1)
	require.NoError(t, before.Release(t.Context()))
	next := harness.Receive(t, granted, eventually, "grant to the waiter")
	require.NoError(t, next.err)
	require.NoError(t, next.lock.Release(t.Context()))

	h := holder.acquire(t, "job")
	granted = waiter.queue(t, clean, "job", 1)
	proxy.Blackhole()
	gone := deletions.Expect(h.Token().Revision(), eventually)
	next = harness.Receive(t, granted, eventually, "grant to the waiter")
	holder.requireToldInTime(t, h, gone, next)
	holder.requireLossReported(t, h, fencelock.LostExpired)
	proxy.Heal()
	holder.requireLostRelease(t, h)
	require.NoError(t, next.lock.Release(t.Context()))
	require.NoError(t, holder.acquire(t, "job").Release(t.Context()))
	require.NoError(t, holder.Close())
	require.NoError(t, waiter.Close())

	atOnce(t, map[string]*authority{
		"no certificate": nil, "another authority's": others,
	}, func(t *testing.T, certified *authority) {
		p := newPartyWith(t, config(addr, certified), ttl, ttl/5)
		const patience = time.Second
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		began := time.Now()
		inspected := later(func() error { _, err := p.Inspect(ctx, "job"); return err })
		_, err := p.Acquire(ctx, "job")
		require.LessOrEqual(t, time.Since(began), patience+200*time.Millisecond+late)
		var failure *fencelock.AcquireError
		require.ErrorAs(t, err, &failure)
		require.Equal(t, fencelock.PhaseLease, failure.Phase)
		report := awaitReports[fencelock.NotAcquiredInfo](t, p.told, 1, soon)[0]
		require.Equal(t, fencelock.ResultUnreachable, report.Result)
		got := harness.Receive(t, inspected, eventually, "return of Inspect")
		require.Error(t, got.err)
		require.LessOrEqual(t, got.at.Sub(began), patience+200*time.Millisecond+late)
		require.NoError(t, p.Close())
	})
	harness.NothingLeft(t, clean, keyPrefix)
}
