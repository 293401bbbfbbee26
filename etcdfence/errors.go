package etcdfence

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// Sentinels, for [errors.Is]. What all fences share comes from the root
// package: [fencelock.ErrStale], [fencelock.ErrNoToken], [fencelock.ErrScope],
// [fencelock.ErrInvalidOption].
var (
	// ErrUnknownOutcome is returned by [Txn.Commit] and [Fence.Advance] when the
	// request was sent and no answer came that says what became of it: mark and
	// effect were applied, or neither was, or they still will be. It is never
	// [fencelock.ErrStale]. Repeating the call with the same token passes as long
	// as no newer token was seen, and compares what the first copy may have
	// written. A repetition that is refused says nothing about the first.
	//
	// "database space exceeded" is such an answer too: etcd gives it also for the
	// transaction that it applied and whose size made it notice.
	ErrUnknownOutcome = errors.New("etcdfence: the transaction got no clear answer: all of it was applied, or nothing")

	// ErrDamagedMark is returned by [Txn.Commit], [Fence.Advance] and
	// [Fence.Highest] when the key of the mark has a value that no fence wrote.
	// Nothing was applied. Only people can repair it: put the highest token that
	// was ever used there, its revision filled up with zeros to 19 digits:
	// 0000000000000012345.694d8a1c5f2e0a07-9f3c2b1a7e6d5c40-1.
	ErrDamagedMark = errors.New("etcdfence: the mark is damaged; nothing was applied")

	// ErrMarkOverlap is returned by [Txn.Commit] for an operation that puts or
	// deletes keys under the prefix of the marks, also as a part of a range or in
	// a nested transaction. No request was sent.
	ErrMarkOverlap = errors.New("etcdfence: an operation writes where the marks are; " +
		"leave that prefix to the fence, or choose another one with WithPrefix")

	// ErrTooManyOps is returned by [Txn.Commit] for more compares or operations
	// than fit into one transaction of etcd beside the check; see
	// [WithMaxTxnOps]. No request was sent, or etcd refused it: nothing was applied.
	ErrTooManyOps = errors.New("etcdfence: too many operations for one transaction; " +
		"split them, and give each transaction the token")
)

// refusals are the answers after which etcd has not applied a transaction and never
// will. It is a list and not the codes they have: among those of exhausted resources
// is ErrNoSpace, which is said of an applied one too.
var refusals = []error{
	// before the transaction is proposed
	rpctypes.ErrEmptyKey, rpctypes.ErrValueProvided, rpctypes.ErrLeaseProvided, rpctypes.ErrInvalidSortOption,
	rpctypes.ErrTooManyOps, rpctypes.ErrDuplicateKey, rpctypes.ErrRequestTooLarge, rpctypes.ErrTooManyRequests,
	rpctypes.ErrNotCapable, rpctypes.Error(rpctypes.ErrGRPCNotSupportedForLearner),
	// when it is looked through, before any of it is applied
	rpctypes.ErrKeyNotFound, rpctypes.ErrLeaseNotFound, rpctypes.ErrCompacted, rpctypes.ErrFutureRev,
	// authentication and permissions
	rpctypes.ErrUserEmpty, rpctypes.ErrUserNotFound, rpctypes.ErrAuthFailed, rpctypes.ErrInvalidAuthToken,
	rpctypes.ErrAuthOldRevision, rpctypes.ErrPermissionDenied,
}

func refused(err error) bool {
	for _, refusal := range refusals {
		if errors.Is(err, refusal) {
			return true
		}
	}
	return false
}

// failure is the error of a request that was sent.
func (f *Fence) failure(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, rpctypes.ErrTooManyOps):
		return fmt.Errorf("%w: etcd refused it, its --max-txn-ops is below %d; say so with WithMaxTxnOps: %w", ErrTooManyOps, f.maxOps, err)
	case errors.Is(err, rpctypes.ErrPermissionDenied):
		return fmt.Errorf("etcdfence: nothing was applied: etcd denies a key of the transaction or its mark; "+
			"the user's role needs readwrite under %q too: %w", f.prefix, err)
	case refused(err):
		return fmt.Errorf("etcdfence: nothing was applied: etcd refused the transaction: %w", err)
	}
	return fmt.Errorf("%w: %w", ErrUnknownOutcome, because(ctx, err))
}

// because adds the end of ctx and its cause to what the client made of it: the
// cause of a held context says that and why the lock was lost.
func because(ctx context.Context, err error) error {
	end := ended(ctx)
	if end == nil {
		return err
	}
	return fmt.Errorf("%w: %w", end, err)
}

// ended returns the end of ctx and its cause, nil while it lives.
func ended(ctx context.Context) error {
	err := ctx.Err()
	if cause := context.Cause(ctx); err != nil && cause != err {
		return fmt.Errorf("%w: %w", err, cause)
	}
	return err
}
