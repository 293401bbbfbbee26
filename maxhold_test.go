package fencelock

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// MaxHold ends the context at exactly its time. The key goes when the callback
// has returned, or one margin later, whichever is first: that is the one way by
// which a lock leaves a holder that does not stop.
func TestMaxHold(t *testing.T) {
	const hold, margin = 7 * time.Second, 3 * time.Second // a fifth of 15 s
	for name, c := range map[string]struct {
		ignores time.Duration // how long the callback goes on after its context
		freed   time.Duration // after the grant
	}{
		"stops at once":           {freed: hold},
		"stops within the margin": {ignores: time.Second, freed: hold + time.Second},
		"stops later":             {ignores: 10 * time.Second, freed: hold + margin},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
				locker := newLocker(t, l)
				other := mustAcquire(t, locker, "other")
				next := newLocker(t, e.dial(t))
				start := time.Now()
				var waiter *running
				err := locker.Do(t.Context(), "n", func(ctx context.Context, _ Token) error {
					waiter = acquireLater(t.Context(), next, "n")
					awaitIn(t, ctx.Done())
					assert.Equal(t, hold, time.Since(start))
					assert.Equal(t, LostMaxHold, requireAs[*LostError](t, context.Cause(ctx)).Reason)
					time.Sleep(c.ignores)
					return nil
				}, MaxHold(hold))
				requireIs(t, err, ErrLost)
				assert.Equal(t, hold+c.ignores, time.Since(start))
				assert.Equal(t, c.ignores, lostFor(requireAs[*LostError](t, err)))

				lock := waiter.granted(t)
				assert.Equal(t, c.freed, waiter.took)
				require.NoError(t, lock.Release(t.Context()))
				time.Sleep(time.Minute)
				require.NoError(t, other.Err(), "the lease is not concerned")
				require.NoError(t, other.Release(t.Context()))
				assert.Empty(t, l.requests(fakeRevoke))
			})
		})
	}
}

func lostFor(lost *LostError) time.Duration { return lost.Returned.Sub(lost.LostAt) }

// A lock released before its time costs nothing later: its timers are gone, and
// the next hold in the same slot has its own.
func TestMaxHoldOfAReleasedLock(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		locker := newLocker(t, l)
		lock := mustAcquire(t, locker, "n", MaxHold(2*time.Second))
		time.Sleep(time.Second)
		require.NoError(t, lock.Release(t.Context()))
		again := mustAcquire(t, locker, "n")
		time.Sleep(time.Minute)
		require.NoError(t, again.Err())
		requireIs(t, lock.Err(), ErrReleased)
		require.NoError(t, again.Release(t.Context()))
	})
}

// The key of one that was given up one margin later is gone while its holder
// still runs. The slot is used again meanwhile, and the late return leaves the
// hold that is in it alone.
func TestMaxHoldLeavesTheNextHoldAlone(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		locker := newLocker(t, l)
		lock := mustAcquire(t, locker, "n", MaxHold(time.Second))
		time.Sleep(4 * time.Second)
		synctest.Wait()
		again := mustAcquire(t, locker, "n")
		require.Equal(t, lock.entry.key, again.entry.key)
		time.Sleep(time.Minute)
		requireIs(t, lock.Release(t.Context()), ErrLost)
		time.Sleep(time.Minute)
		require.NoError(t, again.Err())
		assert.Len(t, e.keys("fencelock/"), 1)
		require.NoError(t, again.Release(t.Context()))
	})
}

// A holder that never returns keeps nothing but its own goroutine: its key is
// gone, and the lease lapses when nothing else needs it.
func TestMaxHoldOfAHolderThatNeverReturns(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		locker := newLocker(t, l)
		lock := mustAcquire(t, locker, "n", MaxHold(time.Second))
		time.Sleep(time.Minute)
		requireNothingLeft(t, e)
		sent := len(l.requests())
		time.Sleep(time.Hour)
		assert.Len(t, l.requests(), sent)
		again := mustAcquire(t, locker, "n")
		require.NoError(t, again.Release(t.Context()))
		assert.Equal(t, LostMaxHold, lostBy(t, lock), "the first reason stays")
		requireIs(t, lock.Release(t.Context()), ErrLost)
	})
}
