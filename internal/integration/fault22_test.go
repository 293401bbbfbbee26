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

// A naive library releases after the callback. One that panics or ends its
// goroutine then never releases; with a lease that other locks keep alive the
// lock is taken for ever. And one that recovers swallows the panic.
func TestFault22PanicAndGoexit(t *testing.T) {
	b := newBench(t)
	j := newJournal()
	l := b.locker(b.client(), reportTo(j)...)
	neighbour := b.acquire(l, "neighbour") // keeps the lease alive
	gone := harness.WatchDeletions(t, b.clean, keyPrefix)

	calls := map[string]func(name string, fn func(fencelock.Token)) error{
		"Do": func(name string, fn func(fencelock.Token)) error {
			return l.Do(t.Context(), name, func(_ context.Context, token fencelock.Token) error { fn(token); return nil })
		},
		"DoAdvisory": func(name string, fn func(fencelock.Token)) error {
			return l.DoAdvisory(t.Context(), name, func(context.Context) error {
				acquired := reported[fencelock.AcquiredInfo](j)
				fn(acquired[len(acquired)-1].Token)
				return nil
			})
		},
		"Lead": func(name string, fn func(fencelock.Token)) error {
			return l.Lead(t.Context(), name, func(_ context.Context, token fencelock.Token) error { fn(token); return nil })
		},
	}
	bomb := errors.New("the callback's own")
	ends := map[string]func(){
		"panic":  func() { panic(bomb) },
		"Goexit": runtime.Goexit,
	}
	for call, do := range calls {
		for how, end := range ends {
			t.Run(call+"/"+how, func(t *testing.T) {
				name := call + how
				var token fencelock.Token
				var ended time.Time
				var passedOn any
				returned := false
				over := make(chan struct{})
				go func() {
					defer close(over)
					defer func() { passedOn = recover() }()
					_ = do(name, func(tok fencelock.Token) {
						token, ended = tok, time.Now()
						end()
					})
					returned = true
				}()
				untilClosed(t, over)

				assert.False(t, returned)
				if how == "panic" {
					assert.Equal(t, bomb, passedOn)
				}
				freed := gone.Expect(token.Revision(), soon)
				assert.Less(t, freed.At.Sub(ended), 500*time.Millisecond)

				again := b.acquire(l, name)
				assert.Positive(t, again.Token().Compare(token))
				b.release(again)
			})
		}
	}
	b.release(neighbour)
	for _, info := range reported[fencelock.ReleasedInfo](j) {
		assert.True(t, info.Confirmed)
	}
	assert.Empty(t, reported[fencelock.LostInfo](j))
}

// A naive library releases when the caller's context ends, or stops renewing:
// another gets the lock while the callback still works.
func TestFault22IgnoresTheCallersContext(t *testing.T) {
	harness.Parallel(t)
	b := newBench(t)
	j := newJournal()
	l := b.locker(b.client(), append(reportTo(j), fencelock.WithTTL(2*time.Second))...)
	other := b.locker(b.client())
	gone := harness.WatchDeletions(t, b.clean, keyPrefix)

	ctx, cancel := context.WithCancel(t.Context())
	var token fencelock.Token
	held := make(chan struct{})
	finish := make(chan struct{})
	result := inBackground(t, func() error {
		return l.Do(ctx, "x", func(ctx context.Context, tok fencelock.Token) error {
			token = tok
			close(held)
			<-ctx.Done()
			untilClosed(t, finish) // as if ctx had not ended
			return nil
		})
	})
	harness.Receive(t, held, soon, "grant")
	cancel()
	// Three answered renewals are a TTL.
	awaitReports[fencelock.RenewedInfo](t, j, len(reported[fencelock.RenewedInfo](j))+4, soon)

	_, err := other.TryAcquire(t.Context(), "x")
	var taken *fencelock.HeldError
	require.ErrorAs(t, err, &taken)
	assert.True(t, taken.Holder.Token.Equal(token))
	assert.Empty(t, gone.All())

	close(finish)
	// The record named this holder to the end, and the callback says that its
	// work is done.
	require.NoError(t, harness.Receive(t, result, soon, "end of Do"))
	gone.Expect(token.Revision(), soon)
	b.release(b.acquire(other, "x"))
	assert.Empty(t, reported[fencelock.LostInfo](j))
}

// A naive library revokes its lease as soon as it notices the loss, and so
// hands the lock to the next one while the callback, which had the margin to
// stop in, still works.
func TestFault22IgnoresTheLoss(t *testing.T) {
	harness.Parallel(t)
	for name, test := range map[string]struct {
		waitsForExpiry bool
	}{
		"until etcd gave the lock away": {waitsForExpiry: true},
		"for a moment":                  {},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			j := newJournal()
			client := b.wired()
			l := b.locker(client.Client, append(reportTo(j), fencelock.WithTTL(2*time.Second), fencelock.WithMargin(time.Second))...)
			gone := harness.WatchDeletions(t, b.clean, keyPrefix)

			var token fencelock.Token
			var returned time.Time
			var revokes, renewals int
			err := l.Do(t.Context(), "x", func(ctx context.Context, tok fencelock.Token) error {
				token = tok
				// Renewed at the server up to the loss, so that it keeps the key
				// for a whole TTL from there.
				client.lease.SetHook(func(c harness.Call) harness.Fate {
					if c.Op == harness.OpKeepAliveOnce {
						return harness.LoseReply(nil)
					}
					return harness.Pass()
				})
				<-ctx.Done()
				renewals = client.lease.Calls(harness.OpKeepAliveOnce)
				if test.waitsForExpiry {
					gone.Expect(tok.Revision(), soon)
				}
				revokes = client.lease.Calls(harness.OpRevoke)
				returned = time.Now()
				return nil // as if nothing had happened
			})

			var lost *fencelock.LostError
			require.ErrorAs(t, err, &lost)
			require.ErrorIs(t, err, fencelock.ErrLost)
			assert.Equal(t, fencelock.LostExpired, lost.Reason)
			assert.True(t, lost.Token.Equal(token))
			assert.Equal(t, "x", lost.Name)
			assert.False(t, lost.Returned.Before(lost.LostAt))
			assert.GreaterOrEqual(t, lost.LostAt.Sub(lost.LastConfirmed), time.Second)

			assert.Zero(t, revokes, "revoked before the callback returned")
			// One can have been on its way when the context ended.
			assert.LessOrEqual(t, client.lease.Calls(harness.OpKeepAliveOnce), renewals+1, "renewed after the loss")
			freed := gone.Expect(token.Revision(), soon)
			assert.Less(t, lost.LostAt.UnixNano(), freed.At.UnixNano())
			if !test.waitsForExpiry {
				// The key had the best part of its TTL left; now that nobody
				// works any more there is no reason to wait for that.
				assert.Less(t, returned.UnixNano(), freed.At.UnixNano())
				assert.Equal(t, 1, client.lease.Calls(harness.OpRevoke))
			}

			// The holder is told first.
			losses := awaitReports[fencelock.LostInfo](t, j, 1, soon)
			require.Len(t, losses, 1)
			assert.True(t, losses[0].Running)
			assert.Len(t, reported[fencelock.ReturnedAfterLossInfo](j), 1)
			assert.Len(t, warnings(j, "lock lost"), 1)
		})
	}
}

// A naive library returns what the callback returned. After a loss nil would
// say that the work was done under the lock.
func TestFault22NilAfterALoss(t *testing.T) {
	b := newBench(t)
	j := newJournal()
	l := b.locker(b.client(), reportTo(j)...)
	var token fencelock.Token
	err := l.Do(t.Context(), "x", func(ctx context.Context, tok fencelock.Token) error {
		token = tok
		_, err := b.clean.Delete(t.Context(), harness.Keys(t, b.clean, keyPrefix+"x/")[0])
		require.NoError(t, err)
		<-ctx.Done()
		return nil
	})
	var lost *fencelock.LostError
	require.ErrorAs(t, err, &lost)
	require.ErrorIs(t, err, fencelock.ErrLost)
	assert.Equal(t, fencelock.LostDeleted, lost.Reason)
	assert.True(t, lost.Token.Equal(token))
	assert.False(t, lost.Returned.IsZero())

	after := reported[fencelock.ReturnedAfterLossInfo](j)
	require.Len(t, after, 1)
	assert.Equal(t, lost.Returned, after[0].Err.Returned)
	awaitReports[fencelock.LostInfo](t, j, 1, soon) // the holder is told first
	lines := warnings(j, "lock lost")
	require.Len(t, lines, 1)
	assert.Equal(t, "x", attribute(lines[0], "lock"))
	assert.Equal(t, "deleted", attribute(lines[0], "reason"))
}

// A naive MaxHold releases the lock under the callback's feet, in the moment in
// which it tells it to stop; or it only tells it, and a callback that does not
// listen keeps the lock.
func TestFault22MaxHold(t *testing.T) {
	const maxHold = 200 * time.Millisecond
	for name, test := range map[string]struct {
		margin time.Duration
		deaf   bool
	}{
		"the callback stops":      {margin: 5 * time.Second},
		"the callback goes on":    {margin: 400 * time.Millisecond, deaf: true},
		"a default of the Locker": {margin: 400 * time.Millisecond, deaf: true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			j := newJournal()
			var byDefault, byCall = []fencelock.Option{fencelock.WithMargin(test.margin)}, []fencelock.LockOption{}
			if name == "a default of the Locker" {
				byDefault = append(byDefault, fencelock.MaxHold(maxHold))
			} else {
				byCall = append(byCall, fencelock.MaxHold(maxHold))
			}
			l := b.locker(b.client(), append(byDefault, reportTo(j)...)...)
			other := b.locker(b.client())
			gone := harness.WatchDeletions(t, b.clean, keyPrefix)

			var token fencelock.Token
			finish := make(chan struct{})
			began := time.Now()
			result := inBackground(t, func() error {
				return l.Do(t.Context(), "x", func(ctx context.Context, tok fencelock.Token) error {
					token = tok
					<-ctx.Done()
					if test.deaf {
						untilClosed(t, finish)
					}
					return ctx.Err()
				}, byCall...)
			})
			awaitReports[fencelock.AcquiredInfo](t, j, 1, soon)
			next := b.acquire(other, "x") // queued, until the key goes
			lost := awaitReports[fencelock.LostInfo](t, j, 1, soon)[0].Err
			assert.Equal(t, fencelock.LostMaxHold, lost.Reason)
			assert.GreaterOrEqual(t, lost.LostAt.Sub(began), maxHold)
			freed := gone.Expect(token.Revision(), soon)
			assert.Positive(t, next.Token().Compare(token))
			if test.deaf {
				assert.Empty(t, reported[fencelock.ReturnedAfterLossInfo](j))
				assert.GreaterOrEqual(t, freed.At.UnixNano()-lost.LostAt.UnixNano(), test.margin.Nanoseconds())
				assert.Less(t, freed.At.UnixNano()-lost.LostAt.UnixNano(), (test.margin + time.Second).Nanoseconds())
			} else {
				assert.Less(t, freed.At.UnixNano()-lost.LostAt.UnixNano(), test.margin.Nanoseconds())
			}
			close(finish)
			err := harness.Receive(t, result, soon, "end of Do")
			require.ErrorIs(t, err, fencelock.ErrLost)
			require.ErrorIs(t, err, context.Canceled) // what the callback returned
			assert.NotErrorIs(t, err, fencelock.ErrUnconfirmed)
			b.release(next)

			// The lease is as good as before.
			b.release(b.acquire(l, "y"))
			assert.Len(t, warnings(j, "lock lost"), 1)
		})
	}
}
