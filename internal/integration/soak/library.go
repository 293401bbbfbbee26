package main

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/fencelock/fencelock"
)

// library is the strategies fenced and advisory.
type library struct {
	locker   *fencelock.Locker
	lock     string
	advisory bool
	granted  atomic.Pointer[fencelock.Token] // DoAdvisory has no token to give
}

func (l *library) acquired(i fencelock.AcquiredInfo) { l.granted.Store(&i.Token) }

func (l *library) section(ctx context.Context, p plan, work func(h hold) error) error {
	var opts []fencelock.LockOption
	if p.maxWait >= 0 {
		opts = append(opts, fencelock.MaxWait(p.maxWait))
	}
	if l.advisory {
		return l.locker.DoAdvisory(ctx, l.lock, func(ctx context.Context) error {
			return work(heldContext(ctx, *l.granted.Load()))
		}, opts...)
	}
	return l.locker.Do(ctx, l.lock, func(ctx context.Context, token fencelock.Token) error {
		return work(heldContext(ctx, token))
	}, opts...)
}

func (l *library) close() error { return l.locker.Close() }

func heldContext(ctx context.Context, token fencelock.Token) hold {
	return hold{
		ctx:   ctx,
		token: token,
		alive: func() bool { return ctx.Err() == nil },
		// A function hung on the context is a derived context: it never reads
		// the clock and shows when the watchdog itself ended the hold.
		onLoss: func(tell func(reason string)) func() {
			stop := context.AfterFunc(ctx, func() {
				var loss *fencelock.LostError
				if errors.As(context.Cause(ctx), &loss) {
					tell(string(loss.Reason))
				}
			})
			return func() { stop() }
		},
	}
}
