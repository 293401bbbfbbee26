package integration

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/integration/harness"
)

// TestFault15SilentEtcd ends the contexts of all calls while etcd does not
// answer. A library that cleans up before it returns, on the caller's goroutine
// and with a context of its own, keeps a caller who gave it one second for as
// long as the outage lasts.
func TestFault15SilentEtcd(t *testing.T) {
	harness.Parallel(t)
	type silence struct {
		begin, end func(*harness.Member, *harness.Proxy)
	}
	heal := func(_ *harness.Member, p *harness.Proxy) { p.Heal() }
	atOnce(t, map[string]silence{
		"unreachable": {
			begin: func(_ *harness.Member, p *harness.Proxy) { p.Blackhole() },
			end:   heal,
		},
		"answers swallowed": {
			begin: func(_ *harness.Member, p *harness.Proxy) { p.ToClient.Blackhole() },
			end:   heal,
		},
		"frozen": {
			begin: func(m *harness.Member, _ *harness.Proxy) { m.Pause() },
			end:   func(m *harness.Member, _ *harness.Proxy) { m.Resume() },
		},
	}, func(t *testing.T, silence silence) {
		cluster := harness.StartCluster(t, harness.ClusterConfig{})
		member := cluster.Members[0]
		proxy := harness.NewProxy(t, member.Addr())
		clean := harness.NewClient(t, member.Addr())

		// No hold of these two ends by itself while etcd is silent.
		const calm = 30 * time.Second
		other := newParty(t, calm, member.Addr())
		p := newPartyWith(t, clientv3.Config{Endpoints: []string{proxy.Addr()}}, calm, time.Second)
		// What these leave behind when etcd cannot be reached goes with their TTL.
		const short = 2 * time.Second
		idle := newParty(t, short, proxy.Addr()) // has no lease
		closing := newParty(t, short, proxy.Addr())
		stopping := newParty(t, short, proxy.Addr())

		taken := other.acquire(t, "taken")
		held := p.acquire(t, "held")
		heldToo := p.acquire(t, "held too")
		closing.acquire(t, "held by closing")
		stopping.acquire(t, "held by stopping")
		waiting, giveUp := context.WithCancel(context.Background())
		defer giveUp()
		waited := later(func() error {
			_, err := p.Acquire(waiting, "taken")
			return err
		})
		until(t, "waiter in the queue", func() bool { return len(harness.Keys(t, clean, queueOf("taken"))) == 2 })
		working, finish := make(chan struct{}), make(chan struct{})
		worked := later(func() error {
			return p.Do(context.Background(), "worked on", func(context.Context, fencelock.Token) error {
				close(working)
				<-finish
				return nil
			})
		})
		harness.Receive(t, working, eventually, "run of the callback")

		silence.begin(member, proxy)
		const patience = time.Second // each caller's
		started := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		ended, end := context.WithCancel(context.Background())
		end()

		type call struct {
			bound time.Duration
			want  error
			do    func() error
		}
		acquiring := func(do func() error) call {
			return call{patience, fencelock.ErrNotAcquired, func() error {
				err := do()
				assert.ErrorIs(t, err, context.DeadlineExceeded)
				assert.ErrorAs(t, err, new(*fencelock.AcquireError))
				return err
			}}
		}
		never := func(context.Context, fencelock.Token) error { panic("the callback ran without the lock") }
		calls := map[string]call{
			"Acquire":                 acquiring(func() error { _, err := p.Acquire(ctx, "a"); return err }),
			"Acquire of a held lock":  acquiring(func() error { _, err := p.Acquire(ctx, "taken"); return err }),
			"Acquire without a lease": acquiring(func() error { _, err := idle.Acquire(ctx, "b"); return err }),
			"TryAcquire":              acquiring(func() error { _, err := p.TryAcquire(ctx, "c"); return err }),
			"Do":                      acquiring(func() error { return p.Do(ctx, "d", never) }),
			"DoAdvisory": acquiring(func() error {
				return p.DoAdvisory(ctx, "e", func(ctx context.Context) error { return never(ctx, fencelock.Token{}) })
			}),
			"Lead":                          acquiring(func() error { return p.Lead(ctx, "f", never) }),
			"Inspect":                       {patience, context.DeadlineExceeded, func() error { _, err := p.Inspect(ctx, "taken"); return err }},
			"Release":                       {patience, fencelock.ErrUnconfirmed, func() error { return held.Release(ctx) }},
			"Release with an ended context": {5 * time.Second, fencelock.ErrUnconfirmed, func() error { return heldToo.Release(ended) }},
			"the release of Do":             {5 * time.Second, fencelock.ErrUnconfirmed, func() error { close(finish); return (<-worked).err }},
			"Shutdown":                      {patience, context.DeadlineExceeded, func() error { return stopping.Shutdown(ctx) }},
			"Close":                         {closing.margin + 5*time.Second, fencelock.ErrUnconfirmed, closing.Close},
			"Acquire that waits in the queue": {patience, context.Canceled, func() error {
				<-ctx.Done()
				giveUp()
				return (<-waited).err
			}},
		}
		returned := map[string]<-chan outcome{}
		for name, c := range calls {
			returned[name] = later(c.do)
		}
		for name, c := range calls {
			got := harness.Receive(t, returned[name], eventually, "return of "+name)
			assert.ErrorIs(t, got.err, c.want, name)
			assertInTime(t, started.Add(c.bound), got, name)
		}

		notAcquired := reported[fencelock.NotAcquiredInfo](p.told)
		require.Len(t, notAcquired, 7, "every acquire that failed is reported")
		for _, n := range notAcquired {
			require.Contains(t, []fencelock.Result{fencelock.ResultUnreachable, fencelock.ResultCanceled}, n.Result, n.Name)
		}
		released := reported[fencelock.ReleasedInfo](p.told)
		require.Len(t, released, 3)
		for _, r := range released {
			require.False(t, r.Confirmed)
			require.ErrorIs(t, r.Err, fencelock.ErrUnconfirmed)
			require.True(t, slices.ContainsFunc(reported[slog.Record](p.told), func(line slog.Record) bool {
				return line.Level == slog.LevelWarn && attribute(line, "lock") == r.Name
			}), "no warning of the release of %s", r.Name)
		}

		silence.end(member, proxy)
		require.NoError(t, taken.Release(atMost(t, eventually)))
		for _, name := range []string{"a", "b", "c", "d", "e", "f", "taken", "held", "held too", "worked on"} {
			lock, err := other.Acquire(atMost(t, eventually), name)
			require.NoError(t, err, "%s is blocked by what was left behind", name)
			require.NoError(t, lock.Release(atMost(t, eventually)))
		}
		require.NoError(t, other.Close())
		require.NoError(t, p.Close())
		require.NoError(t, idle.Close())
		if err := stopping.Close(); err != nil { // its last attempt may have outlived the silence
			require.ErrorIs(t, err, fencelock.ErrUnconfirmed)
		}
		harness.NothingLeft(t, clean, keyPrefix)
	})
}
