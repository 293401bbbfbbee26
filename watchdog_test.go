package fencelock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fencelock/fencelock/internal/clock"
)

// bubbleClock leaves Go's clock alone in charge, so that a bubble's figures are
// exact: the real boot time would add the microseconds that the code takes.
func bubbleClock(t *testing.T) {
	t.Helper()
	t.Cleanup(clock.SetSource(func() time.Duration { return -1 }))
}

// weather is how renewals fare in one schedule.
type weather struct {
	ttl, margin time.Duration
	lossy       float64       // share of requests, and of replies, that is lost
	slow        time.Duration // the most that one direction takes
	cutAfter    time.Duration // when everything is lost; 0: never
}

func randomWeather(r *rand.Rand) weather {
	w := weather{ttl: time.Duration(2+r.IntN(19)) * time.Second}
	w.margin = w.ttl / 5
	if r.IntN(3) == 0 {
		w.margin = 50*time.Millisecond + rand0(r, w.ttl*3/4)
	}
	w.lossy = []float64{0, 0.1, 0.3, 0.7}[r.IntN(4)]
	w.slow = rand0(r, w.ttl/2)
	if r.IntN(2) == 0 {
		w.cutAfter = rand0(r, 3*w.ttl)
	}
	return w
}

func rand0(r *rand.Rand, below time.Duration) time.Duration {
	return time.Duration(r.Int64N(int64(below)))
}

// TestWatchdogModel runs the watchdog over hundreds of schedules of renewals
// that are sent, delayed, lost and answered, and compares with the rule: the
// context ends exactly at the send time of the latest sent renewal answered up
// to then, plus the TTL, less the margin; never later, so never after the server
// could expire the lease; and never earlier, so that no lock is lost for nothing.
func TestWatchdogModel(t *testing.T) {
	const schedules = 400
	lost := 0
	for seed := range uint64(schedules) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if runWatchdog(t, rand.New(rand.NewPCG(seed, 7))) {
					lost++
				}
			})
		})
	}
	require.Greater(t, lost, schedules/4, "the schedules hardly lose a lock: they prove nothing")
	require.Less(t, lost, schedules*9/10, "the schedules hardly keep a lock: they prove nothing")
}

func runWatchdog(t *testing.T, r *rand.Rand) (lost bool) {
	bubbleClock(t)
	w := randomWeather(r)
	etcd := newFakeEtcd(t)
	link := etcd.dial(t)
	l, err := New(link.client, WithTTL(w.ttl), WithMargin(w.margin))
	require.NoError(t, err)
	defer func() { _ = l.Close() }()

	started := time.Now()
	link.intercept(func(kind string, _ any) fault {
		if kind != fakeKeepAlive {
			return fault{}
		}
		cut := w.cutAfter > 0 && time.Since(started) > w.cutAfter
		return fault{
			requestDelay: rand0(r, w.slow+1), replyDelay: rand0(r, w.slow+1),
			loseRequest: cut || r.Float64() < w.lossy, loseReply: r.Float64() < w.lossy,
		}
	})
	k, err := l.Acquire(t.Context(), "a")
	require.NoError(t, err)

	var ended time.Time
	select {
	case <-k.Context().Done():
		ended = time.Now()
	case <-time.After(5 * w.ttl):
	}
	sentTo := time.Now()
	leases := etcd.expiries()
	trace := link.requests(fakeGrant, fakeKeepAlive)
	link.intercept(nil)

	deadline := modelDeadline(w, trace, sentTo)
	if ended.IsZero() {
		require.True(t, deadline.After(sentTo), "the context goes on after the deadline %v", deadline.Sub(started))
		require.NoError(t, k.Err())
		require.NoError(t, k.Release(t.Context()))
		return false
	}
	require.WithinDuration(t, deadline, ended, time.Microsecond, "%+v", w)
	var loss *LostError
	require.ErrorAs(t, context.Cause(k.Context()), &loss)
	require.Equal(t, LostExpired, loss.Reason)
	// The server still has the lease, and keeps it for the margin at least.
	expires, ok := leases[k.entry.lease.id]
	require.True(t, ok, "the lease was gone before the context ended: %+v", w)
	require.GreaterOrEqual(t, expires.Sub(ended), w.margin-time.Microsecond)
	require.ErrorIs(t, k.Release(t.Context()), ErrLost)
	return true
}

// modelDeadline follows the rule over what was sent and answered up to a time.
func modelDeadline(w weather, trace []fakeRequest, until time.Time) time.Time {
	var deadline, latest time.Time
	trace = slices.DeleteFunc(trace, func(r fakeRequest) bool {
		return r.answered.IsZero() || r.err != nil || r.answered.After(until)
	})
	slices.SortFunc(trace, func(a, b fakeRequest) int { return a.answered.Compare(b.answered) })
	for _, r := range trace {
		if !deadline.IsZero() && !r.answered.Before(deadline) {
			break // too late: no resurrection
		}
		if r.sent.After(latest) {
			latest = r.sent
			deadline = latest.Add(w.ttl - w.margin)
		}
	}
	return deadline
}

type testKey struct{}

// TestContextReadsTheClock covers the first look after a pause: no timer has
// run, and the context must already have ended. A machine that was suspended
// shows it in boot time only.
func TestContextReadsTheClock(t *testing.T) {
	var suspended atomic.Int64
	t.Cleanup(clock.SetSource(func() time.Duration { return time.Duration(suspended.Load()) }))
	link := newFakeEtcd(t).dial(t)
	l, err := New(link.client, WithTTL(15*time.Second))
	require.NoError(t, err)
	defer func() { _ = l.Close() }()

	for what, look := range map[string]func(k *Lock) error{
		"Err":            func(k *Lock) error { return k.Context().Err() },
		"Err of a value": func(k *Lock) error { return context.WithValue(k.Context(), testKey{}, 1).Err() },
		"Lock.Err":       func(k *Lock) error { return k.Err() },
		"Done": func(k *Lock) error {
			select {
			case <-k.Context().Done():
				return context.Canceled
			default:
				return nil
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			k, err := l.Acquire(t.Context(), what)
			require.NoError(t, err)
			require.NoError(t, look(k))
			suspended.Add(int64(10 * time.Minute))
			require.Error(t, look(k))
			var loss *LostError
			require.ErrorAs(t, k.Err(), &loss)
			require.Equal(t, LostExpired, loss.Reason)
			require.ErrorIs(t, context.Cause(k.Context()), ErrLost)
			require.ErrorIs(t, k.Release(t.Context()), ErrLost)
		})
	}
}

// TestLossEndsInnerContexts: work inside two locks rests on both, so the loss
// of the outer one ends the inner one's context, whichever way it was acquired,
// and also at the first look after a pause. The inner lock itself is not lost.
func TestLossEndsInnerContexts(t *testing.T) {
	var suspended atomic.Int64
	t.Cleanup(clock.SetSource(func() time.Duration { return time.Duration(suspended.Load()) }))
	etcd := newFakeEtcd(t)
	outerLocker, err := New(etcd.dial(t).client, WithTTL(5*time.Second))
	require.NoError(t, err)
	defer func() { _ = outerLocker.Close() }()
	innerLocker, err := New(etcd.dial(t).client, WithTTL(time.Hour))
	require.NoError(t, err)
	defer func() { _ = innerLocker.Close() }()

	err = outerLocker.Do(t.Context(), "outer", func(ctx context.Context, _ Token) error {
		k, err := innerLocker.Acquire(ctx, "acquired")
		require.NoError(t, err)
		return innerLocker.Do(ctx, "inner", func(ctx context.Context, _ Token) error {
			require.NoError(t, ctx.Err())
			require.NoError(t, k.Context().Err())
			suspended.Add(int64(time.Minute))
			require.ErrorIs(t, ctx.Err(), context.Canceled)
			require.ErrorIs(t, k.Context().Err(), context.Canceled)
			require.ErrorIs(t, context.Cause(k.Context()), ErrLost)
			require.NoError(t, k.Err(), "the inner lock is still held")
			require.NoError(t, k.Release(context.Background()))
			return errors.New("stopped")
		})
	})
	require.ErrorIs(t, err, ErrLost)
	require.ErrorContains(t, err, "stopped")
}
