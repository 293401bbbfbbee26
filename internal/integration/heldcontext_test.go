package integration

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/integration/harness"
)

// A callback's context is its caller's in everything but the loss: a naive one
// drops the trace in the values, or the deadline, or hides who cancelled.
func TestDoPassesItsContextOn(t *testing.T) {
	b := newBench(t)
	l := b.locker(b.client())
	errStop := errors.New("the caller has enough")
	calls := map[string]func(ctx context.Context, fn func(context.Context)) error{
		"Do": func(ctx context.Context, fn func(context.Context)) error {
			return l.Do(ctx, "x", func(ctx context.Context, token fencelock.Token) error { fn(ctx); return used(token, nil) })
		},
		"DoAdvisory": func(ctx context.Context, fn func(context.Context)) error {
			return l.DoAdvisory(ctx, "x", func(ctx context.Context) error { fn(ctx); return nil })
		},
		"Lead": func(ctx context.Context, fn func(context.Context)) error {
			return l.Lead(ctx, "x", func(ctx context.Context, token fencelock.Token) error { fn(ctx); return used(token, nil) })
		},
	}
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			ctx := context.WithValue(t.Context(), valueKey{}, "a value")
			deadline := time.Now().Add(time.Hour)
			ctx, stop := context.WithDeadline(ctx, deadline)
			defer stop()
			ctx, cancel := context.WithCancelCause(ctx)
			var held context.Context
			// nil: the record named this holder to the end, and the callback
			// says that its work is done.
			require.NoError(t, call(ctx, func(ctx context.Context) {
				held = ctx
				assert.Equal(t, "a value", ctx.Value(valueKey{}))
				d, ok := ctx.Deadline()
				assert.True(t, ok)
				assert.True(t, deadline.Equal(d))
				assert.NoError(t, ctx.Err())
				cancel(errStop)
				harness.Receive(t, ctx.Done(), soon, "cancellation")
				assert.ErrorIs(t, ctx.Err(), context.Canceled)
				assert.ErrorIs(t, context.Cause(ctx), errStop)
				assert.NotErrorIs(t, context.Cause(ctx), fencelock.ErrLost)
			}))
			assert.ErrorIs(t, context.Cause(held), errStop, "the first cause stays")
		})
	}
	t.Run("the caller's deadline", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		require.NoError(t, l.Do(ctx, "x", func(ctx context.Context, token fencelock.Token) error {
			harness.Receive(t, ctx.Done(), soon, "deadline")
			assert.ErrorIs(t, ctx.Err(), context.DeadlineExceeded)
			return used(token, nil)
		}))
	})
	t.Run("after the call", func(t *testing.T) {
		var held context.Context
		require.NoError(t, l.DoAdvisory(t.Context(), "x", func(ctx context.Context) error { held = ctx; return nil }))
		require.ErrorIs(t, held.Err(), context.Canceled)
		assert.ErrorIs(t, context.Cause(held), fencelock.ErrReleased)
	})
}

// What Acquire's context bounds is the acquiring. A naive library ends a hold
// when a request's time-out, which was meant for the wait, has passed.
func TestAcquiresContextHasItsValuesOnly(t *testing.T) {
	b := newBench(t)
	l := b.locker(b.client())
	for name, acquire := range map[string]func(context.Context) (*fencelock.Lock, error){
		"Acquire":    func(ctx context.Context) (*fencelock.Lock, error) { return l.Acquire(ctx, "x") },
		"TryAcquire": func(ctx context.Context) (*fencelock.Lock, error) { return l.TryAcquire(ctx, "x") },
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), valueKey{}, "a value"), time.Hour)
			k, err := acquire(ctx)
			require.NoError(t, err)
			cancel()
			held := k.Context()
			assert.Equal(t, "a value", held.Value(valueKey{}))
			_, ok := held.Deadline()
			assert.False(t, ok)
			require.NoError(t, held.Err())
			require.NoError(t, k.Err())
			b.release(k)
			require.ErrorIs(t, held.Err(), context.Canceled)
		})
	}
}

// Whoever derives from the held context hears of the loss, and why.
func TestDerivedContextsEndWithTheHold(t *testing.T) {
	b := newBench(t)
	l := b.locker(b.client())
	k := b.acquire(l, "x")
	value := context.WithValue(k.Context(), valueKey{}, 1)
	cancelled, cancel := context.WithCancel(value)
	defer cancel()
	deadline, cancel2 := context.WithTimeout(k.Context(), time.Hour)
	defer cancel2()
	told := make(chan struct{})
	defer context.AfterFunc(cancelled, func() { close(told) })()

	_, err := b.clean.Delete(t.Context(), harness.Keys(t, b.clean, keyPrefix)[0])
	require.NoError(t, err)
	harness.Receive(t, told, soon, "call of AfterFunc")
	for _, ctx := range []context.Context{k.Context(), value, cancelled, deadline} {
		require.ErrorIs(t, ctx.Err(), context.Canceled)
		var lost *fencelock.LostError
		require.ErrorAs(t, context.Cause(ctx), &lost)
		assert.True(t, lost.Token.Equal(k.Token()))
	}
	require.ErrorIs(t, k.Release(t.Context()), fencelock.ErrLost)
}

// A context of a type of one's own costs each derived one a goroutine, if it is
// made carelessly.
func TestDerivedContextsCostNoGoroutine(t *testing.T) {
	const n = 500
	b := newBench(t)
	l := b.locker(b.client())
	k := b.acquire(l, "x")
	before := runtime.NumGoroutine()
	for range n {
		ctx, cancel := context.WithCancel(k.Context())
		defer cancel()
		ctx, cancel2 := context.WithTimeout(ctx, time.Hour)
		defer cancel2()
		require.NoError(t, ctx.Err())
	}
	assert.Less(t, runtime.NumGoroutine(), before+n/10)
	b.release(k)
}
