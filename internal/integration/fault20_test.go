package integration

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/integration/harness"
)

// etcd is out of space: it renews leases and deletes keys, and refuses every
// write. A naive library that releases with a write cannot release; one that
// retries what is refused for good keeps its callers waiting for nothing.
func TestFault20OutOfSpace(t *testing.T) {
	const ttl = 2 * time.Second
	const quota = 1 << 20
	harness.NoLeaks(t)
	b, _ := newCorner(t, harness.ClusterConfig{QuotaBackendBytes: quota})

	j, waiterJ, newJ := newJournal(), newJournal(), newJournal()
	l := b.locker(b.client(), append(reportTo(j), fencelock.WithTTL(ttl))...)
	waiter := b.locker(b.client(), append(reportTo(waiterJ), fencelock.WithTTL(ttl))...)
	unused := b.locker(b.client(), append(reportTo(newJ), fencelock.WithTTL(ttl))...)
	held := b.acquire(l, "job")
	waiting := b.acquireLater(waiter, "job")
	b.awaitQueue("job", 2)

	fill := strings.Repeat("x", 64<<10)
	b.until("etcd is full", func() bool {
		_, err := b.clean.Put(t.Context(), "fill", fill)
		if err != nil {
			require.ErrorIs(t, err, rpctypes.ErrNoSpace)
		}
		return err != nil
	})

	refused := func(j *journal, phase fencelock.Phase, call func(context.Context) error) {
		t.Helper()
		before := len(reported[fencelock.NotAcquiredInfo](j))
		ctx, cancel := context.WithTimeout(t.Context(), soon)
		defer cancel()
		err := call(ctx)
		require.NoError(t, ctx.Err(), "the refusal was retried up to the end of the context")
		var failure *fencelock.AcquireError
		require.ErrorAs(t, err, &failure)
		require.Equal(t, phase, failure.Phase)
		require.ErrorIs(t, err, rpctypes.ErrNoSpace)
		require.ErrorContains(t, err, "database space exceeded")
		hooked := reported[fencelock.NotAcquiredInfo](j)
		require.Len(t, hooked, before+1)
		require.Equal(t, fencelock.ResultQuota, hooked[before].Result)
	}
	acquire := func(l *fencelock.Locker) func(context.Context) error {
		return func(ctx context.Context) error { _, err := l.Acquire(ctx, "other"); return err }
	}
	refused(j, fencelock.PhaseQueue, acquire(l))
	refused(newJ, fencelock.PhaseLease, acquire(unused))
	refused(j, fencelock.PhaseQueue, func(ctx context.Context) error { _, err := l.TryAcquire(ctx, "other"); return err })
	refused(j, fencelock.PhaseQueue, func(ctx context.Context) error {
		return l.Do(ctx, "other", func(context.Context, fencelock.Token) error {
			t.Error("the callback ran")
			return nil
		})
	})
	b.awaitQueue("other", 0)

	// The hold goes on, for longer than a TTL.
	renewed := len(reported[fencelock.RenewedInfo](j))
	awaitReports[fencelock.RenewedInfo](t, j, renewed+4, soon)
	b.stillHeld(held)
	b.stillWaits(waiting)
	require.NoError(t, held.Release(t.Context()))
	next := b.granted(waiting)
	b.stillHeld(next)
	require.NoError(t, next.Release(t.Context()))

	// With space again everything works, on the same Lockers.
	_, err := b.clean.Delete(t.Context(), "fill")
	require.NoError(t, err)
	now, err := b.clean.Get(t.Context(), "fill")
	require.NoError(t, err)
	_, err = b.clean.Compact(t.Context(), now.Header.Revision, clientv3.WithCompactPhysical())
	require.NoError(t, err)
	_, err = b.clean.Defragment(t.Context(), b.addr)
	require.NoError(t, err)
	_, err = b.clean.AlarmDisarm(t.Context(), &clientv3.AlarmMember{})
	require.NoError(t, err)
	for _, l := range []*fencelock.Locker{l, waiter, unused} {
		b.release(b.acquire(l, "job"))
	}
	for _, j := range []*journal{j, waiterJ, newJ} {
		require.Empty(t, reported[fencelock.LostInfo](j))
	}
}
