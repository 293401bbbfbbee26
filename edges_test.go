package fencelock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// slowHandler is a log that takes its time, as one does whose pipe is full.
type slowHandler struct{ slog.Handler }

func (slowHandler) Enabled(context.Context, slog.Level) bool { return true }

func (slowHandler) Handle(context.Context, slog.Record) error {
	time.Sleep(5 * time.Second)
	return nil
}

// All holders on a lease are told before anything else is done about any of them.
// Where they are told one by one, with a log line and a hook between, the second
// goes on while another client has its lock already.
func TestSlowObserverDoesNotDelayHolders(t *testing.T) {
	const ttl = 10 * time.Second
	for name, opt := range map[string]Option{
		"log":                          WithLogger(slog.New(slowHandler{})),
		"hook":                         WithHooks(Hooks{Lost: func(LostInfo) { time.Sleep(5 * time.Second) }}),
		"hook that ends its goroutine": WithHooks(Hooks{Lost: func(LostInfo) { runtime.Goexit() }}),
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
				locker := newLocker(t, l, WithTTL(ttl), opt)
				start := time.Now()
				var told [3]atomic.Int64
				var held []*Lock
				for i := range told {
					k := mustAcquire(t, locker, fmt.Sprint("n", i))
					held = append(held, k)
					done := k.Context().Done()
					go func() {
						<-done
						told[i].Store(int64(time.Since(start)))
					}()
				}
				l.cut()
				time.Sleep(ttl - ttl/5 + 100*time.Millisecond)
				synctest.Wait()
				for i := range told {
					assert.InDelta(t, ttl-ttl/5, time.Duration(told[i].Load()), float64(100*time.Millisecond), "holder %d", i)
				}
				time.Sleep(time.Minute) // for the log and the hooks
				l.heal()
				for _, k := range held {
					_ = k.Release(t.Context())
				}
			})
		})
	}
}

// An observer that calls Goexit, as FailNow does, ends neither the keeper nor a
// call that has just got the lock.
func TestGoexitInAHook(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		exit := func() { runtime.Goexit() }
		locker := newLocker(t, l, WithTTL(6*time.Second), WithHooks(Hooks{
			Acquired: func(AcquiredInfo) { exit() },
			Renewed:  func(RenewedInfo) { exit() },
			Released: func(ReleasedInfo) { exit() },
		}))
		ran := false
		require.NoError(t, locker.Do(t.Context(), "n", func(ctx context.Context, token Token) error {
			ran = true
			time.Sleep(time.Minute)
			return errors.Join(use(token), ctx.Err())
		}))
		assert.True(t, ran)
		assert.Empty(t, e.keys("fencelock/n/"))
	})
}

func use(token Token) error {
	_, err := token.Value()
	return err
}

// The most natural call there is must not end its own release.
func TestReleaseWithTheLocksOwnContext(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		l.intercept(deletes.all(fault{requestDelay: time.Millisecond}))
		locker := newLocker(t, l)
		k := mustAcquire(t, locker, "n")
		require.NoError(t, k.Release(k.Context()))

		k = mustAcquire(t, locker, "n")
		ctx, cancel := context.WithTimeout(k.Context(), 3*time.Second)
		defer cancel()
		require.NoError(t, k.Release(ctx))

		outer := mustAcquire(t, locker, "outer")
		inner, err := locker.Acquire(outer.Context(), "inner")
		require.NoError(t, err)
		require.NoError(t, outer.Release(inner.Context()))
		require.NoError(t, inner.Release(t.Context()))

		// Its deadline still counts.
		k = mustAcquire(t, locker, "n")
		l.intercept(deletes.all(fault{loseRequest: true}))
		ctx, cancel = context.WithTimeout(k.Context(), time.Second)
		defer cancel()
		start := time.Now()
		require.ErrorIs(t, k.Release(ctx), ErrUnconfirmed)
		assert.LessOrEqual(t, time.Since(start), 1200*time.Millisecond)
		l.intercept(nil)
	})
}

func TestSecondReleaseIsBounded(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		locker := newLocker(t, l, WithTTL(time.Minute))
		k := mustAcquire(t, locker, "n")
		l.intercept(deletes.all(fault{loseRequest: true}))
		first := make(chan struct{})
		go func() {
			defer close(first)
			_ = k.Release(context.Background())
		}()
		synctest.Wait()
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		start := time.Now()
		require.ErrorIs(t, k.Release(ended), ErrUnconfirmed)
		assert.LessOrEqual(t, time.Since(start), attemptBound+200*time.Millisecond)
		l.intercept(nil)
		<-first
	})
}

// A margin that leaves less than a round trip makes every lease too old at once.
// That must be an error, and no storm of leases.
func TestMarginThatLeavesNoTime(t *testing.T) {
	const slow = 2 * time.Millisecond
	t.Run("own lease", func(t *testing.T) {
		inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
			l.intercept(func(string, any) fault { return fault{replyDelay: slow} })
			locker := newLocker(t, l, WithTTL(2*time.Second), WithMargin(2*time.Second-slow/2))
			_, err := locker.Acquire(t.Context(), "n") // without an end of its own
			require.ErrorIs(t, err, ErrNotAcquired)
			assert.ErrorContains(t, err, "WithMargin")
			assert.LessOrEqual(t, len(l.requests(fakeGrant)), 5)
		})
	})
	t.Run("adopted", func(t *testing.T) {
		inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
			s := orphan(t, l, 60)
			l.intercept(func(string, any) fault { return fault{replyDelay: slow} })
			locker := newLocker(t, l, WithSession(s), WithMargin(time.Minute-slow/2))
			_, err := locker.Acquire(t.Context(), "n")
			require.ErrorIs(t, err, ErrNotAcquired)
			assert.LessOrEqual(t, len(l.requests(fakeKeepAlive)), 10)
		})
	})
}

// What an unanswered grant may have left is in nobody's way, and must not make an
// alarm of an orderly end.
func TestCloseAfterAnUnansweredGrant(t *testing.T) {
	for name, grant := range map[string]fault{
		"lost": {loseReply: true},
		"late": {replyDelay: 8 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
				locker := newLocker(t, l, WithTTL(time.Hour))
				l.intercept(ofKind(fakeGrant).first(1, grant))
				_, err := locker.Acquire(within(t, time.Second), "n")
				require.ErrorIs(t, err, ErrNotAcquired)
				start := time.Now()
				require.NoError(t, locker.Close())
				assert.LessOrEqual(t, time.Since(start), attemptBound+200*time.Millisecond)
				time.Sleep(time.Hour + time.Minute)
				requireNothingLeft(t, e)
			})
		})
	}
}

// foreignContext is a context of a type that the standard library does not know,
// for which each child costs a goroutine.
type foreignContext struct {
	context.Context
	done chan struct{}
}

func (c *foreignContext) Done() <-chan struct{} { return c.done }
func (c *foreignContext) Err() error            { return nil }
func (c *foreignContext) Value(any) any         { return nil }

func TestFailedGrantLeavesNoContext(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		locker := newLocker(t, l)
		ctx := &foreignContext{context.Background(), make(chan struct{})}
		for i := range 10 {
			// The lease is lost while the answer to the join is under way.
			l.intercept(joins.first(1, fault{replyDelay: 50 * time.Millisecond}))
			time.AfterFunc(25*time.Millisecond, func() {
				locker.mu.Lock()
				le := locker.current
				locker.mu.Unlock()
				locker.loseLease(le, LostRevoked, nil)
			})
			require.NoError(t, locker.Do(ctx, fmt.Sprint("n", i), func(_ context.Context, token Token) error { return use(token) }))
		}
		synctest.Wait()
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		assert.NotContains(t, string(stacks), "propagateCancel")
	})
}

// With a TTL of a century a sum must not turn negative, and a lease be given up or
// renewed at each acquire for it.
func TestHugeTTL(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		locker := newLocker(t, l, WithTTL(9_000_000_000*time.Second))
		for range 5 {
			require.NoError(t, mustAcquire(t, locker, "n").Release(t.Context()))
		}
		assert.Empty(t, l.requests(fakeKeepAlive))
		k := mustAcquire(t, locker, "n")
		l.intercept(ofKind(fakeRevoke).first(3, fault{err: rpctypes.ErrGRPCTimeout}))
		locker.loseLease(k.entry.lease, LostRevoked, nil)
		require.ErrorIs(t, k.Release(t.Context()), ErrLost)
		time.Sleep(time.Minute)
		assert.Empty(t, e.keys("fencelock/n/"))
	})
}

// Close revokes while requests are under way, is denied, and deletes their keys one
// by one: under the race detector this reads what their answers write.
func TestDeniedRevokeBesideJoins(t *testing.T) {
	for range 20 { // whose order is the scheduler's
		inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
			locker := newLocker(t, l)
			require.NoError(t, mustAcquire(t, locker, "x").Release(t.Context()))
			l.intercept(func(kind string, req any) fault {
				switch {
				case joins(kind, req):
					return fault{replyDelay: 10 * time.Millisecond}
				case kind == fakeRevoke:
					return fault{err: rpctypes.ErrGRPCPermissionDenied, replyDelay: 9 * time.Millisecond}
				}
				return fault{}
			})
			for i := range 8 {
				acquireLater(t.Context(), locker, fmt.Sprint("n", i))
			}
			time.Sleep(time.Millisecond)
			require.ErrorIs(t, locker.Close(), ErrUnconfirmed)
			l.intercept(nil)
		})
	}
}

func TestRegressionBehindAnotherStaleError(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		locker := newLocker(t, l)
		err := locker.Do(t.Context(), "n", func(_ context.Context, tok Token) error {
			other := &StaleError{Scope: "o", Presented: token("o", 1, "x"), Highest: token("o", 2, "y")}
			ours := &StaleError{Scope: "n", Presented: tok, Highest: token("n", 1<<40, "y")}
			return fmt.Errorf("both: %w", errors.Join(other, ours))
		})
		assert.ErrorIs(t, err, ErrTokenRegression)
	})
}

func TestLeadSaysThatItsContextEnded(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		locker := newLocker(t, l)
		ctx, cancel := context.WithCancel(t.Context())
		err := locker.Lead(ctx, "n", func(c context.Context, tok Token) error {
			e.revokeLease(t, locker.current.id)
			<-c.Done()
			cancel()
			return use(tok)
		})
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, ErrLost)
	})
}

// Whoever may write into the queue can write anything there.
func TestForeignValuesAreShownBounded(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		locker := newLocker(t, l)
		id := mustGrant(t, l, 600)
		for key, value := range map[string]string{
			"n/" + strings.Repeat("k", 300): "x",
			"m/zz":                          `{"holder":"` + strings.Repeat("h", 500) + `","label":"x"}`,
			"o/":                            "x",
			"p/zz":                          `{"holder":"h","label":"` + strings.Repeat("L", 1<<20) + `"}`,
			"q/zz":                          `{"holder":"h","label":"first\nlevel=ERROR second"}`,
		} {
			_, err := l.client.Put(t.Context(), "fencelock/"+key, value, clientv3.WithLease(id))
			require.NoError(t, err)
		}
		for _, name := range []string{"n", "m", "o", "p", "q"} {
			_, err := locker.TryAcquire(t.Context(), name)
			held := requireAs[*HeldError](t, err)
			assert.Less(t, len(err.Error()), 1000, name)
			assert.NotContains(t, err.Error(), "\n")
			text, err := held.Holder.Token.MarshalText()
			require.NoError(t, err)
			_, err = ParseToken(name, string(text))
			assert.NoError(t, err, name)
		}
	})
}

// MaxWait can run out when the lock is free already and only the news of it is
// under way. Nobody holds it then.
func TestMaxWaitOverAtTheHead(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		locker, other := newLocker(t, l), newLocker(t, l)
		k := mustAcquire(t, other, "n")
		l.intercept(ofKind(fakeEvent).all(fault{replyDelay: 100 * time.Millisecond}))
		w := acquireLater(t.Context(), locker, "n", MaxWait(time.Second))
		time.Sleep(950 * time.Millisecond)
		require.NoError(t, k.Release(t.Context()))
		time.Sleep(time.Second)
		require.True(t, w.isDone())
		require.ErrorIs(t, w.err, ErrNotAcquired)
		assert.NotErrorIs(t, w.err, ErrHeld)
		assert.Empty(t, e.keys("fencelock/n/"))
	})
}

// An adopted lease that is only low is not taken for silent.
func TestAdoptedLeaseNearItsDeadline(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		locker := newLocker(t, l, WithSession(newSession(t, l, 60)))
		require.NoError(t, mustAcquire(t, locker, "n").Release(t.Context()))
		sent := locker.current.confirmed.Load().sent.Time()
		time.Sleep(48*time.Second - time.Since(sent) - time.Millisecond)
		l.intercept(func(string, any) fault { return fault{replyDelay: 3 * time.Millisecond} })
		k, err := locker.Acquire(t.Context(), "n")
		require.NoError(t, err)
		require.NoError(t, k.Release(t.Context()))
	})
}

// etcd says that it is out of space also of a request that it has carried out.
func TestOutOfSpaceLeavesNothing(t *testing.T) {
	for name, f := range map[string]fault{
		"carried out": {errAfter: rpctypes.ErrGRPCNoSpace}, "not carried out": {err: rpctypes.ErrGRPCNoSpace},
	} {
		for call, acquire := range map[string]func(*Locker, context.Context, string, ...LockOption) (*Lock, error){
			"Acquire": (*Locker).Acquire, "TryAcquire": (*Locker).TryAcquire,
		} {
			t.Run(name+"/"+call, func(t *testing.T) {
				inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
					locker := newLocker(t, l)
					kept := mustAcquire(t, locker, "kept")
					l.intercept(joins.first(1, f))
					_, err := acquire(locker, t.Context(), "n")
					require.ErrorIs(t, err, rpctypes.ErrNoSpace)
					synctest.Wait()
					assert.Len(t, e.keys("fencelock/"), 1, "a key that its holder knows nothing of")
					assert.Same(t, kept.entry.lease, locker.currentLease(), "the lease is good")
					again := mustAcquire(t, newLocker(t, l), "n", MaxWait(time.Second))
					require.NoError(t, again.Release(t.Context()))
					require.NoError(t, kept.Release(t.Context()))
				})
			})
		}
	}
}
