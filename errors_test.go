package fencelock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// sentinels are all that errors.Is can be asked for.
var sentinels = []error{
	ErrInvalidOption, ErrInvalidName, ErrInvalidToken, ErrNotAcquired, ErrHeld, ErrReentrant, ErrClosed, ErrReleased,
	ErrLost, ErrUnconfirmed, ErrStale, ErrNoToken, ErrScope, ErrTokenRegression, ErrTokenUnused, ErrForeignKey, ErrNotHeld,
}

// requireIs asks that err is each of want, and no other sentinel.
func requireIs(t *testing.T, err error, want ...error) {
	t.Helper()
	for _, w := range want {
		require.ErrorIs(t, err, w)
	}
	for _, s := range sentinels {
		if !errorIsAny(s, want) {
			require.NotErrorIs(t, err, s)
		}
	}
}

func errorIsAny(err error, of []error) bool {
	for _, o := range of {
		if errors.Is(o, err) {
			return true
		}
	}
	return false
}

func requireAs[T error](t *testing.T, err error) T {
	t.Helper()
	var as T
	require.ErrorAs(t, err, &as)
	return as
}

func TestErrorRelations(t *testing.T) {
	stale := &StaleError{Scope: "n", Presented: token("n", 3, "a"), Highest: token("n", 5, "b")}
	other := errors.New("the callback's own")
	for name, c := range map[string]struct {
		err  error
		is   []error
		says []string
	}{
		"not acquired": {
			&AcquireError{Name: "n", Phase: PhaseQueue, Err: fmt.Errorf("%w: %w", context.DeadlineExceeded, rpctypes.ErrNoSpace)},
			[]error{ErrNotAcquired, context.DeadlineExceeded, rpctypes.ErrNoSpace},
			[]string{`"n"`, "queue", "database space exceeded"},
		},
		"closed while acquiring": {
			&AcquireError{Name: "n", Phase: PhaseWait, Err: ErrClosed},
			[]error{ErrNotAcquired, ErrClosed},
			[]string{"wait", "closed"},
		},
		"held": {
			&HeldError{Name: "n", Holder: Claim{Token: token("n", 3, "a"), Label: "worker 7"}},
			[]error{ErrHeld, ErrNotAcquired},
			[]string{`"n"`, "worker 7", "3.a"},
		},
		"held by nobody known": {
			&HeldError{Name: "n"},
			[]error{ErrHeld, ErrNotAcquired},
			[]string{`"n"`},
		},
		"lost": {
			&LostError{Name: "n", Token: token("n", 3, "a"), Reason: LostExpired},
			[]error{ErrLost},
			[]string{`"n"`, "3.a", "expired"},
		},
		"lost, as etcd said": {
			&LostError{Name: "n", Reason: LostRevoked, Err: rpctypes.ErrLeaseNotFound},
			[]error{ErrLost, rpctypes.ErrLeaseNotFound},
			[]string{"revoked", "lease not found"},
		},
		"stale": {
			stale,
			[]error{ErrStale},
			[]string{`"n"`, "3.a", "5.b", "not applied"},
		},
		"regression": {
			&regressionError{stale: stale, err: errors.Join(other, stale)},
			[]error{ErrTokenRegression, ErrStale, other},
			[]string{"3.a", "5.b", "--bump-revision", "share one mark"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, err := range []error{c.err, fmt.Errorf("wrapped: %w", c.err), errors.Join(other, c.err)} {
				requireIs(t, err, c.is...)
			}
			assert.True(t, strings.HasPrefix(c.err.Error(), "fencelock: "), c.err.Error())
			for _, s := range c.says {
				assert.Contains(t, c.err.Error(), s)
			}
		})
	}
	assert.Same(t, stale, requireAs[*StaleError](t, &regressionError{stale: stale, err: stale}))
}

func TestSentinelsAreApart(t *testing.T) {
	for _, err := range sentinels {
		requireIs(t, err, err)
		assert.True(t, strings.HasPrefix(err.Error(), "fencelock: "), err.Error())
	}
}

// The errors of calls: what each is, whether the callback ran, what it leaves.

func TestErrNotAcquired(t *testing.T) {
	noSpace := fault{err: rpctypes.ErrGRPCNoSpace}
	for name, c := range map[string]struct {
		fault func(kind string, req any) fault
		phase Phase
		is    []error
		left  time.Duration // how long something is left
	}{
		"no lease granted": {
			fault: only(fakeGrant, noSpace),
			phase: PhaseLease,
			is:    []error{rpctypes.ErrNoSpace},
		},
		"no answer to the grant": {
			fault: only(fakeGrant, fault{loseReply: true}),
			phase: PhaseLease,
			is:    []error{context.DeadlineExceeded},
			left:  defaultTTL, // a lease that nobody knows, with no key on it
		},
		"not put into the queue": {
			fault: only(fakeTxn, noSpace),
			phase: PhaseQueue,
			is:    []error{rpctypes.ErrNoSpace},
		},
		"denied": {
			fault: only(fakeTxn, fault{err: rpctypes.ErrGRPCPermissionDenied}),
			phase: PhaseQueue,
			is:    []error{rpctypes.ErrPermissionDenied},
		},
		"no answer from the queue": {
			fault: once(fakeTxn, fault{loseReply: true}),
			phase: PhaseQueue,
			is:    []error{context.DeadlineExceeded},
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
				locker := newLocker(t, l)
				l.intercept(c.fault)
				err := locker.Do(within(t, time.Second), "n", neverRun(t))
				requireIs(t, err, append(c.is, ErrNotAcquired)...)
				as := requireAs[*AcquireError](t, err)
				assert.Equal(t, "n", as.Name)
				assert.Equal(t, c.phase, as.Phase)

				l.intercept(nil)
				require.NoError(t, locker.Close())
				assert.Empty(t, e.keys("fencelock/"))
				time.Sleep(c.left)
				requireNothingLeft(t, e)
			})
		})
	}
}

// once is only, for the first request of the kind.
func once(kind string, f fault) func(string, any) fault {
	var done atomic.Bool
	return func(k string, _ any) fault {
		if k == kind && done.CompareAndSwap(false, true) {
			return f
		}
		return fault{}
	}
}

func requireNothingLeft(t *testing.T, e *fakeEtcd) {
	t.Helper()
	require.Empty(t, e.keys("fencelock/"))
	require.Empty(t, e.expiries())
}

func TestErrNotAcquiredWhileWaiting(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		holder, waiter := newLocker(t, l), newLocker(t, e.dial(t))
		lock, err := holder.Acquire(t.Context(), "n")
		require.NoError(t, err)

		err = waiter.Do(within(t, 3*time.Second), "n", neverRun(t))
		requireIs(t, err, ErrNotAcquired, context.DeadlineExceeded)
		assert.Equal(t, PhaseWait, requireAs[*AcquireError](t, err).Phase)
		synctest.Wait()
		assert.Len(t, e.keys("fencelock/"), 1, "the waiter left the queue")
		require.NoError(t, lock.Release(t.Context()))
	})
}

// lateContext ends at a moment that no select can see: after the call has its
// answer and before it hands the lock out.
type lateContext struct {
	context.Context
	ended atomic.Bool
}

func (c *lateContext) Err() error {
	if c.ended.Load() {
		return context.Canceled
	}
	return nil
}

func TestErrNotAcquiredAtTheLastMoment(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		ctx := &lateContext{Context: context.Background()}
		l.intercept(func(kind string, _ any) fault {
			ctx.ended.Store(kind == fakeTxn)
			return fault{}
		})
		_, err := newLocker(t, l).Acquire(ctx, "n")
		requireIs(t, err, ErrNotAcquired, context.Canceled)
		assert.Equal(t, PhaseGrant, requireAs[*AcquireError](t, err).Phase)
		synctest.Wait()
		assert.Empty(t, e.keys("fencelock/"))
	})
}

func TestErrForeignKey(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		mustPut(t, l, "fencelock/n/stray")
		for method, call := range acquiringCalls(t, newLocker(t, l)) {
			err := call(t.Context(), "n")
			requireIs(t, err, ErrNotAcquired, ErrForeignKey)
			assert.ErrorContains(t, err, `"fencelock/n/stray"`, method)
		}
		synctest.Wait()
		assert.Len(t, e.keys("fencelock/"), 1)
	})
}

func TestErrHeld(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		lock, err := newLocker(t, l, WithLabel("the holder")).Acquire(t.Context(), "n")
		require.NoError(t, err)
		other := newLocker(t, e.dial(t))
		for name, c := range map[string]struct {
			call func() error
			took time.Duration
		}{
			"TryAcquire": {func() error { _, err := other.TryAcquire(t.Context(), "n"); return err }, 0},
			"MaxWait(0)": {func() error { return other.Do(t.Context(), "n", neverRun(t), MaxWait(0)) }, 0},
			"MaxWait(2s)": {func() error { return other.DoAdvisory(t.Context(), "n", neverRunAdvisory(t), MaxWait(2*time.Second)) },
				2 * time.Second},
		} {
			start := time.Now()
			err := c.call()
			requireIs(t, err, ErrHeld, ErrNotAcquired)
			assert.Equal(t, c.took, time.Since(start), name)
			held := requireAs[*HeldError](t, err)
			assert.Equal(t, "n", held.Name)
			assert.True(t, held.Holder.Token.Equal(lock.Token()), name)
			assert.Equal(t, "the holder", held.Holder.Label)
			assert.Len(t, e.keys("fencelock/"), 1, "nothing is left behind")
		}
		require.NoError(t, lock.Release(t.Context()))
	})
}

func TestErrReentrant(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		locker, other := newLocker(t, l), newLocker(t, e.dial(t))
		calls := acquiringCalls(t, locker)
		require.NoError(t, locker.DoAdvisory(t.Context(), "n", func(ctx context.Context) error {
			sent := len(l.requests())
			inner, cancel := context.WithCancel(ctx)
			defer cancel()
			for _, call := range calls {
				requireIs(t, call(inner, "n"), ErrReentrant)
			}
			assert.Len(t, l.requests(), sent)

			// Neither of these waits for itself.
			_, err := other.TryAcquire(ctx, "n")
			require.ErrorIs(t, err, ErrHeld, "another Locker")
			return locker.DoAdvisory(ctx, "m", func(ctx context.Context) error {
				requireIs(t, calls["Do"](ctx, "n"), ErrReentrant)
				return nil
			})
		}))

		lock, err := locker.Acquire(t.Context(), "n")
		require.NoError(t, err)
		requireIs(t, calls["TryAcquire"](lock.Context(), "n"), ErrReentrant)
		require.NoError(t, lock.Release(t.Context()))
		again, err := locker.Acquire(context.WithoutCancel(lock.Context()), "n")
		require.NoError(t, err, "the hold was released")
		require.NoError(t, again.Release(t.Context()))
	})
}

func TestErrClosed(t *testing.T) {
	for name, end := range map[string]func(*testing.T, *Locker) error{
		"Close":    func(_ *testing.T, l *Locker) error { return l.Close() },
		"Shutdown": func(t *testing.T, l *Locker) error { return l.Shutdown(t.Context()) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
				locker := newLocker(t, l)
				require.NoError(t, locker.DoAdvisory(t.Context(), "n", func(context.Context) error { return nil }))
				require.NoError(t, end(t, locker))
				sent := len(l.requests())

				for _, call := range acquiringCalls(t, locker) {
					requireIs(t, call(t.Context(), "n"), ErrClosed)
				}
				_, err := locker.Inspect(t.Context(), "n")
				requireIs(t, err, ErrClosed)
				_, err = listed(t.Context(), locker)
				requireIs(t, err, ErrClosed)
				requireIs(t, locker.Evict(t.Context(), "n", token("n", 7, "h")), ErrClosed)
				requireIs(t, locker.Shutdown(t.Context()), ErrClosed)
				require.NoError(t, locker.Close(), "its first result again")
				assert.Len(t, l.requests(), sent)
				requireNothingLeft(t, e)
			})
		})
	}
}

func TestErrClosedWhileWaiting(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		lock, err := newLocker(t, l).Acquire(t.Context(), "n")
		require.NoError(t, err)
		waiter := newLocker(t, e.dial(t))
		got := make(chan error, 1)
		go func() { got <- waiter.Do(t.Context(), "n", neverRun(t)) }()
		synctest.Wait()
		require.NoError(t, waiter.Close())
		err = <-got
		requireIs(t, err, ErrNotAcquired, ErrClosed)
		assert.Equal(t, PhaseWait, requireAs[*AcquireError](t, err).Phase)
		assert.Len(t, e.keys("fencelock/"), 1)
		require.NoError(t, lock.Release(t.Context()))
	})
}

// losses are the ways to lose a lock, each with what makes it happen.
func losses() map[Reason]loss {
	return map[Reason]loss{
		LostExpired: {by: func(t *testing.T, x lossScene) { x.link.cut(); t.Cleanup(x.link.heal) }},
		LostRevoked: {by: func(t *testing.T, x lossScene) {
			x.link.deafen() // else the deleted key is seen first
			_, err := x.other.client.Revoke(t.Context(), clientv3.LeaseID(x.e.keys("fencelock/")[0].Lease))
			require.NoError(t, err)
		}, is: rpctypes.ErrLeaseNotFound},
		LostDeleted: {by: func(t *testing.T, x lossScene) {
			_, err := x.other.client.Delete(t.Context(), "fencelock/", clientv3.WithPrefix())
			require.NoError(t, err)
		}},
		LostDenied: {by: func(_ *testing.T, x lossScene) {
			x.link.intercept(only(fakeKeepAlive, fault{err: rpctypes.ErrGRPCPermissionDenied}))
		}, is: rpctypes.ErrPermissionDenied},
		LostMaxHold: {opts: []LockOption{MaxHold(time.Second)}},
		LostClosed:  {by: func(_ *testing.T, x lossScene) { go func() { _ = x.locker.Close() }() }},
		LostSession: {adopted: true, by: func(t *testing.T, x lossScene) {
			x.link.deafen()
			_, err := x.other.client.Revoke(t.Context(), x.session.Lease())
			require.NoError(t, err)
		}, is: rpctypes.ErrLeaseNotFound},
	}
}

type loss struct {
	by      func(*testing.T, lossScene)
	opts    []LockOption
	adopted bool
	is      error // what etcd said
}

type lossScene struct {
	e           *fakeEtcd
	link, other *fakeLink
	locker      *Locker
	session     *concurrency.Session
}

func TestErrLost(t *testing.T) {
	for reason, c := range losses() {
		t.Run(string(reason), func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
				x := lossScene{e: e, link: l, other: e.dial(t)}
				var opts []Option
				if c.adopted {
					x.session = newSession(t, l, 15)
					opts = append(opts, WithSession(x.session))
				}
				x.locker = newLocker(t, l, opts...)
				lock, err := x.locker.Acquire(t.Context(), "n", c.opts...)
				require.NoError(t, err)
				time.Sleep(750 * time.Millisecond) // its key is watched by now
				require.NoError(t, lock.Err())
				if c.by != nil {
					c.by(t, x)
				}
				<-lock.Context().Done()
				lostAt := time.Now()

				for from, err := range map[string]error{"Err": lock.Err(), "Cause": context.Cause(lock.Context())} {
					requireLost(t, err, c, lock, reason)
					lost := requireAs[*LostError](t, err)
					assert.Zero(t, lost.Returned, from)
					assert.WithinDuration(t, lostAt, lost.LostAt, 0, from)
				}
				assert.ErrorIs(t, lock.Context().Err(), context.Canceled)

				time.Sleep(time.Second)
				err = lock.Release(within(t, 5*time.Second))
				requireLost(t, err, c, lock, reason)
				assert.WithinDuration(t, lostAt.Add(time.Second), requireAs[*LostError](t, err).Returned, 0)
				assert.Equal(t, err, lock.Release(t.Context()), "the first result again")
				requireLost(t, lock.Err(), c, lock, reason)
			})
		})
	}
}

func requireLost(t *testing.T, err error, c loss, lock *Lock, reason Reason) {
	t.Helper()
	is := []error{ErrLost}
	if c.is != nil {
		is = append(is, c.is)
	}
	requireIs(t, err, is...)
	lost := requireAs[*LostError](t, err)
	assert.Equal(t, reason, lost.Reason)
	assert.Equal(t, lock.Name(), lost.Name)
	assert.True(t, lost.Token.Equal(lock.Token()))
	assert.False(t, lost.LastConfirmed.IsZero())
	assert.False(t, lost.LastConfirmed.After(lost.LostAt))
}

// nil from the callback after a loss is still a loss.
func TestErrLostFromDo(t *testing.T) {
	own := errors.New("the callback's own")
	for name, ret := range map[string]error{"nil": nil, "error": own} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
				other := e.dial(t)
				err := newLocker(t, l).Do(t.Context(), "n", func(ctx context.Context, _ Token) error {
					time.Sleep(time.Second)
					_, err := other.client.Delete(t.Context(), "fencelock/", clientv3.WithPrefix())
					require.NoError(t, err)
					<-ctx.Done()
					time.Sleep(time.Second)
					return ret
				})
				is := []error{ErrLost}
				if ret != nil {
					is = append(is, ret)
				}
				requireIs(t, err, is...)
				lost := requireAs[*LostError](t, err)
				assert.Equal(t, LostDeleted, lost.Reason)
				assert.Equal(t, time.Second, lost.Returned.Sub(lost.LostAt))
			})
		})
	}
}

// A lock whose key is not there when it is released was lost, though nobody
// had noticed.
func TestErrLostFoundAtTheRelease(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		lock, err := newLocker(t, l).Acquire(t.Context(), "n")
		require.NoError(t, err)
		_, err = e.dial(t).client.Delete(t.Context(), "fencelock/", clientv3.WithPrefix())
		require.NoError(t, err)
		require.NoError(t, lock.Err())
		err = lock.Release(t.Context())
		requireIs(t, err, ErrLost)
		assert.Equal(t, LostDeleted, requireAs[*LostError](t, err).Reason)
		requireIs(t, lock.Err(), ErrLost)
	})
}

func TestErrUnconfirmed(t *testing.T) {
	own := errors.New("the callback's own")
	lost := map[string]fault{"the request is lost": {loseRequest: true}, "the reply is lost": {loseReply: true}}
	for name, f := range lost {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
				locker := newLocker(t, l)
				start := time.Now()
				err := locker.Do(t.Context(), "n", func(context.Context, Token) error {
					l.intercept(only(fakeTxn, f))
					return own
				})
				requireIs(t, err, ErrUnconfirmed, own)
				assert.Equal(t, 5*time.Second, time.Since(start))

				l.intercept(nil)
				time.Sleep(10 * time.Second)
				assert.Empty(t, e.keys("fencelock/"), "it goes on being deleted")

				lock, err := locker.Acquire(t.Context(), "n")
				require.NoError(t, err)
				l.intercept(only(fakeTxn, f))
				requireIs(t, lock.Release(within(t, time.Second)), ErrUnconfirmed)
				requireIs(t, lock.Release(t.Context()), ErrUnconfirmed)
				l.intercept(nil)
				require.NoError(t, locker.Close())
				requireNothingLeft(t, e)
			})
		})
	}
}

// After an attempt without an answer nobody can tell who deleted the key.
func TestErrUnconfirmedWhenTheSecondAttemptFindsNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		lock, err := newLocker(t, l).Acquire(t.Context(), "n")
		require.NoError(t, err)
		l.intercept(once(fakeTxn, fault{loseReply: true}))
		requireIs(t, lock.Release(t.Context()), ErrUnconfirmed)
		assert.Empty(t, e.keys("fencelock/"))
	})
}

func TestErrReleased(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		lock, err := newLocker(t, l).Acquire(t.Context(), "n")
		require.NoError(t, err)
		require.NoError(t, lock.Err())
		require.NoError(t, lock.Release(t.Context()))
		require.NoError(t, lock.Release(t.Context()), "the first result again")
		requireIs(t, lock.Err(), ErrReleased)
		requireIs(t, context.Cause(lock.Context()), ErrReleased)
		assert.ErrorIs(t, lock.Context().Err(), context.Canceled)
		assert.Equal(t, "n", lock.Name())
		assert.False(t, lock.Token().IsZero())
		assert.Empty(t, e.keys("fencelock/"))
	})
}

func TestErrTokenRegression(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *fakeEtcd, l *fakeLink) {
		locker := newLocker(t, l)
		seen := token("n", 1_000_000, "from-before-a-restore")
		fence := fenceAt(seen)
		var mine Token
		err := locker.Do(t.Context(), "n", func(_ context.Context, tok Token) error {
			mine = tok
			return fmt.Errorf("saving: %w", fence.Advance(tok))
		})
		requireIs(t, err, ErrTokenRegression, ErrStale)
		stale := requireAs[*StaleError](t, err)
		assert.True(t, stale.Presented.Equal(mine))
		assert.True(t, stale.Highest.Equal(seen))
		for _, s := range []string{mine.String(), seen.String(), "--bump-revision", "saving: "} {
			assert.ErrorContains(t, err, s)
		}

		// Somebody else's token that was refused says nothing of this hold.
		err = locker.Do(t.Context(), "n", func(context.Context, Token) error {
			return fence.Advance(token("n", 7, "old"))
		})
		requireIs(t, err, ErrStale)
	})
}

func TestErrTokenUnused(t *testing.T) {
	own := errors.New("the callback's own")
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		unused := 0
		locker := newLocker(t, l, WithHooks(Hooks{TokenUnused: func(TokenUnusedInfo) { unused++ }}))
		do := func(ret error, use bool, opts ...LockOption) error {
			return locker.Do(t.Context(), "n", func(_ context.Context, tok Token) error {
				if use {
					tok.Revision()
				}
				return ret
			}, opts...)
		}
		requireIs(t, do(nil, false, RequireTokenUse()), ErrTokenUnused)
		assert.Equal(t, 1, unused)
		assert.Empty(t, e.keys("fencelock/"), "the lock was released")

		require.NoError(t, do(nil, false), "only a warning")
		assert.Equal(t, 2, unused)
		require.NoError(t, do(nil, true, RequireTokenUse()))
		requireIs(t, do(own, false, RequireTokenUse()), own)
		assert.Equal(t, 2, unused, "who failed may not have come to its token")
	})
}

// A permission that is withdrawn is named with the keys it concerns.
func TestDeniedSaysWhichKeys(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *fakeEtcd, l *fakeLink) {
		l.intercept(only(fakeTxn, fault{err: rpctypes.ErrGRPCPermissionDenied}))
		locker := newLocker(t, l, WithPrefix("app/locks/"))
		err := locker.Do(t.Context(), "n", neverRun(t))
		requireIs(t, err, ErrNotAcquired, rpctypes.ErrPermissionDenied)
		assert.ErrorContains(t, err, `"app/locks/n/"`)
		assert.Len(t, l.requests(fakeTxn), 1, "it is not tried again")
	})
}
