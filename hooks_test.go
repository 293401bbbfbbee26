package fencelock

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Waiting and Waited come in pairs, whatever becomes of the call, or a gauge of
// waiters would drift.
func TestHooksOfAWait(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		held := mustAcquire(t, newLocker(t, l), "n")
		var told []string
		var waits []time.Duration
		locker := newLocker(t, e.dial(t), WithHooks(Hooks{
			Waiting: func(i WaitingInfo) { told = append(told, "waiting "+i.Name) },
			Waited: func(i WaitedInfo) {
				told = append(told, map[bool]string{true: "granted", false: "given up"}[i.Granted])
			},
			Acquired:    func(i AcquiredInfo) { waits = append(waits, i.Wait) },
			NotAcquired: func(i NotAcquiredInfo) { waits = append(waits, i.Wait) },
		}))

		_, err := locker.TryAcquire(t.Context(), "n")
		requireIs(t, err, ErrHeld, ErrNotAcquired)
		assert.Empty(t, told, "it does not queue")

		_, err = locker.Acquire(t.Context(), "n", MaxWait(3*time.Second))
		requireIs(t, err, ErrHeld, ErrNotAcquired)
		assert.Equal(t, []string{"waiting n", "given up"}, told)

		told = nil
		waiter := acquireLater(t.Context(), locker, "n")
		time.Sleep(2 * time.Second)
		for _, kv := range e.keys("fencelock/n/") {
			if kv.Lease == int64(locker.currentLease().id) {
				e.deleteKey(t, string(kv.Key)) // it queues again
			}
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		assert.Equal(t, []string{"waiting n"}, told)
		require.NoError(t, held.Release(t.Context()))
		lock := waiter.granted(t)
		assert.Equal(t, []string{"waiting n", "granted"}, told)
		require.Len(t, waits, 3)
		assert.Zero(t, waits[0])
		assert.GreaterOrEqual(t, waits[1], 3*time.Second)
		assert.GreaterOrEqual(t, waits[2], 4*time.Second)
		require.NoError(t, lock.Release(t.Context()))
		mustRelease(t, mustAcquire(t, locker, "free"))
		assert.Len(t, told, 2)
		assert.Zero(t, waits[3])
	})
}

func mustRelease(t *testing.T, lock *Lock) {
	t.Helper()
	require.NoError(t, lock.Release(t.Context()))
}

type mark string

// What HoldContext adds is in the hold's context and in what is derived from it,
// and nothing else of the hold's context changes.
func TestHoldContext(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		var order []string
		locker := newLocker(t, l, WithHooks(Hooks{
			HoldContext: func(ctx context.Context, i AcquiredInfo) context.Context {
				order = append(order, "hold "+i.Name)
				outer, _ := ctx.Value(mark("hold")).(string)
				return context.WithValue(ctx, mark("hold"), outer+"/"+i.Token.String())
			},
			Acquired: func(i AcquiredInfo) { order = append(order, "acquired "+i.Name) },
		}))
		caller := context.WithValue(t.Context(), mark("caller"), "c")

		outer, err := locker.Acquire(caller, "a")
		require.NoError(t, err)
		assert.Equal(t, []string{"hold a", "acquired a"}, order)
		assert.Equal(t, "/"+outer.Token().String(), outer.Context().Value(mark("hold")))
		assert.Equal(t, "c", outer.Context().Value(mark("caller")))
		assert.False(t, outer.Token().wasUsed())
		assert.Nil(t, caller.Value(mark("hold")))

		_, err = locker.Acquire(outer.Context(), "a")
		require.ErrorIs(t, err, ErrReentrant, "the hold is still found")

		inner, err := locker.Acquire(outer.Context(), "b")
		require.NoError(t, err)
		assert.Equal(t, "/"+outer.Token().String()+"/"+inner.Token().String(), inner.Context().Value(mark("hold")))

		// The end and its cause are the hold's, in derived contexts too, which cost
		// no goroutine.
		synctest.Wait()
		before := runtime.NumGoroutine()
		derived, cancel := context.WithCancel(outer.Context())
		defer cancel()
		assert.Equal(t, before, runtime.NumGoroutine())
		e.deleteKey(t, outer.entry.key)
		<-derived.Done()
		for _, ctx := range []context.Context{outer.Context(), derived, inner.Context()} {
			var lost *LostError
			require.ErrorAs(t, context.Cause(ctx), &lost)
			assert.Equal(t, "a", lost.Name)
		}
		require.Error(t, outer.Release(t.Context()))
		require.NoError(t, inner.Release(t.Context()))
	})
}

// A hook that does something else takes neither the lock from its holder nor the
// values from its context.
func TestHoldContextThatCannotBeUsed(t *testing.T) {
	for name, c := range map[string]struct {
		hook func(context.Context, AcquiredInfo) context.Context
		says string
	}{
		"nil": {func(context.Context, AcquiredInfo) context.Context { return nil }, ""},
		"a cancellation of its own": {func(ctx context.Context, _ AcquiredInfo) context.Context {
			ctx, cancel := context.WithCancel(ctx)
			cancel()
			return ctx
		}, "not used"},
		"another context": {func(context.Context, AcquiredInfo) context.Context { return context.Background() }, "not used"},
		"the caller's":    {func(_ context.Context, i AcquiredInfo) context.Context { return i.Context }, "not used"},
		"a panic":         {func(context.Context, AcquiredInfo) context.Context { panic(errors.New("boom")) }, "boom"},
		"an end":          {func(context.Context, AcquiredInfo) context.Context { runtime.Goexit(); return nil }, "ended its goroutine"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, _ *fakeEtcd, l *fakeLink) {
				var log bytes.Buffer
				locker := newLocker(t, l, WithHooks(Hooks{HoldContext: c.hook}), WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
				lock, err := locker.Acquire(context.WithValue(t.Context(), mark("caller"), "c"), "n")
				require.NoError(t, err)
				require.NoError(t, lock.Context().Err())
				assert.Equal(t, "c", lock.Context().Value(mark("caller")))
				if c.says == "" {
					assert.Empty(t, log.String())
				} else {
					assert.Contains(t, log.String(), c.says)
				}
				require.NoError(t, lock.Release(t.Context()))
			})
		})
	}
}
