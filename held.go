package fencelock

import (
	"context"
	"errors"

	"github.com/fencelock/fencelock/internal/hook"
)

// heldKey finds the innermost hold a context comes from.
type heldKey struct{}

func holdOf(ctx context.Context) *Lock {
	k, _ := ctx.Value(heldKey{}).(*Lock)
	return k
}

// heldContext is the context of a hold. It reads the clock when it is asked:
// after a pause of the process the first line that runs must already see the
// loss, and no timer has run by then.
//
// The context inside is a cancelCtx of the standard library's, and both its
// Done channel and its Value are handed out, so that contexts derived from this
// one register with it directly and cost no goroutine. Those with a cancel or a
// deadline of their own hear of a loss from it, which is when the watchdog has
// run or somebody has asked this one; those that only add values ask it.
type heldContext struct {
	context.Context
	k *Lock

	// values is the context inside with what [Hooks] HoldContext added, nil for
	// nothing. It is set before anybody else has the hold.
	values context.Context
}

// addValues asks [Hooks] HoldContext for values. The context that comes back only
// serves for looking them up; its end is that of the context inside, or a loss would
// not be the cause of what is derived from it.
func (c *heldContext) addValues(info AcquiredInfo) {
	l := c.k.l
	add := l.cfg.hooks.HoldContext
	if add == nil {
		return
	}
	hook.Call(l.cfg.log, func(info AcquiredInfo) {
		values := add(c.Context, info)
		switch {
		case values == nil:
		case values.Done() != c.Context.Done():
			l.cfg.log.Warn("fencelock: the context that HoldContext returned is not used: it must be the one it was given, with values added",
				"lock", info.Name)
		default:
			c.values = values
		}
	}, info)
}

func (c *heldContext) Err() error {
	if err := c.Context.Err(); err != nil {
		return err
	}
	c.k.look()
	return c.Context.Err()
}

func (c *heldContext) Done() <-chan struct{} {
	c.k.look()
	return c.Context.Done()
}

func (c *heldContext) Value(key any) any {
	if key == (heldKey{}) {
		return c.k
	}
	if c.values != nil {
		return c.values.Value(key)
	}
	return c.Context.Value(key)
}

// look compares the clock with the lease's deadline, for this hold and for
// those around it, and loses what is past it.
func (k *Lock) look() {
	for h := k; h != nil; h = h.outer {
		h.lookOne()
	}
}

func (k *Lock) lookOne() {
	if !k.over.Load() {
		if !k.entry.lease.expired() {
			return
		}
		k.l.loseLease(k.entry.lease, LostExpired, nil)
	}
	// Whoever marked the loss may not have come to cancelling yet, and the
	// caller is about to ask.
	if loss := k.loss.Load(); loss != nil {
		k.endContexts(loss)
	}
}

// endContexts cancels the hold's context, and those of locks acquired inside
// it, however deep, which do not follow it by themselves.
func (k *Lock) endContexts(cause *LostError) {
	k.cancel(cause)
	k.l.mu.Lock()
	inner := make([]*Lock, 0, len(k.inner))
	for i := range k.inner {
		inner = append(inner, i)
	}
	k.l.mu.Unlock()
	for _, i := range inner {
		i.endContexts(cause)
	}
}

// nest makes the loss of the hold that k was acquired in end k's context.
// Ending that hold in good order does not: Acquire takes its context's values,
// not its cancellation.
func (k *Lock) nest() {
	o := k.outer
	if o == nil {
		return
	}
	o.l.mu.Lock()
	if o.inner == nil {
		o.inner = map[*Lock]struct{}{}
	}
	o.inner[k] = struct{}{}
	o.l.mu.Unlock()
	// It may have ended for a loss further out meanwhile. endContexts cancels
	// before it looks who is inside, so either it sees k or k sees the cause.
	var loss *LostError
	if errors.As(context.Cause(o.ctx.Context), &loss) {
		k.endContexts(loss)
	}
}

func (k *Lock) unnest() {
	if o := k.outer; o != nil {
		o.l.mu.Lock()
		delete(o.inner, k)
		o.l.mu.Unlock()
	}
}
