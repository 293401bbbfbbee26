package sqlfence

import (
	"context"
	"errors"
	"fmt"
)

// Sentinels, for [errors.Is]. What all fences share comes from the root
// package: [fencelock.ErrStale], [fencelock.ErrNoToken],
// [fencelock.ErrScope], [fencelock.ErrInvalidOption].
var (
	// ErrUnknownOutcome is returned by [Fence.Tx] and [Fence.Advance] when the
	// commit was sent and no answer came that says what became of it: mark and
	// effect were applied, or neither was. It is never [fencelock.ErrStale].
	// Repeating the call with the same token passes as long as no newer token
	// was seen, so an effect that is the same twice can simply be repeated. A
	// repetition that is refused says nothing about the first.
	ErrUnknownOutcome = errors.New("sqlfence: the commit got no clear answer: all of the transaction was applied, or nothing")

	// ErrTransactionEnded is returned by [Fence.Tx] when the transaction was over
	// before its commit, because a statement in the callback ended it and the
	// callback went on. See the package's documentation for the statements that
	// do. What ran before that statement was undone, or was committed by it; what
	// ran after it was applied at once and without the fence. Look at what the
	// callback did.
	ErrTransactionEnded = errors.New("sqlfence: a statement of the callback ended the transaction, and the ones after it were not fenced; " +
		"return the error of every statement, and run none that commits by itself")

	// ErrBadTable is returned by [New], and by every call that uses the table of
	// marks, if its columns cannot hold marks: a token that is cut, rounded or
	// compared as a text would let stale ones pass. The error says how to mend
	// each. Nothing was applied.
	ErrBadTable = errors.New("sqlfence: the table cannot be trusted with marks")

	// ErrNoTable is returned by every call but [Fence.Migrate] when the table
	// of marks does not exist. Nothing was applied.
	ErrNoTable = errors.New("sqlfence: the table of marks does not exist; " +
		"call Migrate once, or put the text of DDL into your migrations")
)

// ended returns the end of ctx and its cause, nil while it lives. Both are
// kept: the cause of a held context says that and why the lock was lost.
func ended(ctx context.Context) error {
	err := ctx.Err()
	if err == nil {
		return nil
	}
	cause := context.Cause(ctx)
	if cause == nil || cause == err {
		return err
	}
	return fmt.Errorf("%w: %w", err, cause)
}

// because adds the end of ctx to what a driver made of it: database/sql can
// report a transaction that it rolled back for an ended context as ErrTxDone.
func because(ctx context.Context, err error) error {
	if end := ended(ctx); end != nil && !errors.Is(err, end) {
		return fmt.Errorf("%w: %w", end, err)
	}
	return err
}
