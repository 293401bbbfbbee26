package fencelock

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Shutdown closes the Locker in good order: it takes no new work, ends the
// waits in its queues with [ErrClosed], and waits until every lock is given
// back, renewing the lease, or until ctx ends. Then it does what [Locker.Close]
// does.
//
// It returns Close's result if that came before ctx ended, else an error that
// is the context's; then Close goes on in the background, the locks still held
// are lost with reason [LostClosed], and a call of Close waits for it. After an
// earlier Shutdown or Close it returns [ErrClosed].
func (l *Locker) Shutdown(ctx context.Context) error {
	if ctx == nil {
		return fmt.Errorf("%w: the context is nil", ErrInvalidOption)
	}
	if !l.stopNewWork() {
		return ErrClosed
	}
	waited := l.await(ctx.Done(), func() bool { return l.holds == 0 })
	done := make(chan error, 1)
	// Owned by closeDone: every Close waits for it.
	go func() { done <- l.Close() }()
	if waited {
		select {
		case err := <-done:
			return err
		case <-ctx.Done():
		}
	}
	return fmt.Errorf("fencelock: shutdown ended before every lock was given back and the lease revoked; "+
		"closing goes on in the background, wait for it with Close: %w", ctx.Err())
}

// Close ends the Locker. Waits in its queues end with [ErrClosed]; locks that
// are held are lost with reason [LostClosed], and their holders have one margin
// to return before the lease is revoked. It returns within the margin and 5 s,
// also if etcd does not answer; the etcd client stays open.
//
// It returns nil if the lease is gone from etcd, or there was none; else an
// error that is [ErrUnconfirmed] and says what is left and for how long. An
// adopted session's lease is not revoked: the keys are deleted one by one, and a
// key that cannot be found or deleted stays until the session is closed, which
// the error says. A lease that etcd granted and could not tell of is not counted:
// without keys it is in nobody's way, and it expires after its TTL. Calling Close
// again returns the same result; it may be called from several goroutines.
func (l *Locker) Close() error {
	// Not a sync.Once, whose later callers wait for a mutex: under
	// testing/synctest that would stop the clock that the first one waits for.
	if l.closeBegun.CompareAndSwap(false, true) {
		l.closeResult = l.close()
		close(l.closeDone)
	}
	<-l.closeDone
	return l.closeResult
}

// stopNewWork reports whether this call was the first to close the Locker to
// new work.
func (l *Locker) stopNewWork() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.closed = true
	close(l.closing)
	return true
}

// await waits until cond holds, which is looked at with l.mu held whenever a
// hold or a slot was given back, and reports whether it did before end.
func (l *Locker) await(end <-chan struct{}, cond func() bool) bool {
	for {
		l.mu.Lock()
		ok, change := cond(), l.change
		l.mu.Unlock()
		if ok {
			return true
		}
		select {
		case <-change:
		case <-end:
			return false
		}
	}
}

func (l *Locker) close() error {
	l.stopNewWork()

	now := time.Now()
	var margin time.Duration
	var told []*Lock
	l.mu.Lock()
	for le := range l.leases {
		margin = max(margin, le.margin)
		for k := range le.holds {
			if k.markLost(LostClosed, now, nil) {
				told = append(told, k)
			}
		}
	}
	l.mu.Unlock()
	announceLosses(told)
	// Their holders are told; they get the margin to stop in, as with any loss.
	bounded, cancel := context.WithTimeout(context.Background(), margin)
	l.await(bounded.Done(), func() bool { return l.holds == 0 })
	cancel()

	ctx, cancel := context.WithTimeout(context.Background(), attemptBound)
	defer cancel()
	// A lease that is being granted right now is to be revoked too.
	l.await(ctx.Done(), func() bool { return l.preparing == nil })
	err := l.endLeases(ctx)

	l.mu.Lock()
	l.stopped = true
	l.mu.Unlock()
	l.cancel()
	l.wg.Wait()
	return err
}

// endLeases removes from etcd what the Locker put there.
func (l *Locker) endLeases(ctx context.Context) error {
	l.mu.Lock()
	var own, adopted []*lease
	for le := range l.leases {
		if le.adopted {
			adopted = append(adopted, le)
			for k := range le.holds {
				k.entry.discardLocked() // its holder goes on; the key does not
			}
			continue
		}
		own = append(own, le)
		if le.state != leaseEnding {
			l.startEnding(le)
		}
	}
	l.mu.Unlock()

	var failed error
	for _, le := range own {
		err := errClientClosed
		if !l.clientClosed() {
			err = le.revoke(ctx)
		}
		if err == nil {
			l.forget(le)
			continue
		}
		failed = errors.Join(failed, fmt.Errorf("%w: closing: lease %x is not known to be revoked; its keys go when it expires, %v after etcd is well again at the latest: %w",
			ErrUnconfirmed, int64(le.id), le.ttl(), err))
	}
	for _, le := range adopted {
		if !l.await(ctx.Done(), func() bool { return le.used == 0 }) {
			l.mu.Lock()
			left := le.used
			l.mu.Unlock()
			failed = errors.Join(failed, fmt.Errorf("%w: closing: %d keys on the adopted session's lease %x could not be deleted for certain; only Session.Close ends them",
				ErrUnconfirmed, left, int64(le.id)))
		}
	}
	return failed
}
