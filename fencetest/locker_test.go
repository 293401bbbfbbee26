package fencetest_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/fencetest"
)

// fakeable is what a service would declare. Both kinds of Locker fit.
type fakeable interface {
	Do(ctx context.Context, name string, fn func(ctx context.Context, token fencelock.Token) error, opts ...fencelock.LockOption) error
	DoAdvisory(ctx context.Context, name string, fn func(ctx context.Context) error, opts ...fencelock.LockOption) error
	Lead(ctx context.Context, name string, fn func(ctx context.Context, token fencelock.Token) error, opts ...fencelock.LockOption) error
}

var (
	_ fakeable = (*fencelock.Locker)(nil)
	_ fakeable = (*fencetest.Locker)(nil)
)

var errFakeWork = errors.New("what the callback says")

// fakeRun is one run of a callback, which returns what the test sends.
type fakeRun struct {
	ctx    context.Context
	token  fencelock.Token
	finish chan error
}

// fakeCalls makes calls in the background of a bubble. That nothing is left running
// when the test ends is what the bubble sees to.
type fakeCalls struct {
	t *testing.T
	l *fencetest.Locker
}

// start makes the call, and delivers the runs of its callback and its result. It
// returns when the call runs, waits or is over.
func (f fakeCalls) start(call func(fn func(context.Context, fencelock.Token) error) error) (<-chan fakeRun, <-chan error) {
	f.t.Helper()
	runs, result := make(chan fakeRun, 8), make(chan error, 1)
	go func() {
		result <- call(func(ctx context.Context, token fencelock.Token) error {
			r := fakeRun{ctx, token, make(chan error, 1)}
			runs <- r
			return <-r.finish
		})
	}()
	synctest.Wait()
	return runs, result
}

func (f fakeCalls) do(ctx context.Context, name string, opts ...fencelock.LockOption) (<-chan fakeRun, <-chan error) {
	f.t.Helper()
	return f.start(func(fn func(context.Context, fencelock.Token) error) error { return f.l.Do(ctx, name, fn, opts...) })
}

func (f fakeCalls) lead(ctx context.Context, name string, opts ...fencelock.LockOption) (<-chan fakeRun, <-chan error) {
	f.t.Helper()
	return f.start(func(fn func(context.Context, fencelock.Token) error) error { return f.l.Lead(ctx, name, fn, opts...) })
}

// fakeNow receives what must be there once everything has come to rest, without waiting
// for time to pass.
func fakeNow[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	synctest.Wait()
	select {
	case v := <-c:
		return v
	default:
		require.FailNow(t, "nothing has come")
		panic("unreachable")
	}
}

// fakeNotYet fails the test if something has come.
func fakeNotYet[T any](t *testing.T, c <-chan T) {
	t.Helper()
	synctest.Wait()
	select {
	case v := <-c:
		require.FailNow(t, "too soon", "%v", v)
	default:
	}
}

func fakeBubble(t *testing.T, f func(t *testing.T, c fakeCalls)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, fakeCalls{t, fencetest.NewLocker()}) })
}

func TestFakeGrantsInTheOrderOfArrival(t *testing.T) {
	fakeBubble(t, func(t *testing.T, c fakeCalls) {
		_, held := c.l.Holder("x")
		assert.False(t, held)
		var runs []<-chan fakeRun
		var results []<-chan error
		for i := range 5 {
			r, result := c.do(t.Context(), "x")
			runs, results = append(runs, r), append(results, result)
			assert.Equal(t, i, c.l.Waiting("x"))
		}
		other, otherResult := c.do(t.Context(), "x/y")
		fakeNow(t, other).finish <- nil
		require.NoError(t, fakeNow(t, otherResult), "another name is another lock")

		var last fencelock.Token
		for i := range runs {
			r := fakeNow(t, runs[i])
			assert.Equal(t, 1, r.token.Compare(last))
			last = r.token
			for _, later := range runs[i+1:] {
				fakeNotYet(t, later)
			}
			holder, held := c.l.Holder("x")
			require.True(t, held)
			assert.True(t, holder.Equal(r.token))
			assert.Equal(t, len(runs)-i-1, c.l.Waiting("x"))
			r.finish <- nil
			require.NoError(t, fakeNow(t, results[i]))
			assert.ErrorIs(t, context.Cause(r.ctx), fencelock.ErrReleased)
		}
		_, held = c.l.Holder("x")
		assert.False(t, held)
	})
}

// Outside of a bubble and with the race detector: n is guarded by the lock alone.
func TestFakeExcludes(t *testing.T) {
	l := fencetest.NewLocker()
	const callers, each = 8, 50
	n := map[string]*int{"x": new(int), "y": new(int)}
	fences := map[string]*fencelock.Fence{"x": {}, "y": {}}
	holders := sync.Map{}
	revisions := sync.Map{}
	note := func(token fencelock.Token) error {
		_, known := holders.LoadOrStore(token.Holder(), true)
		assert.False(t, known, "a holder of its own")
		_, known = revisions.LoadOrStore(token.Revision(), true)
		assert.False(t, known, "a revision of its own, over all names")
		// The fence refuses what does not rise.
		return fences[token.Name()].Advance(token)
	}
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			for j := range each {
				name := []string{"x", "y"}[(i+j)%2]
				var err error
				if (i+j)%3 == 0 {
					err = l.DoAdvisory(t.Context(), name, func(context.Context) error { *n[name]++; return nil })
				} else {
					err = l.Do(t.Context(), name, func(_ context.Context, token fencelock.Token) error {
						*n[name]++
						return note(token)
					})
				}
				assert.NoError(t, err)
			}
		})
	}
	wg.Wait()
	assert.Equal(t, callers*each, *n["x"]+*n["y"])
}

// A test often makes two fakes, for two clusters or for a restored one: equal numbers
// must not be equal tokens.
func TestFakeTokensOfTwoLockersDiffer(t *testing.T) {
	var tokens []fencelock.Token
	for range 2 {
		require.NoError(t, fencetest.NewLocker().Do(t.Context(), "x", func(_ context.Context, token fencelock.Token) error {
			tokens = append(tokens, token)
			return nil
		}))
	}
	assert.Zero(t, tokens[0].Compare(tokens[1]))
	assert.False(t, tokens[0].Equal(tokens[1]))
	text, err := tokens[0].MarshalText()
	require.NoError(t, err)
	again, err := fencelock.ParseToken("x", string(text))
	require.NoError(t, err)
	assert.True(t, again.Equal(tokens[0]))
}

type fakeValueKey struct{}

func TestFakePassesItsContextOn(t *testing.T) {
	fakeBubble(t, func(t *testing.T, c fakeCalls) {
		ctx, stop := context.WithTimeout(context.WithValue(t.Context(), fakeValueKey{}, "a value"), time.Hour)
		defer stop()
		ctx, cancel := context.WithCancelCause(ctx)
		runs, result := c.do(ctx, "x")
		r := fakeNow(t, runs)
		assert.Equal(t, "a value", r.ctx.Value(fakeValueKey{}))
		want, _ := ctx.Deadline()
		got, ok := r.ctx.Deadline()
		assert.True(t, ok)
		assert.Equal(t, want, got)
		require.NoError(t, r.ctx.Err())

		cancel(errFakeWork)
		require.ErrorIs(t, r.ctx.Err(), context.Canceled)
		assert.ErrorIs(t, context.Cause(r.ctx), errFakeWork)
		holder, held := c.l.Holder("x")
		assert.True(t, held && holder.Equal(r.token), "it is held until the callback returns")
		r.finish <- nil
		require.NoError(t, fakeNow(t, result))
		assert.ErrorIs(t, context.Cause(r.ctx), errFakeWork, "the first cause stays")
	})
}

func TestFakeLoseLetsTheNextOneInWhileTheOldOneGoesOn(t *testing.T) {
	fakeBubble(t, func(t *testing.T, c fakeCalls) {
		var fence fencelock.Fence
		oldRuns, oldResult := c.do(t.Context(), "x")
		newRuns, newResult := c.do(t.Context(), "x")
		old := fakeNow(t, oldRuns)
		require.NoError(t, fence.Advance(old.token))
		fakeNotYet(t, newRuns)
		time.Sleep(time.Minute)

		require.True(t, c.l.Lose("x", fencelock.LostExpired))
		// At once, and not when a goroutine comes to it.
		require.ErrorIs(t, old.ctx.Err(), context.Canceled)
		var told *fencelock.LostError
		require.ErrorAs(t, context.Cause(old.ctx), &told)
		holder, held := c.l.Holder("x")
		require.True(t, held)
		assert.Equal(t, 1, holder.Compare(old.token))
		next := fakeNow(t, newRuns)
		assert.True(t, next.token.Equal(holder))
		require.NoError(t, next.ctx.Err())

		// Both run. The fence is what tells them apart.
		fakeNotYet(t, oldResult)
		require.NoError(t, fence.Advance(next.token))
		stale := fence.Advance(old.token)
		require.ErrorIs(t, stale, fencelock.ErrStale)
		time.Sleep(time.Second)
		old.finish <- errors.Join(errFakeWork, stale)
		err := fakeNow(t, oldResult)
		require.ErrorIs(t, err, errFakeWork)
		require.ErrorIs(t, err, fencelock.ErrStale)
		require.ErrorIs(t, err, fencelock.ErrLost)
		assert.NotErrorIs(t, err, fencelock.ErrTokenRegression)
		var lost *fencelock.LostError
		require.ErrorAs(t, err, &lost)
		assert.Equal(t, "x", lost.Name)
		assert.True(t, lost.Token.Equal(old.token))
		assert.Equal(t, fencelock.LostExpired, lost.Reason)
		assert.Equal(t, time.Minute, lost.LostAt.Sub(lost.LastConfirmed))
		assert.Equal(t, time.Second, lost.Returned.Sub(lost.LostAt))
		assert.Zero(t, told.Returned)
		assert.ErrorIs(t, context.Cause(old.ctx), fencelock.ErrLost, "the first cause stays")

		// The late return takes nothing from the new holder.
		holder, held = c.l.Holder("x")
		assert.True(t, held && holder.Equal(next.token))
		require.NoError(t, next.ctx.Err())
		next.finish <- nil
		require.NoError(t, fakeNow(t, newResult))
	})
}

func TestFakeLoseOfNobodyIsFalse(t *testing.T) {
	fakeBubble(t, func(t *testing.T, c fakeCalls) {
		assert.False(t, c.l.Lose("x", fencelock.LostDeleted))
		runs, result := c.do(t.Context(), "x")
		r := fakeNow(t, runs)
		assert.False(t, c.l.Lose("y", fencelock.LostDeleted))
		assert.True(t, c.l.Lose("x", fencelock.LostDeleted))
		assert.False(t, c.l.Lose("x", fencelock.LostDeleted), "it is lost, and nobody waited")
		_, held := c.l.Holder("x")
		assert.False(t, held)
		r.finish <- nil
		require.ErrorIs(t, fakeNow(t, result), fencelock.ErrLost, "also if the callback is content")
	})
}

// As the real one: the cause that a callback returns is the loss already.
func TestFakeSaysALossOnce(t *testing.T) {
	l := fencetest.NewLocker()
	err := l.DoAdvisory(t.Context(), "x", func(ctx context.Context) error {
		assert.True(t, l.Lose("x", fencelock.LostRevoked))
		return context.Cause(ctx)
	})
	lost, ok := err.(*fencelock.LostError)
	require.True(t, ok, "%T", err)
	assert.False(t, lost.Returned.IsZero())
	err = l.DoAdvisory(t.Context(), "x", func(ctx context.Context) error {
		assert.True(t, l.Lose("x", fencelock.LostRevoked))
		return fmt.Errorf("sweeping: %w", context.Cause(ctx))
	})
	require.ErrorAs(t, err, &lost)
	assert.False(t, lost.Returned.IsZero(), "the one that knows when the callback returned comes first")
	assert.ErrorContains(t, err, "sweeping")
}

func TestFakeWaits(t *testing.T) {
	stop := errors.New("the caller has enough")
	for name, test := range map[string]struct {
		opts []fencelock.LockOption
		end  func(cancel context.CancelCauseFunc)
		is   []error
	}{
		"MaxWait(0)": {opts: []fencelock.LockOption{fencelock.MaxWait(0)}, is: []error{fencelock.ErrHeld}},
		"MaxWait": {
			opts: []fencelock.LockOption{fencelock.MaxWait(time.Hour), fencelock.MaxWait(time.Minute)},
			end:  func(context.CancelCauseFunc) { time.Sleep(time.Minute) },
			is:   []error{fencelock.ErrHeld},
		},
		"cancelled": {
			end: func(cancel context.CancelCauseFunc) { cancel(nil) },
			is:  []error{context.Canceled},
		},
		"cancelled with a cause": {
			opts: []fencelock.LockOption{fencelock.MaxWait(time.Minute)},
			end:  func(cancel context.CancelCauseFunc) { cancel(stop) },
			is:   []error{context.Canceled, stop},
		},
	} {
		t.Run(name, func(t *testing.T) {
			fakeBubble(t, func(t *testing.T, c fakeCalls) {
				runs, result := c.do(t.Context(), "x")
				holder := fakeNow(t, runs)
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				ran, waited := c.do(ctx, "x", test.opts...)
				behind, behindResult := c.do(t.Context(), "x")
				if test.end != nil {
					assert.Equal(t, 2, c.l.Waiting("x"))
					fakeNotYet(t, waited)
					test.end(cancel)
				}
				err := fakeNow(t, waited)
				for _, want := range append(test.is, fencelock.ErrNotAcquired) {
					require.ErrorIs(t, err, want)
				}
				var held *fencelock.HeldError
				var failed *fencelock.AcquireError
				switch {
				case errors.As(err, &held):
					assert.Equal(t, "x", held.Name)
					assert.True(t, held.Holder.Token.Equal(holder.token))
					assert.False(t, held.Holder.Since.IsZero())
				case errors.As(err, &failed):
					assert.Equal(t, "x", failed.Name)
					assert.Equal(t, fencelock.PhaseWait, failed.Phase)
				default:
					t.Errorf("neither a *HeldError nor an *AcquireError: %T", err)
				}
				assert.Equal(t, 1, c.l.Waiting("x"), "its place is given up, and no other")
				holder.finish <- nil
				require.NoError(t, fakeNow(t, result))
				fakeNow(t, behind).finish <- nil
				require.NoError(t, fakeNow(t, behindResult))
				assert.Empty(t, ran, "the callback ran")
			})
		})
	}
	t.Run("MaxWait does not bound the hold", func(t *testing.T) {
		fakeBubble(t, func(t *testing.T, c fakeCalls) {
			for _, d := range []time.Duration{0, time.Second} {
				runs, result := c.do(t.Context(), "x", fencelock.MaxWait(d))
				r := fakeNow(t, runs)
				time.Sleep(time.Hour)
				require.NoError(t, r.ctx.Err())
				r.finish <- nil
				require.NoError(t, fakeNow(t, result))
			}
		})
	})
}

func TestFakeMaxHold(t *testing.T) {
	fakeBubble(t, func(t *testing.T, c fakeCalls) {
		start := func() (fakeRun, <-chan error, <-chan fakeRun, <-chan error) {
			runs, result := c.do(t.Context(), "x", fencelock.MaxHold(time.Minute))
			next, nextResult := c.do(t.Context(), "x")
			r := fakeNow(t, runs)
			time.Sleep(time.Minute - 1)
			require.NoError(t, r.ctx.Err())
			time.Sleep(time.Nanosecond)
			synctest.Wait()
			var lost *fencelock.LostError
			require.ErrorAs(t, context.Cause(r.ctx), &lost)
			assert.Equal(t, fencelock.LostMaxHold, lost.Reason)
			fakeNotYet(t, next)
			assert.False(t, c.l.Lose("x", fencelock.LostDeleted), "it is lost already")
			return r, result, next, nextResult
		}
		// The next one comes when the callback has returned …
		r, result, next, nextResult := start()
		r.finish <- nil
		require.ErrorIs(t, fakeNow(t, result), fencelock.ErrLost)
		fakeNow(t, next).finish <- nil
		require.NoError(t, fakeNow(t, nextResult))
		// … or a margin later.
		r, result, next, nextResult = start()
		time.Sleep(3*time.Second - 1)
		fakeNotYet(t, next)
		time.Sleep(time.Nanosecond)
		fakeNow(t, next).finish <- nil
		require.NoError(t, fakeNow(t, nextResult))
		r.finish <- nil
		require.ErrorIs(t, fakeNow(t, result), fencelock.ErrLost)
		// A callback that is in time hears nothing of it.
		runs, result := c.do(t.Context(), "x", fencelock.MaxHold(time.Minute))
		fakeNow(t, runs).finish <- nil
		require.NoError(t, fakeNow(t, result))
		time.Sleep(time.Hour)
	})
}

func TestFakeRefuse(t *testing.T) {
	outage := errors.New("no route to host")
	whole := &fencelock.AcquireError{Name: "x", Phase: fencelock.PhaseQueue, Err: outage}
	notAcquired := []error{fencelock.ErrNotAcquired}
	for name, test := range map[string]struct {
		refuse error
		// What a call that begins gets, and one that waits.
		begins, waits []error
		phase         fencelock.Phase // of what begins; none if it is no *AcquireError
		text          string          // of what begins, if it matters
	}{
		"an error of etcd's": {
			refuse: outage, begins: append(notAcquired, outage), waits: append(notAcquired, outage),
			phase: fencelock.PhaseLease, text: `fencelock: lock "x" not acquired (lease): no route to host`,
		},
		"a time-out": {
			refuse: context.DeadlineExceeded, begins: append(notAcquired, context.DeadlineExceeded),
			waits: append(notAcquired, context.DeadlineExceeded), phase: fencelock.PhaseLease,
		},
		"held": {
			refuse: fencelock.ErrHeld, begins: append(notAcquired, fencelock.ErrHeld), waits: append(notAcquired, fencelock.ErrHeld),
		},
		"closed": {
			refuse: fencelock.ErrClosed, begins: []error{fencelock.ErrClosed}, waits: append(notAcquired, fencelock.ErrClosed),
			text: fencelock.ErrClosed.Error(),
		},
		"the session is lost": {
			refuse: fencelock.ErrLost, begins: append(notAcquired, fencelock.ErrLost), waits: append(notAcquired, fencelock.ErrLost),
			phase: fencelock.PhaseLease,
		},
		"a whole error": {
			refuse: whole, begins: append(notAcquired, whole), waits: append(notAcquired, whole),
			phase: fencelock.PhaseQueue, text: whole.Error(),
		},
	} {
		t.Run(name, func(t *testing.T) {
			fakeBubble(t, func(t *testing.T, c fakeCalls) {
				calls := map[string]func() error{
					"Do": func() error {
						return c.l.Do(t.Context(), "x", func(context.Context, fencelock.Token) error { return errors.New("the callback ran") })
					},
					"DoAdvisory": func() error {
						return c.l.DoAdvisory(t.Context(), "x", func(context.Context) error { return errors.New("the callback ran") })
					},
				}
				check := func(err error, want []error) {
					t.Helper()
					for _, w := range want {
						assert.ErrorIs(t, err, w)
					}
					if len(want) == 1 {
						assert.NotErrorIs(t, err, fencelock.ErrNotAcquired)
					}
				}
				begins := func() {
					for call, do := range calls {
						err := do()
						check(err, test.begins)
						var failed *fencelock.AcquireError
						if test.phase == "" {
							assert.False(t, errors.As(err, &failed), call)
						} else if assert.ErrorAs(t, err, &failed, call) {
							assert.Equal(t, test.phase, failed.Phase, call)
							assert.Equal(t, "x", failed.Name, call)
						}
						if test.text != "" {
							assert.EqualError(t, err, test.text, call)
						}
					}
				}
				runs, result := c.do(t.Context(), "x")
				holder := fakeNow(t, runs)
				var waiting []<-chan error
				for range 3 {
					_, w := c.do(t.Context(), "x")
					waiting = append(waiting, w)
				}
				other, otherResult := c.do(t.Context(), "y")

				c.l.Refuse("x", test.refuse)
				assert.Zero(t, c.l.Waiting("x"))
				for _, w := range waiting {
					err := fakeNow(t, w)
					check(err, test.waits)
					var failed *fencelock.AcquireError
					if errors.As(err, &failed) && test.refuse != error(whole) {
						assert.Equal(t, fencelock.PhaseWait, failed.Phase)
					}
					var held *fencelock.HeldError
					if errors.As(err, &held) {
						assert.True(t, held.Holder.Token.Equal(holder.token))
					}
				}
				begins()

				// Neither the holder nor another name is concerned.
				require.NoError(t, holder.ctx.Err())
				holder.finish <- nil
				require.NoError(t, fakeNow(t, result))
				fakeNow(t, other).finish <- nil
				require.NoError(t, fakeNow(t, otherResult))
				begins()

				c.l.Refuse("x", nil)
				runs, result = c.do(t.Context(), "x")
				fakeNow(t, runs).finish <- nil
				require.NoError(t, fakeNow(t, result))
			})
		})
	}
}

func TestFakeLeadHasATermAfterALoss(t *testing.T) {
	fakeBubble(t, func(t *testing.T, c fakeCalls) {
		runs, result := c.lead(t.Context(), "x")
		first := fakeNow(t, runs)
		require.True(t, c.l.Lose("x", fencelock.LostExpired))
		// The work of the first term goes on: neither a second one nor a place in the queue.
		fakeNotYet(t, runs)
		_, held := c.l.Holder("x")
		require.False(t, held)
		between, betweenResult := c.do(t.Context(), "x")
		other := fakeNow(t, between)
		first.finish <- errFakeWork
		fakeNotYet(t, runs)
		assert.Equal(t, 1, c.l.Waiting("x"))
		other.finish <- nil
		require.NoError(t, fakeNow(t, betweenResult))

		second := fakeNow(t, runs)
		assert.Equal(t, 1, second.token.Compare(other.token))
		assert.Equal(t, 1, other.token.Compare(first.token))
		require.NoError(t, second.ctx.Err())
		second.finish <- errFakeWork
		assert.Equal(t, errFakeWork, fakeNow(t, result), "as it is")
		assert.Empty(t, runs)
	})
}

func TestFakeLeadTriesAgainWhenItIsNotRefusedAnyMore(t *testing.T) {
	fakeBubble(t, func(t *testing.T, c fakeCalls) {
		c.l.Refuse("x", errors.New("no route to host"))
		// c.lead returns when the call has come to rest: it would not, in a busy loop.
		runs, result := c.lead(t.Context(), "x")
		fakeNotYet(t, result)
		time.Sleep(time.Hour)
		c.l.Refuse("x", context.DeadlineExceeded)
		fakeNotYet(t, result)
		c.l.Refuse("y", nil)
		fakeNotYet(t, runs)
		c.l.Refuse("x", nil)
		r := fakeNow(t, runs)

		// Refused between two terms, and while it waits.
		c.l.Refuse("x", errFakeWork)
		require.True(t, c.l.Lose("x", fencelock.LostDenied))
		r.finish <- nil
		fakeNotYet(t, result)
		fakeNotYet(t, runs)
		c.l.Refuse("x", nil)
		r = fakeNow(t, runs)
		holding, holdingResult := c.do(t.Context(), "x")
		require.True(t, c.l.Lose("x", fencelock.LostDeleted))
		holder := fakeNow(t, holding)
		r.finish <- nil
		synctest.Wait()
		assert.Equal(t, 1, c.l.Waiting("x"))
		c.l.Refuse("x", errFakeWork)
		assert.Zero(t, c.l.Waiting("x"))
		fakeNotYet(t, result)
		c.l.Refuse("x", nil)
		synctest.Wait()
		assert.Equal(t, 1, c.l.Waiting("x"))
		holder.finish <- nil
		require.NoError(t, fakeNow(t, holdingResult))
		fakeNow(t, runs).finish <- nil
		require.NoError(t, fakeNow(t, result))
	})
}

func TestFakeLeadWithMaxWait(t *testing.T) {
	for _, d := range []time.Duration{0, time.Second} {
		fakeBubble(t, func(t *testing.T, c fakeCalls) {
			holding, holdingResult := c.do(t.Context(), "x")
			runs, result := c.lead(t.Context(), "x", fencelock.MaxWait(d))
			time.Sleep(time.Minute)
			fakeNotYet(t, result)
			fakeNow(t, holding).finish <- nil
			require.NoError(t, fakeNow(t, holdingResult))
			fakeNow(t, runs).finish <- nil
			require.NoError(t, fakeNow(t, result))
		})
	}
}

func TestFakeLeadReturns(t *testing.T) {
	for name, refuse := range map[string]error{
		"closed":               fencelock.ErrClosed,
		"a key in the queue":   fencelock.ErrForeignKey,
		"the session is lost":  fencelock.ErrLost,
		"a bad option":         fencelock.ErrInvalidOption,
		"denied":               rpctypes.ErrPermissionDenied,
		"denied, wrapped":      fmt.Errorf("etcd denies: %w", rpctypes.ErrPermissionDenied),
		"denied, as gRPC says": status.Error(codes.PermissionDenied, "by a proxy"),
		"a bad password":       rpctypes.ErrAuthFailed,
		"no such user":         rpctypes.ErrUserNotFound,
		"no user":              rpctypes.ErrUserEmpty,
	} {
		t.Run(name, func(t *testing.T) {
			fakeBubble(t, func(t *testing.T, c fakeCalls) {
				c.l.Refuse("x", refuse)
				_, result := c.lead(t.Context(), "x")
				require.ErrorIs(t, fakeNow(t, result), refuse)
			})
		})
	}
	t.Run("what was lost for closing", func(t *testing.T) {
		fakeBubble(t, func(t *testing.T, c fakeCalls) {
			runs, result := c.lead(t.Context(), "x")
			require.True(t, c.l.Lose("x", fencelock.LostClosed))
			fakeNow(t, runs).finish <- nil
			require.ErrorIs(t, fakeNow(t, result), fencelock.ErrLost)
		})
	})
	for name, refuse := range map[string]error{
		"the end of its context while it waits":      nil,
		"the end of its context while it is refused": errors.New("no route to host"),
	} {
		t.Run(name, func(t *testing.T) {
			fakeBubble(t, func(t *testing.T, c fakeCalls) {
				runs, holding := c.do(t.Context(), "x")
				c.l.Refuse("x", refuse)
				ctx, cancel := context.WithCancelCause(t.Context())
				_, result := c.lead(ctx, "x")
				fakeNotYet(t, result)
				cancel(errFakeWork)
				err := fakeNow(t, result)
				require.ErrorIs(t, err, errFakeWork)
				require.ErrorIs(t, err, fencelock.ErrNotAcquired)
				assert.Zero(t, c.l.Waiting("x"))
				fakeNow(t, runs).finish <- nil
				require.NoError(t, fakeNow(t, holding))
			})
		})
	}
	t.Run("the end of its context after a loss", func(t *testing.T) {
		fakeBubble(t, func(t *testing.T, c fakeCalls) {
			stop := errors.New("the caller has enough")
			ctx, cancel := context.WithCancelCause(t.Context())
			runs, result := c.lead(ctx, "x")
			require.True(t, c.l.Lose("x", fencelock.LostExpired))
			cancel(stop)
			fakeNow(t, runs).finish <- errFakeWork
			err := fakeNow(t, result)
			for _, want := range []error{fencelock.ErrLost, errFakeWork, stop} {
				require.ErrorIs(t, err, want)
			}
		})
	})
}

func TestFakeReleasesAfterAPanicAndGoexit(t *testing.T) {
	l := fencetest.NewLocker()
	var held context.Context
	free := func() {
		t.Helper()
		_, taken := l.Holder("x")
		assert.False(t, taken)
		assert.ErrorIs(t, context.Cause(held), fencelock.ErrReleased)
	}
	for name, call := range map[string]func(end func()){
		"Do": func(end func()) {
			_ = l.Do(t.Context(), "x", func(ctx context.Context, _ fencelock.Token) error { held = ctx; end(); return nil })
		},
		"DoAdvisory": func(end func()) {
			_ = l.DoAdvisory(t.Context(), "x", func(ctx context.Context) error { held = ctx; end(); return nil })
		},
		"Lead": func(end func()) {
			_ = l.Lead(t.Context(), "x", func(ctx context.Context, _ fencelock.Token) error { held = ctx; end(); return nil })
		},
	} {
		t.Run(name, func(t *testing.T) {
			assert.PanicsWithValue(t, "the callback's", func() { call(func() { panic("the callback's") }) })
			free()
			over := make(chan struct{})
			go func() {
				defer close(over)
				call(runtime.Goexit)
			}()
			<-over
			free()
		})
	}
}

func TestFakeIsNotReentrant(t *testing.T) {
	l, other := fencetest.NewLocker(), fencetest.NewLocker()
	nothing := func(context.Context) error { return nil }
	require.NoError(t, l.DoAdvisory(t.Context(), "x", func(ctx context.Context) error {
		for name, inner := range map[string]context.Context{
			"itself": ctx, "a value": context.WithValue(ctx, fakeValueKey{}, 1), "uncancelled": context.WithoutCancel(ctx),
		} {
			err := l.DoAdvisory(inner, "x", nothing)
			require.ErrorIs(t, err, fencelock.ErrReentrant, name)
			assert.NotErrorIs(t, err, fencelock.ErrNotAcquired, name)
			assert.EqualError(t, err, fencelock.ErrReentrant.Error()+` (lock "x")`)
		}
		require.NoError(t, other.DoAdvisory(ctx, "x", nothing), "another Locker's is another lock")
		return l.DoAdvisory(ctx, "y", func(ctx context.Context) error {
			assert.ErrorIs(t, l.DoAdvisory(ctx, "x", nothing), fencelock.ErrReentrant, "another lock in between")
			return nil
		})
	}))
	// It is the hold that counts: lost is not over, released is.
	var late context.Context
	require.ErrorIs(t, l.DoAdvisory(t.Context(), "x", func(ctx context.Context) error {
		late = context.WithoutCancel(ctx)
		require.True(t, l.Lose("x", fencelock.LostDeleted))
		assert.ErrorIs(t, l.DoAdvisory(late, "x", nothing), fencelock.ErrReentrant)
		return nil
	}), fencelock.ErrLost)
	require.NoError(t, l.DoAdvisory(late, "x", nothing))
}

func TestFakeLosingTheOuterEndsTheInnersContext(t *testing.T) {
	for name, derive := range map[string]func(context.Context) context.Context{
		"a child": func(ctx context.Context) context.Context { return ctx }, "uncancelled": context.WithoutCancel,
	} {
		t.Run(name, func(t *testing.T) {
			l, inner := fencetest.NewLocker(), fencetest.NewLocker()
			err := l.DoAdvisory(t.Context(), "outer", func(ctx context.Context) error {
				return inner.DoAdvisory(derive(ctx), "between", func(ctx context.Context) error {
					return l.DoAdvisory(derive(ctx), "inner", func(ctx context.Context) error {
						require.NoError(t, ctx.Err())
						require.True(t, l.Lose("outer", fencelock.LostExpired))
						require.ErrorIs(t, ctx.Err(), context.Canceled)
						var lost *fencelock.LostError
						require.ErrorAs(t, context.Cause(ctx), &lost)
						assert.Equal(t, "outer", lost.Name)
						_, held := l.Holder("inner")
						assert.True(t, held, "the inner lock itself is not lost")
						return nil
					})
				})
			})
			require.ErrorIs(t, err, fencelock.ErrLost)

			// The other way round nothing is lost.
			require.NoError(t, l.DoAdvisory(t.Context(), "outer", func(ctx context.Context) error {
				assert.ErrorIs(t, l.DoAdvisory(ctx, "inner", func(context.Context) error {
					assert.True(t, l.Lose("inner", fencelock.LostExpired))
					return nil
				}), fencelock.ErrLost)
				return ctx.Err()
			}))
		})
	}
}

func TestFakeLosingTheOuterWhileTheInnerWaits(t *testing.T) {
	fakeBubble(t, func(t *testing.T, c fakeCalls) {
		outer, outerResult := c.do(t.Context(), "outer")
		o := fakeNow(t, outer)
		other, otherResult := c.do(t.Context(), "inner")
		inner, innerResult := c.do(context.WithoutCancel(o.ctx), "inner")
		_, childResult := c.do(o.ctx, "inner")
		require.True(t, c.l.Lose("outer", fencelock.LostExpired))
		// The wait of a child of the context is over.
		err := fakeNow(t, childResult)
		require.ErrorIs(t, err, fencelock.ErrNotAcquired)
		require.ErrorIs(t, err, fencelock.ErrLost)
		// The other one gets the lock, and hears of the loss.
		fakeNow(t, other).finish <- nil
		require.NoError(t, fakeNow(t, otherResult))
		i := fakeNow(t, inner)
		var lost *fencelock.LostError
		require.ErrorAs(t, context.Cause(i.ctx), &lost)
		assert.Equal(t, "outer", lost.Name)
		i.finish <- nil
		require.NoError(t, fakeNow(t, innerResult))
		o.finish <- nil
		require.ErrorIs(t, fakeNow(t, outerResult), fencelock.ErrLost)
	})
}

func TestFakeTokenRegression(t *testing.T) {
	l := fencetest.NewLocker()
	higher, err := fencelock.ParseToken("x", "9000000000.another")
	require.NoError(t, err)
	var fence, others fencelock.Fence
	require.NoError(t, fence.Advance(higher))
	elsewhere, err := fencelock.ParseToken("y", "2.b")
	require.NoError(t, err)
	older, err := fencelock.ParseToken("y", "1.a")
	require.NoError(t, err)
	require.NoError(t, others.Advance(elsewhere))
	err = l.Do(t.Context(), "x", func(_ context.Context, token fencelock.Token) error {
		return errors.Join(errFakeWork, others.Advance(older), fence.Advance(token))
	})
	for _, want := range []error{fencelock.ErrTokenRegression, fencelock.ErrStale, errFakeWork} {
		require.ErrorIs(t, err, want)
	}
	assert.ErrorContains(t, err, higher.String())
	err = l.Do(t.Context(), "x", func(context.Context, fencelock.Token) error { return others.Advance(older) })
	require.ErrorIs(t, err, fencelock.ErrStale)
	assert.NotErrorIs(t, err, fencelock.ErrTokenRegression, "another lock's token")
	err = l.DoAdvisory(t.Context(), "x", func(context.Context) error {
		token, _ := l.Holder("x")
		return fence.Advance(token)
	})
	require.ErrorIs(t, err, fencelock.ErrStale)
	assert.NotErrorIs(t, err, fencelock.ErrTokenRegression, "an advisory lock has no tokens")
}

func TestFakeBadCalls(t *testing.T) {
	l := fencetest.NewLocker()
	fn := func(context.Context, fencelock.Token) error { return errors.New("the callback ran") }
	advisory := func(context.Context) error { return errors.New("the callback ran") }
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, call := range map[string]func(ctx context.Context, lock string, opts ...fencelock.LockOption) error{
		"Do": func(ctx context.Context, lock string, opts ...fencelock.LockOption) error {
			return l.Do(ctx, lock, fn, opts...)
		},
		"DoAdvisory": func(ctx context.Context, lock string, opts ...fencelock.LockOption) error {
			return l.DoAdvisory(ctx, lock, advisory, opts...)
		},
		"Lead": func(ctx context.Context, lock string, opts ...fencelock.LockOption) error {
			return l.Lead(ctx, lock, fn, opts...)
		},
	} {
		for _, lock := range []string{"", strings.Repeat("n", 1025)} {
			assert.ErrorIs(t, call(t.Context(), lock), fencelock.ErrInvalidName, name)
			assert.ErrorIs(t, call(ended, lock), fencelock.ErrInvalidName, name)
		}
		var none context.Context
		assert.ErrorIs(t, call(none, "x"), fencelock.ErrInvalidOption, name)
		for _, bad := range []fencelock.LockOption{nil, fencelock.MaxWait(-1), fencelock.MaxHold(0)} {
			assert.ErrorIs(t, call(t.Context(), "x", fencelock.MaxWait(1), bad), fencelock.ErrInvalidOption, name)
		}
		err := call(ended, "x")
		require.ErrorIs(t, err, context.Canceled, name)
		var failed *fencelock.AcquireError
		require.ErrorAs(t, err, &failed, name)
		assert.Equal(t, fencelock.PhaseLease, failed.Phase, name)
	}
	assert.ErrorIs(t, l.Do(t.Context(), "x", nil), fencelock.ErrInvalidOption)
	assert.ErrorIs(t, l.DoAdvisory(t.Context(), "x", nil), fencelock.ErrInvalidOption)
	assert.ErrorIs(t, l.Lead(t.Context(), "x", nil), fencelock.ErrInvalidOption)
	assert.ErrorIs(t, l.DoAdvisory(t.Context(), "x", advisory, fencelock.RequireTokenUse()), fencelock.ErrInvalidOption)
	unused := func(context.Context, fencelock.Token) error { return nil }
	require.ErrorIs(t, l.Do(t.Context(), "x", unused, fencelock.RequireTokenUse()), fencelock.ErrTokenUnused)
	require.NoError(t, l.Do(t.Context(), "x", unused))
	require.NoError(t, l.Do(t.Context(), "x", func(_ context.Context, token fencelock.Token) error {
		_, err := token.MarshalText()
		return err
	}, fencelock.RequireTokenUse()))
	failure := errors.New("the work failed")
	require.Equal(t, failure, l.Do(t.Context(), "x", func(context.Context, fencelock.Token) error { return failure }, fencelock.RequireTokenUse()))
	_, held := l.Holder("x")
	assert.False(t, held)
}

// When the grant and the end of the call come at one moment either may win; the lock
// must not stay with a call that is over.
func TestFakeGrantAtTheLastMoment(t *testing.T) {
	granted := 0
	for name, end := range map[string]func(cancel context.CancelFunc){
		"its context ends": func(cancel context.CancelFunc) { cancel() },
		"MaxWait runs out": func(context.CancelFunc) {}, // at the time of the loss
	} {
		t.Run(name, func(t *testing.T) {
			for range 100 {
				fakeBubble(t, func(t *testing.T, c fakeCalls) {
					runs, result := c.do(t.Context(), "x")
					holder := fakeNow(t, runs)
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					ran, waited := c.do(ctx, "x", fencelock.MaxWait(time.Minute))
					time.Sleep(time.Minute)
					require.True(t, c.l.Lose("x", fencelock.LostDeleted))
					end(cancel)
					synctest.Wait()
					select {
					case r := <-ran:
						granted++
						r.finish <- nil
						require.NoError(t, fakeNow(t, waited))
					default:
						err := fakeNow(t, waited)
						require.ErrorIs(t, err, fencelock.ErrNotAcquired)
						var notIn *fencelock.HeldError
						if errors.As(err, &notIn) {
							assert.True(t, notIn.Holder.Token.Equal(holder.token), "it was in time, or the lock was not free")
						}
					}
					_, held := c.l.Holder("x")
					assert.False(t, held)
					holder.finish <- nil
					require.ErrorIs(t, fakeNow(t, result), fencelock.ErrLost)
				})
			}
		})
	}
	t.Logf("%d of 200 were granted", granted)
}
