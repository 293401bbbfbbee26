package integration

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/integration/harness"
)

// everyError is what an error can be.
var everyError = []error{
	fencelock.ErrInvalidOption, fencelock.ErrInvalidName, fencelock.ErrInvalidToken,
	fencelock.ErrNotAcquired, fencelock.ErrHeld, fencelock.ErrReentrant, fencelock.ErrClosed,
	fencelock.ErrReleased, fencelock.ErrLost, fencelock.ErrUnconfirmed,
	fencelock.ErrStale, fencelock.ErrNoToken, fencelock.ErrScope,
	fencelock.ErrTokenRegression, fencelock.ErrTokenUnused, fencelock.ErrForeignKey, fencelock.ErrNotHeld,
	context.Canceled, context.DeadlineExceeded,
}

// errorCase is one call that fails, with what it needs: a Locker that has not
// been used yet, whose requests can be spoilt, and another one.
type errorCase struct {
	*bench
	ctx    context.Context
	client wired
	l      *fencelock.Locker
	other  *fencelock.Locker
	name   string
	ran    bool // the callback, or a fence's effect
	theirs int  // keys in the queue that are not the Locker's
}

// fn is a callback that works.
func (c *errorCase) fn(_ context.Context, token fencelock.Token) error {
	c.ran = true
	_ = token.Revision()
	return nil
}

func (c *errorCase) advisoryFn(context.Context) error {
	c.ran = true
	return nil
}

// within is the case's context with a deadline, which ends the test's waiting,
// not the library's.
func (c *errorCase) within(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(c.ctx, d)
	c.t.Cleanup(cancel)
	return ctx
}

// taken has the other Locker hold the lock.
func (c *errorCase) taken() {
	c.t.Helper()
	k := c.acquire(c.other, c.name)
	c.t.Cleanup(func() { c.release(k) })
	c.theirs++
}

// awaitWaiter waits until the Locker's call waits, and knows that it does: then
// it watches the queue.
func (c *errorCase) awaitWaiter() {
	c.t.Helper()
	require.Eventually(c.t, func() bool { return c.client.watches.Load() > 0 }, soon, time.Millisecond)
}

// deleteKey deletes the key of whoever heads the queue, as an operator would.
func (c *errorCase) deleteKey() {
	c.t.Helper()
	resp, err := c.clean.Get(c.ctx, keyPrefix+c.name+"/", clientv3.WithFirstCreate()...)
	require.NoError(c.t, err)
	require.Len(c.t, resp.Kvs, 1)
	_, err = c.clean.Delete(c.ctx, string(resp.Kvs[0].Key))
	require.NoError(c.t, err)
}

// lost acquires the lock and has it lost.
func (c *errorCase) lost() *fencelock.Lock {
	c.t.Helper()
	k := c.acquire(c.l, c.name)
	c.deleteKey()
	harness.Receive(c.t, k.Context().Done(), soon, "end of the held context")
	return k
}

// stale is a callback whose effect is refused, although it holds the lock.
func (c *errorCase) stale(_ context.Context, token fencelock.Token) error {
	c.ran = true
	var fence fencelock.Fence
	higher, err := fencelock.ParseToken(c.name, "9000000000.another")
	require.NoError(c.t, err)
	require.NoError(c.t, fence.Advance(higher))
	return fence.Do(token, func() error { c.t.Error("a stale effect was applied"); return nil })
}

func phase(p fencelock.Phase) func(*testing.T, *errorCase, error) {
	return func(t *testing.T, c *errorCase, err error) {
		var failed *fencelock.AcquireError
		require.ErrorAs(t, err, &failed)
		assert.Equal(t, p, failed.Phase)
		assert.Equal(t, c.name, failed.Name)
		assert.Error(t, failed.Err)
		assert.ErrorContains(t, err, `"`+c.name+`"`)
		assert.ErrorContains(t, err, string(p))
	}
}

func holder(t *testing.T, c *errorCase, err error) {
	var held *fencelock.HeldError
	require.ErrorAs(t, err, &held)
	assert.Equal(t, c.name, held.Name)
	queue, ierr := c.other.Inspect(t.Context(), c.name)
	require.NoError(t, ierr)
	assert.True(t, held.Holder.Token.Equal(queue.Holder.Token))
	assert.Equal(t, "the other", held.Holder.Label)
	assert.Equal(t, queue.Holder.Since, held.Holder.Since)
	assert.Zero(t, held.Holder.Remaining)
	assert.ErrorContains(t, err, "the other")
	assert.ErrorContains(t, err, held.Holder.Token.String())
}

func reason(r fencelock.Reason) func(*testing.T, *errorCase, error) {
	return func(t *testing.T, c *errorCase, err error) {
		var lost *fencelock.LostError
		require.ErrorAs(t, err, &lost)
		assert.Equal(t, r, lost.Reason)
		assert.Equal(t, c.name, lost.Name)
		assert.Equal(t, c.name, lost.Token.Name())
		assert.False(t, lost.LastConfirmed.IsZero())
		assert.False(t, lost.LostAt.Before(lost.LastConfirmed))
		assert.ErrorContains(t, err, string(r))
	}
}

// The errors of design and documentation: what each is and is not, whether the
// callback ran, and what is left. A naive library has one error that says
// "failed", or an error that says "not acquired" of work that was done.
func TestErrors(t *testing.T) {
	harness.Parallel(t)
	shared := newBench(t)
	for _, test := range []struct {
		name string
		call func(*errorCase) error
		is   []error // and no other
		ran  bool    // else false
		// going allows for a key that is still being deleted when the call
		// returns.
		going bool
		more  func(*testing.T, *errorCase, error) // may be nil
	}{
		{
			name: "a nil client",
			call: func(c *errorCase) error { _, err := fencelock.New(nil); return err },
			is:   []error{fencelock.ErrInvalidOption},
		}, {
			name: "a nil callback",
			call: func(c *errorCase) error { return c.l.Do(c.ctx, c.name, nil) },
			is:   []error{fencelock.ErrInvalidOption},
		}, {
			name: "a bad option",
			call: func(c *errorCase) error { return c.l.Do(c.ctx, c.name, c.fn, fencelock.MaxHold(0)) },
			is:   []error{fencelock.ErrInvalidOption},
		}, {
			name: "a bad name",
			call: func(c *errorCase) error { return c.l.Do(c.ctx, "", c.fn) },
			is:   []error{fencelock.ErrInvalidName},
		}, {
			name: "a context that has ended",
			call: func(c *errorCase) error {
				ctx, cancel := context.WithCancel(c.ctx)
				cancel()
				return c.l.Do(ctx, c.name, c.fn)
			},
			is: []error{fencelock.ErrNotAcquired, context.Canceled}, going: true, more: phase(fencelock.PhaseLease),
		}, {
			name: "no lease in time",
			call: func(c *errorCase) error {
				network := harness.NewHeld()
				defer network.Release()
				c.client.lease.SetHook(harness.Nth(harness.OpGrant, 1, harness.Hold(network)))
				return c.l.Do(c.within(100*time.Millisecond), c.name, c.fn)
			},
			is: []error{fencelock.ErrNotAcquired, context.DeadlineExceeded}, going: true, more: phase(fencelock.PhaseLease),
		}, {
			name: "ended without an answer to joining the queue",
			call: func(c *errorCase) error {
				network := harness.NewHeld()
				defer network.Release()
				c.client.kv.SetHook(harness.Nth(harness.OpTxn, 1, harness.HoldReply(network)))
				ctx, cancel := context.WithCancel(c.ctx)
				result := inBackground(c.t, func() error { return c.l.Do(ctx, c.name, c.fn) })
				harness.Receive(c.t, network.Arrived(), soon, "acquiring request")
				cancel()
				return harness.Receive(c.t, result, soon, "end of Do")
			},
			is: []error{fencelock.ErrNotAcquired, context.Canceled}, going: true, more: phase(fencelock.PhaseQueue),
		}, {
			name: "not granted in time",
			call: func(c *errorCase) error {
				c.taken()
				return c.l.Do(c.within(2*time.Second), c.name, c.fn)
			},
			is: []error{fencelock.ErrNotAcquired, context.DeadlineExceeded}, going: true, more: phase(fencelock.PhaseWait),
		}, {
			name: "cancelled with a cause while it waits",
			call: func(c *errorCase) error {
				c.taken()
				ctx, cancel := context.WithCancelCause(c.ctx)
				result := inBackground(c.t, func() error { return c.l.Do(ctx, c.name, c.fn) })
				c.awaitWaiter()
				cancel(errCause)
				return harness.Receive(c.t, result, soon, "end of Do")
			},
			is: []error{fencelock.ErrNotAcquired, context.Canceled}, going: true,
			more: func(t *testing.T, c *errorCase, err error) {
				phase(fencelock.PhaseWait)(t, c, err)
				assert.ErrorIs(t, err, errCause)
			},
		}, {
			name: "a key without a lease in the queue",
			call: func(c *errorCase) error {
				_, err := c.clean.Put(c.ctx, keyPrefix+c.name+"/stray", "")
				require.NoError(c.t, err)
				defer c.deleteKey()
				return c.l.Do(c.ctx, c.name, c.fn)
			},
			is: []error{fencelock.ErrNotAcquired, fencelock.ErrForeignKey}, going: true, more: phase(fencelock.PhaseQueue),
		}, {
			name: "TryAcquire of a lock that is held",
			call: func(c *errorCase) error {
				c.taken()
				_, err := c.l.TryAcquire(c.ctx, c.name)
				return err
			},
			is: []error{fencelock.ErrNotAcquired, fencelock.ErrHeld}, more: holder,
		}, {
			name: "MaxWait(0)",
			call: func(c *errorCase) error {
				c.taken()
				return c.l.Do(c.ctx, c.name, c.fn, fencelock.MaxWait(0))
			},
			is: []error{fencelock.ErrNotAcquired, fencelock.ErrHeld}, more: holder,
		}, {
			name: "MaxWait ran out",
			call: func(c *errorCase) error {
				c.taken()
				return c.l.DoAdvisory(c.ctx, c.name, c.advisoryFn, fencelock.MaxWait(50*time.Millisecond))
			},
			is: []error{fencelock.ErrNotAcquired, fencelock.ErrHeld}, more: holder,
		}, {
			name: "eviction of one who does not hold it",
			call: func(c *errorCase) error {
				c.taken()
				gone, err := fencelock.ParseToken(c.name, "1.gone")
				require.NoError(c.t, err)
				return c.l.Evict(c.ctx, c.name, gone)
			},
			is: []error{fencelock.ErrNotAcquired, fencelock.ErrHeld}, more: holder,
		}, {
			name: "eviction where nobody holds it",
			call: func(c *errorCase) error {
				gone, err := fencelock.ParseToken(c.name, "1.gone")
				require.NoError(c.t, err)
				return c.l.Evict(c.ctx, c.name, gone)
			},
			is: []error{fencelock.ErrNotHeld},
		}, {
			name: "eviction of no token",
			call: func(c *errorCase) error { return c.l.Evict(c.ctx, c.name, fencelock.Token{}) },
			is:   []error{fencelock.ErrNoToken},
		}, {
			name: "eviction without an answer",
			call: func(c *errorCase) error {
				k := c.acquire(c.other, c.name)
				c.client.kv.SetHook(firstRelease(harness.LoseReply(errors.New("connection reset"))))
				err := c.l.Evict(c.ctx, c.name, k.Token())
				require.ErrorIs(c.t, c.l.Evict(c.ctx, c.name, k.Token()), fencelock.ErrNotHeld, "it may be repeated")
				require.ErrorIs(c.t, k.Release(c.ctx), fencelock.ErrLost)
				return err
			},
			is: []error{fencelock.ErrUnconfirmed},
		}, {
			name: "acquired again inside",
			call: func(c *errorCase) error {
				k := c.acquire(c.l, c.name)
				defer c.release(k)
				return c.l.Do(k.Context(), c.name, c.fn)
			},
			is: []error{fencelock.ErrReentrant},
		}, {
			name: "after Close",
			call: func(c *errorCase) error {
				require.NoError(c.t, c.l.Close())
				return c.l.Do(c.ctx, c.name, c.fn)
			},
			is: []error{fencelock.ErrClosed},
		}, {
			name: "closed while it waits",
			call: func(c *errorCase) error {
				c.taken()
				result := inBackground(c.t, func() error { return c.l.Do(c.ctx, c.name, c.fn) })
				c.awaitWaiter()
				require.NoError(c.t, c.l.Close())
				return harness.Receive(c.t, result, soon, "end of Do")
			},
			is: []error{fencelock.ErrNotAcquired, fencelock.ErrClosed}, going: true, more: phase(fencelock.PhaseWait),
		}, {
			name: "lost, from Do",
			call: func(c *errorCase) error {
				return c.l.Do(c.ctx, c.name, func(ctx context.Context, token fencelock.Token) error {
					c.deleteKey()
					<-ctx.Done()
					return c.fn(ctx, token)
				})
			},
			is: []error{fencelock.ErrLost}, ran: true, going: true,
			more: func(t *testing.T, c *errorCase, err error) {
				reason(fencelock.LostDeleted)(t, c, err)
				var lost *fencelock.LostError
				require.ErrorAs(t, err, &lost)
				assert.False(t, lost.Returned.Before(lost.LostAt))
			},
		}, {
			name: "lost, from Err",
			call: func(c *errorCase) error { return c.lost().Err() },
			is:   []error{fencelock.ErrLost}, going: true,
			more: func(t *testing.T, c *errorCase, err error) {
				reason(fencelock.LostDeleted)(t, c, err)
				var lost *fencelock.LostError
				require.ErrorAs(t, err, &lost)
				assert.Zero(t, lost.Returned)
			},
		}, {
			name: "lost, the cause of the context",
			call: func(c *errorCase) error { return context.Cause(c.lost().Context()) },
			is:   []error{fencelock.ErrLost}, going: true, more: reason(fencelock.LostDeleted),
		}, {
			name: "lost, from Release",
			call: func(c *errorCase) error { return c.lost().Release(c.ctx) },
			is:   []error{fencelock.ErrLost}, going: true, more: reason(fencelock.LostDeleted),
		}, {
			name: "lost, noticed by Release",
			call: func(c *errorCase) error {
				k := c.acquire(c.l, c.name)
				c.deleteKey()
				return k.Release(c.ctx)
			},
			is: []error{fencelock.ErrLost}, going: true, more: reason(fencelock.LostDeleted),
		}, {
			name: "released",
			call: func(c *errorCase) error {
				k := c.acquire(c.l, c.name)
				c.release(k)
				assert.ErrorIs(c.t, k.Context().Err(), context.Canceled)
				assert.ErrorIs(c.t, context.Cause(k.Context()), fencelock.ErrReleased)
				return k.Err()
			},
			is: []error{fencelock.ErrReleased},
		}, {
			name: "no answer to the release in Do",
			call: func(c *errorCase) error {
				// Where there is silence instead Do waits for 5 s.
				c.client.kv.SetHook(firstRelease(harness.LoseReply(errors.New("connection reset"))))
				return c.l.Do(c.ctx, c.name, c.fn)
			},
			is: []error{fencelock.ErrUnconfirmed}, ran: true, going: true,
		}, {
			name: "no answer to Release in time",
			call: func(c *errorCase) error {
				k := c.acquire(c.l, c.name)
				network := harness.NewHeld()
				defer network.Release()
				c.client.kv.SetHook(firstRelease(harness.HoldReply(network)))
				return k.Release(c.within(100 * time.Millisecond))
			},
			is: []error{fencelock.ErrUnconfirmed, context.DeadlineExceeded}, going: true,
		}, {
			name: "a stale token",
			call: func(c *errorCase) error {
				var fence fencelock.Fence
				old := c.acquire(c.l, c.name)
				c.release(old)
				k := c.acquire(c.other, c.name)
				defer c.release(k)
				require.NoError(c.t, fence.Advance(k.Token()))
				err := fence.Do(old.Token(), func() error { c.ran = true; return nil })
				var stale *fencelock.StaleError
				require.ErrorAs(c.t, err, &stale)
				assert.Equal(c.t, c.name, stale.Scope)
				assert.True(c.t, stale.Presented.Equal(old.Token()))
				assert.True(c.t, stale.Highest.Equal(k.Token()))
				return err
			},
			is: []error{fencelock.ErrStale},
		}, {
			name: "no token",
			call: func(c *errorCase) error {
				var fence fencelock.Fence
				return fence.Do(fencelock.Token{}, func() error { c.ran = true; return nil })
			},
			is: []error{fencelock.ErrNoToken},
		}, {
			name: "tokens went backwards",
			call: func(c *errorCase) error { return c.l.Do(c.ctx, c.name, c.stale) },
			is:   []error{fencelock.ErrTokenRegression, fencelock.ErrStale}, ran: true,
		}, {
			name: "the token was never used",
			call: func(c *errorCase) error {
				return c.l.Do(c.ctx, c.name, func(context.Context, fencelock.Token) error { c.ran = true; return nil },
					fencelock.RequireTokenUse())
			},
			is: []error{fencelock.ErrTokenUnused}, ran: true,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := shared.part(t)
			c := &errorCase{
				bench: b, ctx: t.Context(), client: b.wired(),
				other: b.locker(b.client(), fencelock.WithLabel("the other")),
				name:  "x",
			}
			c.l = b.openLocker(c.client.Client, fencelock.WithMargin(100*time.Millisecond))
			t.Cleanup(func() {
				c.client.kv.SetHook(nil)
				c.client.lease.SetHook(nil)
				_ = c.l.Close()
			})
			err := test.call(c)
			require.Error(t, err)
			for _, e := range everyError {
				if slices.Contains(test.is, e) {
					assert.ErrorIs(t, err, e)
				} else {
					assert.NotErrorIs(t, err, e)
				}
			}
			assert.True(t, strings.HasPrefix(err.Error(), "fencelock: "), err)
			assert.Equal(t, test.ran, c.ran)
			if test.more != nil {
				test.more(t, c, err)
			}
			if test.going {
				b.awaitQueue(c.name, c.theirs)
			} else {
				assert.Len(t, harness.Keys(t, b.clean, keyPrefix), c.theirs)
			}
		})
	}
}

var errCause = errors.New("the caller's own cause")
