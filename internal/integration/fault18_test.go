package integration

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/integration/harness"
)

// A process that has used a lock once and is cut off, or has its lease revoked,
// while it holds nothing, is not told by anybody. A naive library goes on using
// the dead lease: every acquire fails from then on.
func TestFault18LeaseDiedWhileIdle(t *testing.T) {
	harness.Parallel(t)
	b := newBench(t)
	const ttl = 2 * time.Second
	// workWithin is how long an acquire may take then.
	const workWithin = 2 * time.Second

	works := func(b corner, l *fencelock.Locker, j *journal) {
		b.t.Helper()
		ctx, cancel := context.WithTimeout(b.t.Context(), workWithin)
		defer cancel()
		k, err := l.Acquire(ctx, "job")
		require.NoError(b.t, err)
		b.stillHeld(k)
		b.release(k)
		require.Empty(b.t, reported[fencelock.LostInfo](j), "nobody has lost anything")
	}
	t.Run("revoked", func(t *testing.T) {
		for name, use := range map[string]func(corner, *fencelock.Locker, *journal){
			"Acquire": works,
			"TryAcquire": func(b corner, l *fencelock.Locker, _ *journal) {
				k, err := l.TryAcquire(b.t.Context(), "job")
				require.NoError(b.t, err)
				b.release(k)
			},
			"Do": func(b corner, l *fencelock.Locker, _ *journal) {
				ran := false
				require.NoError(b.t, l.DoAdvisory(b.t.Context(), "job", func(context.Context) error {
					ran = true
					return nil
				}))
				require.True(b.t, ran)
			},
		} {
			t.Run(name, func(t *testing.T) {
				b := b.corner(t)
				j := newJournal()
				l := b.locker(b.client(), append(reportTo(j), fencelock.WithTTL(longTTL))...)
				// The second time the lease that replaced the first is dead.
				for range 2 {
					b.release(b.acquire(l, "job"))
					for _, lease := range harness.Leases(t, b.clean) {
						_, err := b.clean.Revoke(t.Context(), lease)
						require.NoError(t, err)
					}
					use(b, l, j)
				}
			})
		}
	})

	type outage struct{ begin, end func(*harness.Proxy) }
	heal := func(p *harness.Proxy) { p.Heal() }
	nothing := func(*harness.Proxy) {}
	atOnce(t, map[string]outage{
		// Nobody needs the lease, so nobody renews it.
		"expired":             {begin: nothing, end: nothing},
		"behind a black hole": {begin: func(p *harness.Proxy) { p.Blackhole() }, end: heal},
		"behind a black hole that new connections fell into": {begin: func(p *harness.Proxy) {
			p.Blackhole()
			p.Cut()
		}, end: heal},
		"behind a closed port": {begin: func(p *harness.Proxy) {
			p.Refuse()
			p.Cut()
		}, end: heal},
	}, func(t *testing.T, o outage) {
		b, _ := newCorner(t, harness.ClusterConfig{})
		j := newJournal()
		proxy := harness.NewProxy(t, b.addr)
		l := b.locker(harness.NewClient(t, proxy.Addr()), append(reportTo(j), fencelock.WithTTL(ttl))...)
		b.release(b.acquire(l, "job"))

		o.begin(proxy)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if k, err := l.Acquire(ctx, "job"); err == nil {
			b.release(k) // there is no outage
		} else {
			require.ErrorIs(t, err, fencelock.ErrNotAcquired)
		}
		b.until("the lease is dead", func() bool { return len(harness.Leases(t, b.clean)) == 0 })
		o.end(proxy)
		works(b, l, j)
	})
}

// After an outage the client must connect again while the lease still lives, or
// it is lost to an outage that is over. gRPC by itself waits longer after each
// failure: its sixth attempt comes after a quarter of a minute.
func TestFault18ConnectsAgainSoon(t *testing.T) {
	harness.Parallel(t)
	server := harness.StartCluster(t, harness.ClusterConfig{}).Members[0]
	// What is started again is cleaned up first, so what needs the server has to
	// end before the test does.
	t.Run("after the server was down", func(t *testing.T) {
		b := corner{&bench{t: t, addr: server.Addr()}}
		b.clean = b.client()
		b = b.corner(t)
		proxy := harness.NewProxy(t, b.addr) // resets every connection while the server is down
		j := newJournal()
		l := b.locker(harness.NewClient(t, proxy.Addr()), append(reportTo(j), fencelock.WithTTL(10*time.Second))...)
		k := b.acquire(l, "job")
		awaitReports[fencelock.RenewedInfo](t, j, 1, soon)

		server.Kill()
		before := proxy.Accepted()
		b.until("six attempts to connect", func() bool { return proxy.Accepted() >= before+6 })
		server.Restart()
		// Whether the lock survives depends on how long the restart takes.
		if err := k.Release(t.Context()); err != nil {
			require.ErrorIs(t, err, fencelock.ErrLost)
		}
		b.release(b.acquire(l, "job"))
	})
}
