package fencetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/seam"
)

// fakeLock is the queue of one name, guarded by its Locker's mu.
type fakeLock struct {
	queue   []*fakeHold   // the first one holds the lock
	refused error         // see Refuse
	change  chan struct{} // closed and renewed at a change that Lead waits for
}

func (l *Locker) lock(name string) *fakeLock {
	k := l.locks[name]
	if k == nil {
		k = &fakeLock{change: make(chan struct{})}
		l.locks[name] = k
	}
	return k
}

func (k *fakeLock) holder() *fakeHold {
	if len(k.queue) == 0 {
		return nil
	}
	return k.queue[0]
}

// wake wakes the calls of Lead that failed.
func (k *fakeLock) wake() {
	close(k.change)
	k.change = make(chan struct{})
}

func (l *Locker) changed(name string) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lock(name).change
}

// fakeHold is a place in a queue, and a hold when it has become the first.
type fakeHold struct {
	l        *Locker
	name     string
	token    fencelock.Token
	used     *atomic.Bool // the token
	advisory bool
	// requireUse makes a callback that never used its token an error.
	requireUse bool
	since      time.Time
	ctx        context.Context // the callback's
	cancel     context.CancelCauseFunc
	outer      *fakeHold  // the hold it is acquired in
	told       chan error // nil when it is granted, else why it left the queue

	inner map[*fakeHold]struct{} // holds acquired in it; guarded by fakeNesting

	// guarded by l.mu
	granted  time.Time
	loss     *fencelock.LostError
	returned bool
	timer    *time.Timer // of MaxHold, then of the margin
}

// fakeNesting guards which hold is inside of which. They can be of several Lockers,
// whose mutexes have no order among each other.
var fakeNesting sync.Mutex

type fakeHoldKey struct{}

func fakeHoldOf(ctx context.Context) *fakeHold {
	h, _ := ctx.Value(fakeHoldKey{}).(*fakeHold)
	return h
}

// acquire acquires the lock of a call, or explains why not and leaves nothing behind.
func (l *Locker) acquire(ctx context.Context, c fakeCall) (*fakeHold, error) {
	cfg, err := c.check(ctx, l)
	if err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, fakeEnded(ctx, c.name, fencelock.PhaseLease)
	}
	l.mu.Lock()
	k := l.lock(c.name)
	switch {
	case k.refused != nil:
		defer l.mu.Unlock()
		return nil, k.refusal(c.name, fencelock.PhaseLease)
	case k.holder() != nil && cfg.MaxWaitSet && cfg.MaxWait == 0:
		defer l.mu.Unlock()
		return nil, k.held(c.name)
	}
	h := l.join(ctx, k, c, cfg.RequireUse)
	l.mu.Unlock()
	if err := l.wait(ctx, k, h, cfg); err != nil {
		h.cancel(nil)
		return nil, err
	}
	l.mu.Lock()
	if cfg.MaxHold > 0 {
		h.timer = time.AfterFunc(cfg.MaxHold, h.heldTooLong)
	}
	l.mu.Unlock()
	h.nest()
	return h, nil
}

// join takes a place in the queue, and with it a token: the real one's is the
// creation revision of a key that is put when the wait begins. l.mu must be held.
func (l *Locker) join(ctx context.Context, k *fakeLock, c fakeCall, requireUse bool) *fakeHold {
	l.rev++
	l.count++
	used := new(atomic.Bool)
	token, err := seam.MintToken(c.name, fmt.Sprintf("%d.fake-%d-%d", l.rev, l.id, l.count), used)
	if err != nil {
		panic("fencetest: a token that the fake made is none: " + err.Error())
	}
	h := &fakeHold{
		l: l, name: c.name, token: token.(fencelock.Token), used: used, requireUse: requireUse, advisory: c.advisory, since: time.Now().Round(0),
		outer: fakeHoldOf(ctx), told: make(chan error, 1),
	}
	// Made here and not at the grant, so that the lock can be lost from then on.
	inner, cancel := context.WithCancelCause(ctx)
	h.ctx, h.cancel = context.WithValue(inner, fakeHoldKey{}, h), cancel
	k.queue = append(k.queue, h)
	if len(k.queue) == 1 {
		h.grant()
	}
	return h
}

func (h *fakeHold) grant() {
	h.granted = time.Now().Round(0)
	h.told <- nil
}

// wait waits until h holds the lock.
func (l *Locker) wait(ctx context.Context, k *fakeLock, h *fakeHold, cfg seam.Options) error {
	var expired <-chan time.Time
	if cfg.MaxWaitSet {
		t := time.NewTimer(cfg.MaxWait)
		defer t.Stop()
		expired = t.C
	}
	var err error
	select {
	case err = <-h.told: // at once if the lock was free
	case <-ctx.Done():
		l.leave(h)
		return fakeEnded(ctx, h.name, fencelock.PhaseWait)
	case <-expired:
		if err := l.giveUp(k, h); err != nil {
			return err
		}
		err = <-h.told // at the last moment
	}
	if err == nil && ctx.Err() != nil {
		l.leave(h)
		return fakeEnded(ctx, h.name, fencelock.PhaseGrant)
	}
	return err
}

// giveUp leaves the queue because MaxWait has run out, and says who has the lock; nil
// if h does not wait any more.
func (l *Locker) giveUp(k *fakeLock, h *fakeHold) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if slices.Index(k.queue, h) <= 0 {
		return nil
	}
	l.vacate(h)
	return k.held(h.name)
}

func (l *Locker) leave(h *fakeHold) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.vacate(h)
}

// vacate takes h out of its queue, if it still stands there, and grants the lock to
// the next one if h had it. l.mu must be held.
func (l *Locker) vacate(h *fakeHold) {
	k := l.lock(h.name)
	i := slices.Index(k.queue, h)
	if i < 0 {
		return
	}
	l.rev++ // a deletion in etcd is a revision too: nobody should count on neighbours
	k.queue = slices.Delete(k.queue, i, i+1)
	if i > 0 {
		return
	}
	if next := k.holder(); next != nil {
		next.grant()
	}
	k.wake()
}

// held is the error that names the holder. l.mu must be held.
func (k *fakeLock) held(name string) error {
	err := &fencelock.HeldError{Name: name}
	if h := k.holder(); h != nil {
		err.Holder = fencelock.Claim{Token: h.token, Label: "fencetest", Since: h.since}
	}
	return err
}

// lose loses a lock that is held; vacate follows, now or later. l.mu must be held,
// so that the context has ended before another can be granted the lock.
func (h *fakeHold) lose(reason fencelock.Reason) {
	h.loss = &fencelock.LostError{
		Name: h.name, Token: h.token, Reason: reason,
		LastConfirmed: h.granted, // nothing is renewed
		LostAt:        time.Now().Round(0),
	}
	fakeNesting.Lock()
	defer fakeNesting.Unlock()
	h.end(h.loss)
}

// end cancels the context of the hold, and those of holds inside of it that were made
// without its cancellation. fakeNesting must be held.
func (h *fakeHold) end(cause *fencelock.LostError) {
	h.cancel(cause)
	for i := range h.inner {
		i.end(cause)
	}
}

// heldTooLong is the end of MaxHold: the context ends now, and the lock is free when
// the callback has returned, or one margin later.
func (h *fakeHold) heldTooLong() {
	h.l.mu.Lock()
	defer h.l.mu.Unlock()
	if h.loss != nil || h.returned {
		return
	}
	h.lose(fencelock.LostMaxHold)
	h.timer = time.AfterFunc(fakeMargin, func() { h.l.leave(h) })
}

// nest makes the loss of the hold around h end h's context.
func (h *fakeHold) nest() {
	o := h.outer
	if o == nil {
		return
	}
	fakeNesting.Lock()
	defer fakeNesting.Unlock()
	if o.inner == nil {
		o.inner = map[*fakeHold]struct{}{}
	}
	o.inner[h] = struct{}{}
	// It may have been lost while h waited.
	var loss *fencelock.LostError
	if errors.As(context.Cause(o.ctx), &loss) {
		h.end(loss)
	}
}

// release gives the lock back, and returns its loss if it had been lost.
func (h *fakeHold) release() *fencelock.LostError {
	if o := h.outer; o != nil {
		fakeNesting.Lock()
		delete(o.inner, h)
		fakeNesting.Unlock()
	}
	h.l.mu.Lock()
	defer h.l.mu.Unlock()
	h.returned = true
	if h.timer != nil {
		h.timer.Stop()
	}
	h.cancel(fencelock.ErrReleased) // no effect if it was lost
	h.l.vacate(h)
	if h.loss == nil {
		return nil
	}
	lost := *h.loss
	lost.Returned = time.Now().Round(0)
	return &lost
}

// reentrant reports whether a context of hold h, or nil, is one of a hold of name on l
// that is not released. Lost is not released: its callback still runs.
func (h *fakeHold) reentrant(l *Locker, name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for ; h != nil; h = h.outer {
		if h.l == l && h.name == name && !h.returned {
			return true
		}
	}
	return false
}
