package fencetest

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencelock/fencelock"
)

// Locker is a fake of [fencelock.Locker] for unit tests of code that calls one. Its
// Do, DoAdvisory and Lead have the signatures of the real ones, so that one interface,
// declared where the code under test is, fits both:
//
//	type Locker interface {
//		Do(ctx context.Context, name string, fn func(ctx context.Context, token fencelock.Token) error, opts ...fencelock.LockOption) error
//	}
//
// It grants as etcd's record would: one holder of a name at a time, in the order in
// which they came, with tokens that strictly rise over all names. Arguments, errors,
// the held context and its cause are those of the real one. It keeps everything in
// memory, and everything that shares one Locker contends as processes that share one
// etcd do; what two Lockers grant has nothing to do with each other.
//
// What goes wrong is what a test asks for, with [Locker.Lose] and [Locker.Refuse];
// [Locker.Holder] and [Locker.Waiting] tell where the calls stand. Nothing else fails:
// there is no lease, no TTL and no renewal, a release is always confirmed, and
// IsOwner of its tokens is never true. Nothing is logged, not even of an unused token;
// [fencelock.RequireTokenUse] makes one an error, as ever.
//
// That code works with the fake proves nothing about the resource it writes to: that
// is for [Run], with the real resource.
//
// Nothing runs in the background, but the timers of MaxWait and MaxHold while a call
// with these is under way. It works inside a bubble of testing/synctest, if it is made
// there. Its methods can be called from any goroutine, the controls also from a
// callback. Make it with [NewLocker].
type Locker struct {
	id uint64 // tells its holders from those of other fakes

	mu    sync.Mutex // never held across a callback or a wait
	rev   int64
	count uint64 // of places in queues
	locks map[string]*fakeLock
}

// fakeLockers counts the fakes of this process.
var fakeLockers atomic.Uint64

// NewLocker returns a fake Locker in which nothing is held and nothing is refused.
func NewLocker() *Locker {
	return &Locker{id: fakeLockers.Add(1), rev: 1, locks: map[string]*fakeLock{}}
}

// Do does what [fencelock.Locker.Do] does: it waits for the lock name, runs fn in the
// caller's goroutine with a context of the hold and a token, and releases the lock,
// also if fn panics or calls [runtime.Goexit]. It returns what Do returns, except for
// [fencelock.ErrUnconfirmed], which it never does. A
// [*fencelock.HeldError] has the label "fencetest" for a holder, and no host or process.
//
// With [fencelock.MaxHold] the lock goes to the next one when fn has returned, or 3 s
// after the context was cancelled, which is the margin of a real Locker with the
// default TTL.
func (l *Locker) Do(ctx context.Context, name string, fn func(ctx context.Context, token fencelock.Token) error, opts ...fencelock.LockOption) error {
	if fn == nil {
		return fakeNilCallback()
	}
	_, _, err := l.do(ctx, fakeCall{name: name, fn: fn, opts: opts})
	return err
}

// DoAdvisory does what [fencelock.Locker.DoAdvisory] does: it is Do without a token. Do
// and DoAdvisory of one name exclude each other.
func (l *Locker) DoAdvisory(ctx context.Context, name string, fn func(ctx context.Context) error, opts ...fencelock.LockOption) error {
	if fn == nil {
		return fakeNilCallback()
	}
	_, _, err := l.do(ctx, fakeCall{
		name: name, advisory: true, opts: opts,
		fn: func(ctx context.Context, _ fencelock.Token) error { return fn(ctx) },
	})
	return err
}

// Lead does what [fencelock.Locker.Lead] does: it runs fn as Do does, and again with a
// new token if the lock was lost and fn has returned. It returns fn's result if the lock
// was held to the end, the context's error when ctx ends, and at once what no repetition
// can mend; after another error of an acquire it tries again.
//
// It makes no pauses, which in a test would only cost time: after a loss it joins the
// queue at once, and after an error when something has changed, which is that the lock
// was released or lost, or that [Locker.Refuse] was called.
func (l *Locker) Lead(ctx context.Context, name string, fn func(ctx context.Context, token fencelock.Token) error, opts ...fencelock.LockOption) error {
	if fn == nil {
		return fakeNilCallback()
	}
	for {
		// From before the attempt, so that no change after it is missed.
		changed := l.changed(name)
		h, loss, err := l.do(ctx, fakeCall{name: name, fn: fn, opts: opts})
		switch {
		case h == nil && (ctx == nil || ctx.Err() != nil || fakeFinal(err)):
			return err
		case h == nil:
			select {
			case <-changed:
			case <-ctx.Done():
				return errors.Join(context.Cause(ctx), err)
			}
		case loss == nil || loss.Reason == fencelock.LostClosed:
			return err
		case ctx.Err() != nil:
			if cause := context.Cause(ctx); !errors.Is(err, cause) {
				err = errors.Join(err, cause)
			}
			return err
		}
	}
}

// Lose takes the lock name from its holder: the holder's context is cancelled with a
// [*fencelock.LostError] of reason as its cause, and the lock is free. So the next one is
// granted it, with a higher token, while the old callback may still run: the overlap
// that a fence is for. Both have happened when Lose returns. The call of the holder
// returns the loss when its callback has returned, joined with the callback's error.
//
// It returns whether there was a holder, and one whose [fencelock.MaxHold] had not run
// out. If not, nothing happens, and a test that meant to lose a lock should fail.
//
// A real Locker that lost a lock for [fencelock.LostClosed] or [fencelock.LostSession]
// acquires nothing any more: call [Locker.Refuse] with [fencelock.ErrClosed] or
// [fencelock.ErrLost] first.
func (l *Locker) Lose(name string, reason fencelock.Reason) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.lock(name).holder()
	if h == nil || h.loss != nil {
		return false
	}
	h.lose(reason)
	l.vacate(h)
	return true
}

// Refuse makes all acquires of name fail with err, those that wait for it now too,
// until it is called with nil. Who holds the lock keeps it. The real one's error is made
// of err:
//
//   - [fencelock.ErrClosed], [fencelock.ErrReentrant], [fencelock.ErrInvalidName] and
//     [fencelock.ErrInvalidOption], and errors that are one of them, are returned as
//     they are by a call that begins.
//   - [fencelock.ErrHeld] becomes a [*fencelock.HeldError], which names the holder if
//     there is one here.
//   - A [*fencelock.HeldError] or [*fencelock.AcquireError] is returned as it is.
//   - Anything else becomes a [*fencelock.AcquireError], which is also
//     [fencelock.ErrNotAcquired]: context.DeadlineExceeded, an error of etcd's, any
//     other. Its Phase is [fencelock.PhaseLease], or [fencelock.PhaseWait] for a
//     call that waited.
//
// Lead returns where the real one does, and otherwise waits for the next call of Refuse.
// The real one goes on waiting where an outage meets it in the queue.
func (l *Locker) Refuse(name string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.lock(name)
	k.refused = err
	k.wake()
	if err == nil {
		return
	}
	for len(k.queue) > 1 {
		h := k.queue[1]
		k.queue = append(k.queue[:1], k.queue[2:]...)
		h.told <- k.refusal(name, fencelock.PhaseWait)
	}
}

// Holder returns the token of who holds the lock name, and false if nobody does. Who
// lost it with [Locker.Lose] does not hold it, also while the callback still runs.
func (l *Locker) Holder(name string) (fencelock.Token, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.lock(name).holder()
	if h == nil {
		return fencelock.Token{}, false
	}
	return h.token, true
}

// Waiting returns how many calls wait in the queue of name behind its holder. In a
// bubble of testing/synctest, synctest.Wait before it makes the number final.
func (l *Locker) Waiting(name string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(len(l.lock(name).queue)-1, 0)
}

// do is one acquisition: it returns the hold, nil if there was none, and its loss.
func (l *Locker) do(ctx context.Context, c fakeCall) (*fakeHold, *fencelock.LostError, error) {
	h, err := l.acquire(ctx, c)
	if err != nil {
		return nil, nil, err
	}
	returned := false
	defer func() {
		if !returned { // fn panicked or called Goexit
			h.release()
		}
	}()
	err = c.fn(h.ctx, h.token)
	returned = true
	lost := h.release()
	return h, lost, h.result(lost, err)
}

// fakeMargin is the real Locker's default: a fifth of 15 s.
const fakeMargin = 3 * time.Second
