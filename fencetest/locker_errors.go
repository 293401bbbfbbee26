package fencetest

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/seam"
)

// fakeCall is one call of Do, DoAdvisory or Lead.
type fakeCall struct {
	name     string
	advisory bool
	fn       func(ctx context.Context, token fencelock.Token) error
	opts     []fencelock.LockOption
}

// check refuses what the real one refuses before it sends anything, in its order and
// its words.
func (c fakeCall) check(ctx context.Context, l *Locker) (seam.Options, error) {
	if ctx == nil {
		return seam.Options{}, fmt.Errorf("%w: the context is nil", fencelock.ErrInvalidOption)
	}
	// An empty text is never a token; the name is looked at first.
	if _, err := fencelock.ParseToken(c.name, ""); errors.Is(err, fencelock.ErrInvalidName) {
		return seam.Options{}, err
	}
	cfg, err := fakeOptions(c.opts)
	if err != nil {
		return seam.Options{}, err
	}
	if cfg.RequireUse && c.advisory {
		return seam.Options{}, fmt.Errorf("%w: RequireTokenUse with DoAdvisory, which has no token; use Do", fencelock.ErrInvalidOption)
	}
	if fakeHoldOf(ctx).reentrant(l, c.name) {
		return seam.Options{}, fmt.Errorf("%w (lock %q)", fencelock.ErrReentrant, c.name)
	}
	return cfg, nil
}

func fakeNilCallback() error {
	return fmt.Errorf("%w: the callback is nil", fencelock.ErrInvalidOption)
}

// refusal makes the error of a call in phase that [Locker.Refuse] makes fail. l.mu must
// be held.
func (k *fakeLock) refusal(name string, phase fencelock.Phase) error {
	err := k.refused
	var failed *fencelock.AcquireError
	var held *fencelock.HeldError
	switch {
	case errors.As(err, &failed), errors.As(err, &held):
		return err
	case errors.Is(err, fencelock.ErrHeld):
		return k.held(name)
	case phase == fencelock.PhaseLease && fakeIsAny(err,
		fencelock.ErrClosed, fencelock.ErrReentrant, fencelock.ErrInvalidName, fencelock.ErrInvalidOption):
		return err
	}
	return &fencelock.AcquireError{Name: name, Phase: phase, Err: err}
}

// fakeFinal reports whether the real Lead returns an acquire's error instead of trying
// again.
func fakeFinal(err error) bool {
	if fakeIsAny(err, fencelock.ErrInvalidOption, fencelock.ErrInvalidName, fencelock.ErrReentrant,
		fencelock.ErrClosed, fencelock.ErrForeignKey, fencelock.ErrLost) {
		return true
	}
	// What etcd says to who may not. The text is enough to tell what a test gave to
	// Refuse, and saves the packages of etcd and gRPC.
	for _, denied := range []string{
		"etcdserver: permission denied",
		"etcdserver: authentication failed, invalid user ID or password",
		"etcdserver: user name not found",
		"etcdserver: user name is empty",
		"code = PermissionDenied",
	} {
		if strings.Contains(err.Error(), denied) {
			return true
		}
	}
	return false
}

func fakeIsAny(err error, targets ...error) bool {
	for _, t := range targets {
		if errors.Is(err, t) {
			return true
		}
	}
	return false
}

// fakeEnded is the error of a call whose context ended in phase.
func fakeEnded(ctx context.Context, name string, phase fencelock.Phase) error {
	err := context.Cause(ctx)
	if cerr := ctx.Err(); !errors.Is(err, cerr) {
		err = fmt.Errorf("%w; %w", cerr, err)
	}
	return &fencelock.AcquireError{Name: name, Phase: phase, Err: err}
}

// result is what Do returns when the callback returned fnErr.
func (h *fakeHold) result(lost *fencelock.LostError, fnErr error) error {
	if lost != nil {
		// The cause of the context is this loss, as it was before the callback
		// returned: once is enough.
		if cause, ok := fnErr.(*fencelock.LostError); fnErr == nil || ok && cause == h.loss {
			return lost
		}
		return errors.Join(lost, fnErr)
	}
	if h.advisory {
		return fnErr
	}
	if stale := fakeStale(fnErr, h.token); stale != nil {
		return fmt.Errorf("%w at %q: the fake granted token %s, and the lock was held throughout, but a fence had already seen %s: %w",
			fencelock.ErrTokenRegression, stale.Scope, stale.Presented, stale.Highest, fnErr)
	}
	if fnErr == nil && h.requireUse && !h.used.Load() {
		return fmt.Errorf("%w (lock %q)", fencelock.ErrTokenUnused, h.name)
	}
	return fnErr
}

// fakeStale returns the *StaleError in err whose refused token is t. errors.As finds
// the first one, which can be of another lock.
func fakeStale(err error, t fencelock.Token) *fencelock.StaleError {
	if stale, ok := err.(*fencelock.StaleError); ok && stale.Presented.Equal(t) {
		return stale
	}
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		return fakeStale(e.Unwrap(), t)
	case interface{ Unwrap() []error }:
		for _, err := range e.Unwrap() {
			if stale := fakeStale(err, t); stale != nil {
				return stale
			}
		}
	}
	return nil
}
