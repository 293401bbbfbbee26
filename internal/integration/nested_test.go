package integration

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/integration/harness"
)

type valueKey struct{}

// A naive library waits for itself, until the caller's deadline or for ever.
func TestReentrant(t *testing.T) {
	b := newBench(t)
	client := b.wired()
	l := b.locker(client.Client)
	derived := map[string]func(context.Context) context.Context{
		"the held context itself": func(ctx context.Context) context.Context { return ctx },
		"with a value":            func(ctx context.Context) context.Context { return context.WithValue(ctx, valueKey{}, 1) },
		"with a cancel": func(ctx context.Context) context.Context {
			ctx, cancel := context.WithCancel(ctx)
			t.Cleanup(cancel)
			return ctx
		},
		"with a deadline": func(ctx context.Context) context.Context {
			ctx, cancel := context.WithTimeout(ctx, time.Hour)
			t.Cleanup(cancel)
			return ctx
		},
		"without its cancellation": context.WithoutCancel,
	}
	holds := map[string]func(inside func(context.Context)){
		"Do": func(inside func(context.Context)) {
			require.NoError(t, l.Do(t.Context(), "x", func(ctx context.Context, token fencelock.Token) error {
				inside(ctx)
				return used(token, nil)
			}))
		},
		"DoAdvisory": func(inside func(context.Context)) {
			require.NoError(t, l.DoAdvisory(t.Context(), "x", func(ctx context.Context) error { inside(ctx); return nil }))
		},
		"Acquire": func(inside func(context.Context)) {
			k := b.acquire(l, "x")
			defer b.release(k)
			inside(k.Context())
		},
		"another lock in between": func(inside func(context.Context)) {
			require.NoError(t, l.Do(t.Context(), "x", func(ctx context.Context, token fencelock.Token) error {
				k, err := l.Acquire(ctx, "y")
				require.NoError(t, err)
				defer b.release(k)
				inside(k.Context())
				return used(token, nil)
			}))
		},
	}
	for hold, in := range holds {
		for how, derive := range derived {
			t.Run(hold+"/"+how, func(t *testing.T) {
				in(func(ctx context.Context) {
					ctx = derive(ctx)
					before := client.requests()
					for call, do := range badCalls(t, l) {
						assert.ErrorIs(t, do(ctx, "x"), fencelock.ErrReentrant, call)
					}
					assert.Equal(t, before, client.requests())
				})
			})
		}
	}
}

// It is the hold that counts, not the context: once it is given back there is
// nothing to wait for.
func TestReentrantOnlyWhileHeld(t *testing.T) {
	b := newBench(t)
	l := b.locker(b.client())
	other := b.locker(b.client())
	k := b.acquire(l, "x")
	ctx := context.WithoutCancel(k.Context())

	// Another Locker's lock of the same name is another's.
	_, err := other.TryAcquire(ctx, "x")
	require.ErrorIs(t, err, fencelock.ErrHeld)
	// As is one of the same Locker's that does not come from the hold.
	_, err = l.TryAcquire(t.Context(), "x")
	require.ErrorIs(t, err, fencelock.ErrHeld)

	b.release(k)
	again, err := l.TryAcquire(ctx, "x")
	require.NoError(t, err)

	// Lost and not given back is not over: whoever has it still works.
	_, err = b.clean.Delete(t.Context(), harness.Keys(t, b.clean, keyPrefix)[0])
	require.NoError(t, err)
	harness.Receive(t, again.Context().Done(), soon, "end of the held context")
	_, err = l.TryAcquire(context.WithoutCancel(again.Context()), "x")
	require.ErrorIs(t, err, fencelock.ErrReentrant)
	require.ErrorIs(t, again.Release(t.Context()), fencelock.ErrLost)
	third, err := l.TryAcquire(context.WithoutCancel(again.Context()), "x")
	require.NoError(t, err)
	b.release(third)
}

// Work under two locks needs both. A naive library goes on with the inner one
// when the outer is gone.
func TestLosingTheOuterEndsTheInnersContext(t *testing.T) {
	harness.Parallel(t)
	shared := newBench(t)
	for name, inner := range map[string]func(l *fencelock.Locker, ctx context.Context, work func(context.Context)) error{
		"Do": func(l *fencelock.Locker, ctx context.Context, work func(context.Context)) error {
			return l.Do(ctx, "inner", func(ctx context.Context, token fencelock.Token) error { work(ctx); return used(token, nil) })
		},
		"DoAdvisory": func(l *fencelock.Locker, ctx context.Context, work func(context.Context)) error {
			return l.DoAdvisory(ctx, "inner", func(ctx context.Context) error { work(ctx); return nil })
		},
		"Acquire": func(l *fencelock.Locker, ctx context.Context, work func(context.Context)) error {
			k, err := l.Acquire(ctx, "inner")
			if err != nil {
				return err
			}
			work(k.Context())
			return k.Release(context.Background())
		},
		"TryAcquire with a derived context": func(l *fencelock.Locker, ctx context.Context, work func(context.Context)) error {
			ctx, cancel := context.WithCancel(context.WithValue(ctx, valueKey{}, 1))
			defer cancel()
			k, err := l.TryAcquire(ctx, "inner")
			if err != nil {
				return err
			}
			work(k.Context())
			return k.Release(context.Background())
		},
		"three deep": func(l *fencelock.Locker, ctx context.Context, work func(context.Context)) error {
			between, err := l.Acquire(ctx, "between")
			if err != nil {
				return err
			}
			k, err := l.Acquire(between.Context(), "inner")
			if err != nil {
				return err
			}
			work(k.Context())
			if err := k.Release(context.Background()); err != nil {
				return err
			}
			return between.Release(context.Background())
		},
	} {
		for _, lockers := range []string{"of one Locker", "of two"} {
			t.Run(name+"/"+lockers, func(t *testing.T) {
				b := shared.part(t)
				l := b.locker(b.client())
				innerL := l
				if lockers == "of two" {
					innerL = b.locker(b.client())
				}
				err := l.Do(t.Context(), "outer", func(outer context.Context, token fencelock.Token) error {
					err := inner(innerL, outer, func(ctx context.Context) {
						require.NoError(t, ctx.Err())
						_, err := b.clean.Delete(t.Context(), harness.Keys(t, b.clean, keyPrefix+"outer/")[0])
						require.NoError(t, err)
						harness.Receive(t, ctx.Done(), soon, "end of the inner context")
						require.ErrorIs(t, ctx.Err(), context.Canceled)
						var lost *fencelock.LostError
						require.ErrorAs(t, context.Cause(ctx), &lost)
						assert.Equal(t, "outer", lost.Name)
					})
					// The inner lock itself was held to the end.
					require.NoError(t, err)
					return used(token, nil)
				})
				require.ErrorIs(t, err, fencelock.ErrLost)
			})
		}
	}
}

// The outer ending in good order, or the inner being lost, is no loss of the
// other.
func TestEndingOneOfTwoNestedLocks(t *testing.T) {
	b := newBench(t)
	l := b.locker(b.client())
	outer := b.acquire(l, "outer")
	inner, err := l.Acquire(outer.Context(), "inner")
	require.NoError(t, err)

	_, err = b.clean.Delete(t.Context(), harness.Keys(t, b.clean, keyPrefix+"inner/")[0])
	require.NoError(t, err)
	harness.Receive(t, inner.Context().Done(), soon, "end of the inner context")
	require.NoError(t, outer.Err())
	require.NoError(t, outer.Context().Err())
	require.ErrorIs(t, inner.Release(t.Context()), fencelock.ErrLost)

	// Acquire takes its context's values, and not its end.
	inner, err = l.Acquire(outer.Context(), "inner")
	require.NoError(t, err)
	b.release(outer)
	require.ErrorIs(t, outer.Context().Err(), context.Canceled)
	require.NoError(t, inner.Err())
	require.NoError(t, inner.Context().Err())
	b.release(inner)
}
