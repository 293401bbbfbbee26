package integration

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/integration/harness"
)

// At a TTL of 60 s the next renewal, which is when a naive library learns that
// its lease is gone, can be 20 s away; up to then two hold the lock.
const longTTL = 60 * time.Second

func TestFault07LeaseRevoked(t *testing.T) {
	b := newBench(t)

	t.Run("while several locks are held", func(t *testing.T) {
		b := b.corner(t)
		j := newJournal()
		w := b.wired()
		l := b.locker(w.Client, append(reportTo(j), fencelock.WithTTL(longTTL))...)
		other := b.locker(b.client())

		first, second := b.acquire(l, "first"), b.acquire(l, "second")
		inCallback := make(chan fencelock.Token, 1)
		did := inBackground(t, func() error {
			return l.Do(t.Context(), "third", func(ctx context.Context, token fencelock.Token) error {
				inCallback <- token
				<-ctx.Done()
				return nil // a callback that does not look at why its context ended
			})
		})
		third := harness.Receive(t, inCallback, soon, "callback")
		waiting := b.acquireLater(other, "first")
		b.awaitQueue("first", 2)
		b.awaitReads(w, 3)

		_, lease, _ := b.record("first")
		firstTold := b.toldInTime(first, j, fencelock.LostRevoked, fencelock.LostDeleted)
		secondTold := b.toldInTime(second, j, fencelock.LostRevoked, fencelock.LostDeleted)
		_, err := b.clean.Revoke(t.Context(), lease)
		require.NoError(t, err)
		firstTold()
		secondTold()
		err = harness.Receive(t, did, soon, "end of Do")
		var loss *fencelock.LostError
		require.ErrorAs(t, err, &loss, "nil of a callback is not nil after a loss")
		require.True(t, third.Equal(loss.Token))
		require.False(t, loss.Returned.Before(loss.LostAt))

		next := b.granted(waiting)
		require.Positive(t, next.Token().Compare(first.Token()))
		b.returned(first)
		b.returned(second)
		b.release(next)
		again := b.acquire(l, "first")
		require.Positive(t, again.Token().Compare(next.Token()))
		b.release(again)
		require.Len(t, awaitReports[fencelock.ReturnedAfterLossInfo](t, j, 3, soon), 3)
	})

	// A lock held for a moment has no watch yet.
	t.Run("right after the grant", func(t *testing.T) {
		b := b.corner(t)
		j := newJournal()
		l := b.locker(b.client(), append(reportTo(j), fencelock.WithTTL(longTTL))...)
		k := b.acquire(l, "first")
		_, lease, _ := b.record("first")
		told := b.toldInTime(k, j, fencelock.LostRevoked, fencelock.LostDeleted)
		_, err := b.clean.Revoke(t.Context(), lease)
		require.NoError(t, err)
		told()
		b.returned(k)
		b.release(b.acquire(l, "first"))
	})

	// The release comes before anybody has noticed. nil would say that the
	// record named this holder up to the end.
	t.Run("and released unnoticed", func(t *testing.T) {
		b := b.corner(t)
		j := newJournal()
		l := b.locker(b.client(), append(reportTo(j), fencelock.WithTTL(longTTL))...)
		err := l.Do(t.Context(), "first", func(ctx context.Context, token fencelock.Token) error {
			_ = token.Revision()
			_, lease, _ := b.record("first")
			_, err := b.clean.Revoke(ctx, lease)
			return err
		})
		var loss *fencelock.LostError
		require.ErrorAs(t, err, &loss)
		require.Contains(t, []fencelock.Reason{fencelock.LostRevoked, fencelock.LostDeleted}, loss.Reason)
		require.Len(t, awaitReports[fencelock.LostInfo](t, j, 1, soon), 1)
		b.release(b.acquire(l, "first"))
	})
}
