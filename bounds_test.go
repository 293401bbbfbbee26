package fencelock

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// stages bring a Locker on a link to where an acquire of "n" comes as far as a
// phase and is there still after some time, because nothing is answered.
var stages = map[Phase]struct {
	after time.Duration
	setUp func(t *testing.T, e *fakeEtcd, l *fakeLink, locker *Locker)
}{
	PhaseLease: {after: time.Second, setUp: func(_ *testing.T, _ *fakeEtcd, l *fakeLink, _ *Locker) { l.cut() }},
	PhaseQueue: {after: time.Second, setUp: func(t *testing.T, _ *fakeEtcd, l *fakeLink, locker *Locker) {
		require.NoError(t, mustAcquire(t, locker, "n").Release(t.Context()))
		l.cut()
	}},
	PhaseWait: {after: 10 * time.Second, setUp: func(t *testing.T, e *fakeEtcd, l *fakeLink, _ *Locker) {
		held := mustAcquire(t, newLocker(t, e.dial(t), WithTTL(time.Hour)), "n")
		time.AfterFunc(time.Second, l.cut)
		time.AfterFunc(time.Minute, func() { _ = held.Release(context.Background()) })
	}},
	// It heads the queue when its lease is past its deadline, at 12 s, and the
	// renewal that would prove it alive is not answered.
	PhaseGrant: {after: 12300 * time.Millisecond, setUp: func(t *testing.T, e *fakeEtcd, l *fakeLink, _ *Locker) {
		held := mustAcquire(t, newLocker(t, e.dial(t), WithTTL(time.Hour)), "n")
		l.intercept(only(fakeKeepAlive, fault{loseRequest: true}))
		time.AfterFunc(12100*time.Millisecond, func() { _ = held.Release(context.Background()) })
		time.AfterFunc(12200*time.Millisecond, l.cut)
	}},
}

// Every acquiring call returns when its context ends, at that very moment, in
// whatever phase it is and though no answer comes; and leaves nothing behind.
func TestAcquiringEndsWithItsContext(t *testing.T) {
	for phase, stage := range stages {
		for _, method := range []string{"Do", "DoAdvisory", "Lead", "Acquire", "TryAcquire"} {
			if method == "TryAcquire" && (phase == PhaseWait || phase == PhaseGrant) {
				continue // it never waits
			}
			for how, bound := range map[string]func(*testing.T, time.Duration) context.Context{
				"deadline": within,
				"cancel": func(t *testing.T, d time.Duration) context.Context {
					ctx, cancel := context.WithCancel(t.Context())
					time.AfterFunc(d, cancel)
					return ctx
				},
			} {
				t.Run(string(phase)+" "+method+" "+how, func(t *testing.T) {
					inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
						locker := newLocker(t, l, WithTTL(15*time.Second))
						stage.setUp(t, e, l, locker)
						call, start := acquiringCalls(t, locker)[method], time.Now()
						ctx := bound(t, stage.after)
						err := call(ctx, "n")
						assert.Equal(t, stage.after, time.Since(start))
						requireIs(t, err, ErrNotAcquired, ctx.Err())
						assert.Equal(t, phase, requireAs[*AcquireError](t, err).Phase)

						l.intercept(nil)
						l.heal()
						time.Sleep(2 * time.Minute)
						require.NoError(t, locker.Close())
						assert.Empty(t, e.keys("fencelock/"))
					})
				})
			}
		}
	}
}

// An old lease that must be renewed first is the lease phase too.
func TestAcquiringWithAnOldLeaseEndsWithItsContext(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		locker := newLocker(t, l)
		require.NoError(t, mustAcquire(t, locker, "n").Release(t.Context()))
		time.Sleep(8 * time.Second)
		l.cut()
		start := time.Now()
		_, err := locker.Acquire(within(t, time.Second), "n")
		assert.Equal(t, time.Second, time.Since(start))
		requireIs(t, err, ErrNotAcquired, context.DeadlineExceeded)
		assert.Equal(t, PhaseLease, requireAs[*AcquireError](t, err).Phase)
		l.heal()
		require.NoError(t, mustAcquire(t, locker, "n").Release(t.Context()))
	})
}

// Without a bound of the caller's, requests that are sent once have their own:
// the TTL or 10 s, whichever is less.
func TestRequestsOfAnAcquireAreBounded(t *testing.T) {
	for name, c := range map[string]struct {
		ttl, took time.Duration
		lost      match
		phase     Phase
	}{
		"joining the queue":               {ttl: 4 * time.Second, took: 4 * time.Second, lost: joins, phase: PhaseQueue},
		"joining the queue, a long TTL":   {ttl: time.Minute, took: 10 * time.Second, lost: joins, phase: PhaseQueue},
		"being granted a lease":           {ttl: 4 * time.Second, took: 4 * time.Second, lost: ofKind(fakeGrant), phase: PhaseLease},
		"being granted a lease, long TTL": {ttl: time.Minute, took: 10 * time.Second, lost: ofKind(fakeGrant), phase: PhaseLease},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
				locker := newLocker(t, l, WithTTL(c.ttl))
				l.intercept(c.lost.all(fault{loseRequest: true}))
				start := time.Now()
				_, err := locker.Acquire(t.Context(), "n")
				assert.Equal(t, c.took, time.Since(start))
				assert.Equal(t, c.phase, requireAs[*AcquireError](t, err).Phase)
				assert.Len(t, c.lost.of(l), 1, "it is not sent again")
				l.intercept(nil)
				require.NoError(t, mustAcquire(t, locker, "n").Release(t.Context()))
			})
		})
	}
}

// MaxWait bounds the wait in the queue. Leaving it takes another second if etcd
// does not answer.
func TestMaxWaitWithoutAnAnswer(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		held := mustAcquire(t, newLocker(t, l), "n")
		link := e.dial(t)
		locker := newLocker(t, link)
		for name, c := range map[string]struct {
			end, took time.Duration
		}{
			"live context":             {time.Minute, 3 * time.Second},
			"one that ends in between": {2500 * time.Millisecond, 2500 * time.Millisecond},
		} {
			waiter := acquireLater(within(t, c.end), locker, "n", MaxWait(2*time.Second))
			time.Sleep(time.Second)
			link.cut()
			err := waiter.wait(t).err
			assert.Equal(t, c.took, waiter.took, name)
			require.ErrorIs(t, err, ErrNotAcquired)
			assert.Equal(t, PhaseWait, requireAs[*AcquireError](t, err).Phase)
			link.heal()
			time.Sleep(10 * time.Second)
			assert.Len(t, e.keys("fencelock/"), 1, "it has left the queue")
		}
		require.NoError(t, held.Release(t.Context()))
	})
}

func TestInspectEndsWithItsContext(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *fakeEtcd, l *fakeLink) {
		locker := newLocker(t, l)
		l.cut()
		start := time.Now()
		_, err := locker.Inspect(within(t, 700*time.Millisecond), "n")
		assert.Equal(t, 700*time.Millisecond, time.Since(start))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		l.heal()
	})
}

// A caller that gave up does not wait for the answer. What its request did is
// looked for soon, so that nobody else waits long for what nobody holds; the
// answer that comes then changes nothing.
func TestAbandonedAcquireIsUndone(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		locker := newLocker(t, l)
		l.intercept(joins.all(fault{replyDelay: 2 * time.Second}))
		start := time.Now()
		_, err := locker.Acquire(within(t, time.Second), "n")
		assert.Equal(t, time.Second, time.Since(start))
		requireIs(t, err, ErrNotAcquired, context.DeadlineExceeded)
		next := acquireLater(t.Context(), newLocker(t, e.dial(t)), "n")
		lock := next.granted(t)
		assert.Equal(t, unansweredAfter, next.took, "before the answer came")
		time.Sleep(time.Second) // the answer is there
		synctest.Wait()
		assert.Len(t, e.keys("fencelock/"), 1)
		require.NoError(t, lock.Release(t.Context()))
	})
}
