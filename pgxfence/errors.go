package pgxfence

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Sentinels, for [errors.Is]. What all fences share comes from the root
// package: [fencelock.ErrStale], [fencelock.ErrNoToken], [fencelock.ErrScope],
// [fencelock.ErrInvalidOption].
var (
	// ErrUnknownOutcome is returned by [Fence.Tx] and [Fence.Advance] when the
	// commit was sent and no answer came that says what became of it: mark and
	// effect were applied, or neither was. It is never [fencelock.ErrStale].
	// Repeating the call with the same token passes as long as no newer token
	// was seen. A repetition that is refused says nothing about the first.
	ErrUnknownOutcome = errors.New("pgxfence: the commit got no clear answer: all of the transaction was applied, or nothing")

	// ErrTransactionEnded is returned by [Fence.Tx] when the callback ended the
	// transaction by a statement of its own, COMMIT or ROLLBACK. What ran before it
	// was committed or undone by it; what ran after it was applied at once and
	// without the fence.
	ErrTransactionEnded = errors.New("pgxfence: a statement of the callback ended the transaction, and the ones after it were not fenced; " +
		"leave committing and rolling back to Tx")

	// ErrBadTable is returned by [New], and by every call that uses the table of
	// marks, if its columns cannot hold marks: a token that is cut, rounded or
	// compared as a text would let stale ones pass. The error says how to mend
	// each. Nothing was applied.
	ErrBadTable = errors.New("pgxfence: the table cannot be trusted with marks")

	// ErrNoTable is returned by every call but [Fence.Migrate] when the table
	// of marks does not exist. Nothing was applied.
	ErrNoTable = errors.New("pgxfence: the table of marks does not exist; " +
		"call Migrate once, or put the text of DDL into your migrations")
)

// state returns the SQLSTATE of an answer of the server, "" of any other error.
func state(err error) string {
	var answer *pgconn.PgError
	if errors.As(err, &answer) {
		return answer.Code
	}
	return ""
}

// transient: nothing was applied, and the same can succeed when tried again.
func transient(err error) bool {
	switch state(err) {
	case "40001", "40P01": // serialization_failure, deadlock_detected
		return true
	}
	return false
}

// rolledBack: the error of a commit proves that nothing was applied. An answer of
// the server is a refusal, except where it says that it does not know, and where
// it is the session that ends, which can come between the commit and its reply.
func rolledBack(err error) bool {
	if errors.Is(err, pgx.ErrTxCommitRollback) {
		return true // a callback swallowed the error of a statement
	}
	code := state(err)
	if code == "" || code == "40003" { // statement_completion_unknown
		return false
	}
	for _, class := range []string{"08", "57", "58", "XX"} { // connection, operator intervention, system, internal
		if strings.HasPrefix(code, class) {
			return false
		}
	}
	return true
}

// raced: a create ran beside another create of the same table, which IF NOT
// EXISTS does not prevent.
func raced(err error) bool {
	switch state(err) {
	case "23505", "42710", "42P07": // unique_violation, duplicate_object, duplicate_table
		return true
	}
	return false
}

// because adds the end of ctx and its cause to what pgx made of it: the cause of a
// held context says that and why the lock was lost.
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
