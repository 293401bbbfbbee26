package fencelock

import (
	"errors"
	"fmt"
	"time"
)

// Sentinels, for [errors.Is]. Where there is something to know beside the
// kind, the error is also one of the types below, for [errors.As].
var (
	// ErrInvalidOption is wrapped by the error for an option, a client, a
	// context or a callback that cannot be used. It is returned by [New] and by
	// every call that takes options, before any request is sent.
	ErrInvalidOption = errors.New("fencelock: invalid option")

	// ErrInvalidName is wrapped by the error for an empty lock name and for
	// one of more than 1024 bytes. It is returned before any request is sent.
	ErrInvalidName = errors.New("fencelock: invalid lock name")

	// ErrInvalidToken is wrapped by the error [ParseToken] returns for a text
	// that is not a token's.
	ErrInvalidToken = errors.New("fencelock: malformed fencing token")

	// ErrNotAcquired is what every failed acquiring call is: [AcquireError],
	// [HeldError]. The callback did not run, and nothing of the attempt is left
	// in etcd, or it is being cleaned up.
	ErrNotAcquired = errors.New("fencelock: lock not acquired")

	// ErrHeld is what a [HeldError] is: somebody else has the lock.
	ErrHeld = errors.New("fencelock: lock is held by another")

	// ErrReentrant is returned by an acquiring call whose context comes from a
	// hold of the same name on the same Locker that is not yet released: it
	// would wait for itself. Nothing is sent to etcd.
	ErrReentrant = errors.New("fencelock: lock is already held by this context and is not reentrant; " +
		"pass the context and the token down instead of acquiring again")

	// ErrClosed is returned by every method of a Locker after
	// [Locker.Shutdown] or [Locker.Close] was called; by a [Locker.List] that is under
	// way at its next step. Nothing is sent to etcd.
	ErrClosed = errors.New("fencelock: locker is closed")

	// ErrReleased is returned by [Lock.Err] after the lock was released, and
	// is the [context.Cause] of its context then.
	ErrReleased = errors.New("fencelock: lock was released")

	// ErrLost is what a [LostError] is: the lock was lost while it was held.
	ErrLost = errors.New("fencelock: lock was lost while it was held")

	// ErrNotHeld is wrapped by the error [Locker.Evict] returns for a lock that
	// nobody holds. Nothing was changed.
	ErrNotHeld = errors.New("fencelock: lock is held by nobody")

	// ErrUnconfirmed is returned by [Locker.Do] and [Lock.Release] when the
	// release got no clear answer from etcd. The callback did run. The key goes
	// on being deleted in the background, and goes with its lease at the latest;
	// whether the record named this holder up to the end is not known.
	// [Locker.Evict] returns it when it is not known whether the holder was evicted,
	// and [Locker.Close] when something may be left in etcd.
	ErrUnconfirmed = errors.New("fencelock: the end of a hold was not confirmed by etcd")

	// ErrStale is what a [StaleError] is: a fence refused a superseded token.
	ErrStale = errors.New("fencelock: stale fencing token")

	// ErrNoToken is returned by every fence, and by the Token methods that
	// produce something to send, for a zero or missing token, and by
	// [Locker.Evict]. No effect was applied.
	ErrNoToken = errors.New("fencelock: no fencing token; pass the token the callback was given")

	// ErrScope is returned by a fence for a token of another lock than the one
	// the fence is bound to, and by [Locker.Evict] for one of another lock than the
	// one named. No effect was applied.
	ErrScope = errors.New("fencelock: fencing token of another lock")

	// ErrTokenRegression is returned by [Locker.Do] when a fence refused the
	// callback's token as stale although etcd's record named this holder from
	// grant to release: tokens went backwards. The error names both tokens and
	// still is the callback's [ErrStale].
	ErrTokenRegression = errors.New("fencelock: fencing tokens went backwards")

	// ErrTokenUnused is returned by [Locker.Do] with [RequireTokenUse] when
	// the callback returned nil and never used its token. The lock was released.
	ErrTokenUnused = errors.New("fencelock: the callback never used its fencing token; " +
		"check it where the effect lands, or use DoAdvisory if two runs at once do no harm")

	// ErrForeignKey is wrapped by an [AcquireError] when a key without a lease
	// stands in the lock's queue: it would block the lock for ever. The error
	// names the key. Nothing of the attempt is left behind.
	ErrForeignKey = errors.New("fencelock: a key without a lease blocks the queue")
)

// Phase says how far an acquiring call came before it failed.
type Phase string

const (
	// PhaseLease is obtaining or renewing the lease the lock's key is bound to.
	PhaseLease Phase = "lease"
	// PhaseQueue is putting the key into the lock's queue.
	PhaseQueue Phase = "queue"
	// PhaseWait is waiting in the queue for those ahead.
	PhaseWait Phase = "wait"
	// PhaseGrant is the last check before the lock is handed out.
	PhaseGrant Phase = "grant"
)

// Reason says why a lock was lost.
type Reason string

const (
	// LostExpired: no renewal was answered in time, and the moment came after
	// which etcd could give the lock to another.
	LostExpired Reason = "expired"
	// LostRevoked: etcd answered that the lease is gone before it could have
	// expired: somebody revoked it.
	LostRevoked Reason = "revoked"
	// LostDeleted: the lock's own key was deleted; by an operator, or together
	// with a revoked lease when the deletion was seen before a renewal's answer.
	LostDeleted Reason = "deleted"
	// LostDenied: etcd withdrew the permission to renew the lease.
	LostDenied Reason = "denied"
	// LostMaxHold: the lock was held for as long as [MaxHold] allows.
	LostMaxHold Reason = "max-hold"
	// LostClosed: the Locker was closed while the lock was held.
	LostClosed Reason = "closed"
	// LostSession: the adopted session's lease is gone; see [WithSession].
	LostSession Reason = "session"
)

// AcquireError is the error of an acquiring call that failed for another
// reason than somebody else holding the lock. It is [ErrNotAcquired], and
// whatever Err is: the context's error, and the last thing etcd said.
// Nothing of the attempt is left in etcd, or it is being cleaned up.
type AcquireError struct {
	Name  string // the lock's name
	Phase Phase  // how far the call came
	Err   error  // the cause; never nil
}

func (e *AcquireError) Error() string {
	return fmt.Sprintf("fencelock: lock %q not acquired (%s): %v", e.Name, e.Phase, e.Err)
}

// Unwrap makes the error [ErrNotAcquired] and its cause.
func (e *AcquireError) Unwrap() []error { return []error{ErrNotAcquired, e.Err} }

// HeldError is returned by [Locker.TryAcquire], and by the other acquiring
// calls when [MaxWait] ran out, if somebody else has the lock; and by
// [Locker.Evict], if somebody else has it than the one to be evicted. It is [ErrHeld]
// and [ErrNotAcquired]. Nothing of the attempt is left in etcd.
type HeldError struct {
	Name   string // the lock's name
	Holder Claim  // who etcd's record named; Remaining is unknown and zero
}

func (e *HeldError) Error() string {
	who := e.Holder.Label
	if who == "" {
		who = "a holder without a label"
	}
	return fmt.Sprintf("fencelock: lock %q is held by %s (token %s)", e.Name, who, e.Holder.Token)
}

// Unwrap makes the error [ErrHeld] and [ErrNotAcquired].
func (e *HeldError) Unwrap() []error { return []error{ErrHeld, ErrNotAcquired} }

// LostError says that a lock was lost while it was held, and is [ErrLost]. It
// is what [Lock.Err], [Lock.Release] and [Locker.Do] return, and the
// [context.Cause] of the held context. The lock's key is gone from etcd or
// going; another may have been granted the lock since.
type LostError struct {
	Name   string // the lock's name
	Token  Token  // the token of the lost acquisition; does not count as its use
	Reason Reason // why it was lost

	// LastConfirmed is when the last renewal or grant that etcd answered was
	// sent: up to then plus the lease's TTL no other can have been granted the
	// lock by expiry. Wall clock of this machine.
	LastConfirmed time.Time
	// LostAt is when the loss was noticed and the context cancelled. It can lie well
	// after another was granted the lock, if the process was stopped meanwhile, and
	// the first thing that a process does when it goes on need not be to notice.
	LostAt time.Time
	// Returned is when the holder's callback returned or Release was called;
	// zero while it has not. The effects to audit are those between LastConfirmed
	// and Returned, and those that were still on their way then.
	Returned time.Time
	// Err is what etcd said, where it said something; else nil.
	Err error
}

func (e *LostError) Error() string {
	s := fmt.Sprintf("fencelock: lock %q (token %s) was lost: %s", e.Name, e.Token, e.Reason)
	if !e.LastConfirmed.IsZero() {
		s += fmt.Sprintf(", %s after its lease was last confirmed", e.LostAt.Sub(e.LastConfirmed).Round(time.Millisecond))
	}
	if after := e.Returned.Sub(e.LostAt).Round(time.Millisecond); !e.Returned.IsZero() && after > 0 {
		s += fmt.Sprintf("; the holder went on for %s", after)
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap makes the error [ErrLost] and what etcd said.
func (e *LostError) Unwrap() []error {
	if e.Err == nil {
		return []error{ErrLost}
	}
	return []error{ErrLost, e.Err}
}

// StaleError is returned by every fence that refuses a token because a newer
// one, or the same number from another holder, was seen. It is [ErrStale]. The
// effect was not applied.
type StaleError struct {
	Scope     string // what the fence protects: the lock's name
	Presented Token  // the token that was refused
	Highest   Token  // the mark it was refused for
}

func (e *StaleError) Error() string {
	return fmt.Sprintf("fencelock: stale fencing token for %q: presented %s, highest seen is %s; the effect was not applied",
		e.Scope, e.Presented, e.Highest)
}

// Unwrap makes the error [ErrStale].
func (e *StaleError) Unwrap() error { return ErrStale }

// regressionError is [ErrTokenRegression] with the two tokens, and still what
// the callback returned.
type regressionError struct {
	stale *StaleError
	err   error // what fn returned
}

func (e *regressionError) Error() string {
	return fmt.Sprintf("%v at %q: the lock's record named token %s from grant to release, but a fence had already seen %s; "+
		"either etcd was restored without --bump-revision (restore again with --bump-revision and --mark-compacted, "+
		"or raise etcd's revision above the mark), or locks of one name in two clusters or under two prefixes share one mark "+
		"(give each a name, or a fence, of its own), or somebody presented a number that was never granted (lower the mark by hand): %v",
		ErrTokenRegression, e.stale.Scope, e.stale.Presented, e.stale.Highest, e.err)
}

func (e *regressionError) Unwrap() []error { return []error{ErrTokenRegression, e.err} }
