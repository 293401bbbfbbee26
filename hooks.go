package fencelock

import (
	"context"
	"time"
)

// Hooks are called when something happens that an operator asks about. Every
// field may be nil. Each is waited for by the goroutine where it happened, at times
// the one that renews the lease: they must return soon and
// must not call the Locker. A panic in one is contained and logged, and so is
// [runtime.Goexit], as testing's FailNow calls it: each runs in a goroutine of its
// own, which is waited for. No lock is held while they run.
//
// They are called from several goroutines, and what happened at almost the same
// time can be told in either order: a holder that returns while its loss is being
// announced calls ReturnedAfterLoss before Lost, and a lock that is lost as soon as
// it is granted calls Lost before HoldContext and Acquired.
//
// A Locker takes them with [WithHooks]; a fence has hooks of its own, since a
// parsed token knows no Locker, and calls TokenRejected only.
type Hooks struct {
	// Waiting is called when an acquiring call begins to wait behind another in
	// the queue: once a call, also if it has to queue again. Waited follows.
	Waiting func(WaitingInfo)
	// Waited is called when a wait in the queue ended, with or without a grant.
	Waited func(WaitedInfo)
	// HoldContext is called when a lock was granted, before Acquired, and returns
	// the context whose values the hold's context has: ctx, which has the acquiring
	// call's, with values added. It is how a tracer puts the callback's spans
	// inside of its own. A context with a cancellation or a deadline of its own, or
	// one that does not come from ctx, is logged and not used, and nil is not used.
	HoldContext func(ctx context.Context, info AcquiredInfo) context.Context
	// Acquired is called when a lock was granted, before the callback runs.
	Acquired func(AcquiredInfo)
	// NotAcquired is called when an acquiring call failed after its arguments
	// were found good.
	NotAcquired func(NotAcquiredInfo)
	// Renewed is called when a renewal of the lease was answered.
	Renewed func(RenewedInfo)
	// RenewalFailed is called when one attempt to renew the lease failed. It is
	// no loss yet.
	RenewalFailed func(RenewalFailedInfo)
	// Lost is called when a lock is lost, after its context was cancelled.
	Lost func(LostInfo)
	// ReturnedAfterLoss is called when the callback of a lost lock returned, or
	// Release was called.
	ReturnedAfterLoss func(ReturnedAfterLossInfo)
	// Released is called when a lock that was not lost was released, or its
	// release ended without a clear answer.
	Released func(ReleasedInfo)
	// TokenUnused is called when a callback of Do or Lead returned nil and
	// never used its token.
	TokenUnused func(TokenUnusedInfo)
	// TokenRejected is called by a fence that refused a token.
	TokenRejected func(TokenRejectedInfo)
}

// WaitingInfo is what [Hooks] Waiting gets.
type WaitingInfo struct {
	Context context.Context // the acquiring call's
	Name    string
}

// WaitedInfo is what [Hooks] Waited gets.
type WaitedInfo struct {
	Context context.Context // the acquiring call's
	Name    string
	Wait    time.Duration // from joining the queue to leaving or heading it
	Granted bool
}

// AcquiredInfo is what [Hooks] HoldContext and Acquired get.
type AcquiredInfo struct {
	Context  context.Context // the acquiring call's
	Name     string
	Token    Token         // looking at its revision counts as use; String does not
	Started  time.Time     // when the acquiring call began
	Took     time.Duration // from then to the grant
	Waited   bool          // whether it had to queue behind another
	Wait     time.Duration // the part of Took that it queued, 0 if it did not
	Advisory bool          // from DoAdvisory
	TTL      time.Duration // the lease's TTL as granted
}

// Result is why an acquiring call failed, as an operator would group it.
type Result string

const (
	// ResultHeld: TryAcquire, or MaxWait(0), found another holder.
	ResultHeld Result = "held"
	// ResultWaitExpired: [MaxWait] ran out in the queue.
	ResultWaitExpired Result = "wait-expired"
	// ResultCanceled: the caller's context ended.
	ResultCanceled Result = "canceled"
	// ResultUnreachable: no member of etcd answered in the time there was.
	ResultUnreachable Result = "unreachable"
	// ResultNoQuorum: etcd answered that it has no leader or no quorum.
	ResultNoQuorum Result = "no-quorum"
	// ResultDenied: etcd refused the user or its role.
	ResultDenied Result = "denied"
	// ResultQuota: etcd is out of space or refuses load.
	ResultQuota Result = "quota"
	// ResultClosed: the Locker was closed meanwhile.
	ResultClosed Result = "closed"
	// ResultOther is everything else; see the error.
	ResultOther Result = "other"
)

// NotAcquiredInfo is what [Hooks] NotAcquired gets.
type NotAcquiredInfo struct {
	Context context.Context // the acquiring call's
	Name    string
	Result  Result
	Took    time.Duration // from the call's beginning to its failure
	Wait    time.Duration // the part of Took that it queued, 0 if it did not
	Err     error
}

// RenewedInfo is what [Hooks] Renewed gets.
type RenewedInfo struct {
	Lease  int64
	TTL    time.Duration // as granted
	Took   time.Duration // from sending to the answer
	Margin time.Duration // how much was left to the deadline when the answer came
	Locks  int           // locks held on the lease
}

// RenewalFailedInfo is what [Hooks] RenewalFailed gets.
type RenewalFailedInfo struct {
	Lease int64
	Err   error
	Left  time.Duration // to the deadline at which the locks are lost
	Locks int           // locks held on the lease
}

// LostInfo is what [Hooks] Lost gets.
type LostInfo struct {
	Context context.Context // the acquiring call's
	Err     *LostError      // Returned is zero, unless it was Release that found the loss
	Held    time.Duration   // from grant to loss
	Running bool            // whether the callback was still running or the lock not yet released
}

// ReturnedAfterLossInfo is what [Hooks] ReturnedAfterLoss gets.
type ReturnedAfterLossInfo struct {
	Context context.Context // the acquiring call's
	Err     *LostError      // Returned is set
	After   time.Duration   // how long the work went on after the loss
}

// ReleasedInfo is what [Hooks] Released gets.
type ReleasedInfo struct {
	Context   context.Context // the acquiring call's
	Name      string
	Token     Token
	Held      time.Duration // from grant to the return of the callback or the call of Release
	Took      time.Duration // the release itself
	TTL       time.Duration // the lease's TTL as granted
	Confirmed bool          // false with [ErrUnconfirmed]
	Err       error         // nil if confirmed
}

// TokenUnusedInfo is what [Hooks] TokenUnused gets.
type TokenUnusedInfo struct {
	Context context.Context // the acquiring call's
	Name    string
	Token   Token
}

// TokenRejectedInfo is what [Hooks] TokenRejected gets.
type TokenRejectedInfo struct {
	Token Token // the refused token, zero if there was none
	// Err is a [*StaleError], [ErrNoToken], [ErrScope] or [ErrInvalidToken], or what
	// a verifier of package httpfence or grpcfence said.
	Err error
}
