package fencelock

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// What a release returns depends on which attempt was answered, and how. An
// attempt is repeated after 2 s without an answer.
func TestReleaseOutcome(t *testing.T) {
	lostRequest, lostReply := fault{loseRequest: true}, fault{loseReply: true}
	ambiguous := rpctypes.ErrGRPCTimeout
	for name, c := range map[string]struct {
		gone     bool // the key, before the release
		faults   []fault
		is       error // nil: confirmed
		attempts int   // the first of the keeper's included, which follows at once
	}{
		"found at once":                       {attempts: 1},
		"gone at the first answer":            {gone: true, is: ErrLost, attempts: 1},
		"found after a lost request":          {faults: []fault{lostRequest}, attempts: 2},
		"found after two":                     {faults: []fault{lostRequest, lostRequest}, attempts: 3},
		"found, while the first is under way": {faults: []fault{{requestDelay: 10 * time.Second}}, attempts: 2},
		"found after an error":                {faults: []fault{{err: ambiguous}}, attempts: 2},
		"gone after a lost reply":             {faults: []fault{lostReply}, is: ErrUnconfirmed, attempts: 2},
		"gone after a late reply":             {faults: []fault{{replyDelay: 2500 * time.Millisecond}}, is: ErrUnconfirmed, attempts: 2},
		"gone after an error, carried out":    {faults: []fault{{errAfter: ambiguous}}, is: ErrUnconfirmed, attempts: 2},
		"gone all along, the first was lost":  {gone: true, faults: []fault{lostRequest}, is: ErrUnconfirmed, attempts: 2},
		"never answered":                      {faults: []fault{lostReply, lostReply, lostReply, lostReply}, is: ErrUnconfirmed, attempts: 3 + 1},
		"denied":                              {faults: []fault{{err: rpctypes.ErrGRPCPermissionDenied}}, is: ErrUnconfirmed, attempts: 1 + 1},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
				var released []ReleasedInfo
				locker := newLocker(t, l, WithHooks(Hooks{Released: func(i ReleasedInfo) { released = append(released, i) }}))
				lock := mustAcquire(t, locker, "n")
				time.Sleep(400 * time.Millisecond)
				if c.gone {
					e.deleteKey(t, lock.entry.key)
				}
				l.intercept(deletes.fates(c.faults...))
				called := time.Now()
				err := lock.Release(within(t, 5*time.Second))
				took := time.Since(called)
				if c.is != nil {
					requireIs(t, err, c.is)
				} else {
					require.NoError(t, err)
				}
				synctest.Wait()
				assert.Len(t, deletes.of(l), c.attempts)
				assert.Equal(t, err, lock.Release(t.Context()), "the first result again")

				if c.is == ErrLost {
					assert.Empty(t, released)
					return
				}
				require.Len(t, released, 1)
				assert.Equal(t, c.is == nil, released[0].Confirmed)
				assert.Equal(t, err, released[0].Err)
				assert.Equal(t, 400*time.Millisecond, released[0].Held)
				assert.Equal(t, took, released[0].Took)
			})
		})
	}
}

// A request that was held up in the network until the same process holds the
// lock again, in the same slot, must not release that.
func TestDelayedReleaseLeavesTheNextHoldAlone(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		locker := newLocker(t, l)
		lock := mustAcquire(t, locker, "n")
		l.intercept(deletes.first(1, fault{requestDelay: time.Minute}))
		require.NoError(t, lock.Release(t.Context()), "the second attempt")
		again := mustAcquire(t, locker, "n")
		require.Equal(t, lock.entry.key, again.entry.key)
		time.Sleep(2 * time.Minute)
		require.False(t, deletes.of(l)[0].arrived.IsZero())
		require.NoError(t, again.Err())
		keys, revs := queueOf(e, "n")
		assert.Equal(t, []string{again.entry.key}, keys)
		assert.Equal(t, []int64{again.Token().Revision()}, revs)
		require.NoError(t, again.Release(t.Context()))
	})
}

// After ErrUnconfirmed the keeper goes on, with the lease renewed, until it has
// an answer; the slot is in use up to then.
func TestUnconfirmedReleaseGoesOn(t *testing.T) {
	for name, f := range map[string]fault{
		"requests lost": {loseRequest: true}, "replies lost": {loseReply: true}, "errors": {err: rpctypes.ErrGRPCTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
				locker := newLocker(t, l)
				lock, other := mustAcquire(t, locker, "n"), mustAcquire(t, locker, "other")
				next := acquireLater(t.Context(), newLocker(t, e.dial(t)), "n")
				l.intercept(deletes.all(f))
				require.ErrorIs(t, lock.Release(within(t, time.Second)), ErrUnconfirmed)
				time.Sleep(5 * time.Minute)
				require.NoError(t, other.Err())
				require.Equal(t, f.loseReply, next.isDone())
				mine := acquireLater(t.Context(), locker, "n")
				synctest.Wait()

				healed := time.Now()
				l.intercept(nil)
				got := next.granted(t)
				assert.LessOrEqual(t, time.Since(healed), 10*time.Second, "the attempt under way, and a pause")
				time.Sleep(10 * time.Second)
				require.NoError(t, got.Release(t.Context()))
				again := mine.granted(t)
				assert.Equal(t, 1, again.entry.slot)
				require.NoError(t, again.Release(t.Context()))
				last := mustAcquire(t, locker, "n")
				assert.Zero(t, last.entry.slot)
				require.NoError(t, last.Release(t.Context()))
				require.NoError(t, other.Release(t.Context()))
				sent := len(deletes.of(l))
				time.Sleep(time.Minute)
				assert.Len(t, deletes.of(l), sent)
			})
		})
	}
}

// How long a release tries, if nothing is answered.
func TestReleaseBound(t *testing.T) {
	for name, c := range map[string]struct {
		ttl  time.Duration
		ctx  func(t *testing.T) context.Context
		took time.Duration
	}{
		"an ended context": {ttl: 15 * time.Second, took: 5 * time.Second, ctx: func(t *testing.T) context.Context {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			return ctx
		}},
		"a deadline":            {ttl: 15 * time.Second, took: 3 * time.Second, ctx: func(t *testing.T) context.Context { return within(t, 3*time.Second) }},
		"no deadline":           {ttl: 15 * time.Second, took: 15 * time.Second, ctx: (*testing.T).Context},
		"no deadline, TTL of 2": {ttl: 2 * time.Second, took: 5 * time.Second, ctx: (*testing.T).Context},
		"cancelled meanwhile": {ttl: 15 * time.Second, took: 1300 * time.Millisecond, ctx: func(t *testing.T) context.Context {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(1300*time.Millisecond, cancel)
			return ctx
		}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
				locker := newLocker(t, l, WithTTL(c.ttl))
				lock := mustAcquire(t, locker, "n")
				l.cut()
				start := time.Now()
				err := lock.Release(c.ctx(t))
				assert.Equal(t, c.took, time.Since(start))
				// Also where the lease's deadline passed meanwhile: the holder
				// had stopped before.
				requireIs(t, err, ErrUnconfirmed)
				l.heal()
				time.Sleep(2*c.ttl + 10*time.Second)
				synctest.Wait()
				assert.Empty(t, e.keys("fencelock/"))
			})
		})
	}
}

// The release in Do does not depend on the caller's context and takes 5 s at
// most, however the callback ended.
func TestReleaseInDoIsBounded(t *testing.T) {
	for name, c := range map[string]struct {
		callback func(cancel context.CancelFunc)
		is       error
	}{
		"returned":                        {callback: func(context.CancelFunc) {}, is: ErrUnconfirmed},
		"returned with its context ended": {callback: func(cancel context.CancelFunc) { cancel() }, is: ErrUnconfirmed},
		"panicked":                        {callback: func(context.CancelFunc) { panic("stop") }},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, _ *fakeEtcd, l *fakeLink) {
				locker := newLocker(t, l)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				start := time.Now()
				do := func() error {
					return locker.Do(ctx, "n", func(context.Context, Token) error {
						l.cut()
						c.callback(cancel)
						return nil
					})
				}
				if c.is != nil {
					requireIs(t, do(), c.is)
				} else {
					require.PanicsWithValue(t, "stop", func() { _ = do() })
				}
				assert.Equal(t, 5*time.Second, time.Since(start))
				l.heal()
			})
		})
	}
}

// While one release is under way, another one waits for its result, as long as
// its own context lives.
func TestSecondReleaseWaitsForTheFirst(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *fakeEtcd, l *fakeLink) {
		lock := mustAcquire(t, newLocker(t, l), "n")
		l.intercept(deletes.all(fault{replyDelay: 1500 * time.Millisecond}))
		first := background(func(r *running) { r.err = lock.Release(t.Context()) })
		synctest.Wait()
		start := time.Now()
		requireIs(t, lock.Release(within(t, time.Second)), ErrUnconfirmed, context.DeadlineExceeded)
		assert.Equal(t, time.Second, time.Since(start))
		require.NoError(t, lock.Release(t.Context()))
		assert.Equal(t, 1500*time.Millisecond, time.Since(start))
		require.NoError(t, first.wait(t).err)
		assert.Len(t, deletes.of(l), 1)
	})
}
