package sqlfence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"

	"github.com/fencelock/fencelock"
)

// What [CheckRow] finds beside a stale token. Each is for [errors.Is].
var (
	// ErrNoRow is returned by [CheckRow] when the query found no row. It was never
	// there, or was deleted, and its mark with it: a row that keeps its own mark
	// must be emptied and not deleted.
	ErrNoRow = errors.New("sqlfence: there is no such row")

	// ErrNullToken is returned by [CheckRow] when the row's token is NULL. NULL is
	// not below any number, so the UPDATE can never write the row; declare the
	// column NOT NULL DEFAULT 0.
	ErrNullToken = errors.New("sqlfence: the row's fencing token is NULL; declare the column NOT NULL DEFAULT 0")

	// ErrNotWritten is returned by [CheckRow] when the row would have let the token
	// pass, and does not bear it: the UPDATE left it out for another reason, or
	// was not made, or does not set the token.
	ErrNotWritten = errors.New("sqlfence: the row would have let the token pass, and was not written with it")
)

// CheckRow tells what became of an UPDATE of a row that keeps a fencing token of its
// own, beside the data it protects, instead of a mark in a table of marks:
//
//	UPDATE account SET balance = $1, fence_token = $2, fence_holder = $3
//	WHERE id = $4 AND (fence_token < $2 OR fence_token = $2 AND fence_holder = $3)
//
// A [fencelock.Token] is a SQL argument as it is, its revision. (With ? for arguments,
// as MySQL has them, it is given once for each.) fence_token is BIGINT NOT NULL DEFAULT
// 0; fence_holder holds 128 characters and is compared exactly, which in MySQL takes a
// binary collation. Other conditions do not belong into that WHERE: read the row before,
// in the transaction and with FOR UPDATE, and decide there. After the UPDATE, in the
// same transaction, CheckRow runs query, which selects the row's token, and its
// holder if it has one:
//
//	SELECT fence_token, fence_holder FROM account WHERE id = $1
//
// and returns:
//
//   - nil: the row bears the token, so the token passed, now or in an earlier
//     transaction of the same holder. It does not say which of the two;
//   - a [*fencelock.StaleError], which is [fencelock.ErrStale]: it bears a larger
//     token, or an equal one of another holder. Without a column for the holder two
//     holders of one number, as a restore of etcd can make them, are not told apart,
//     and Highest has the presented token's holder;
//   - [ErrNoRow], [ErrNullToken], [ErrNotWritten]: as they say;
//   - [fencelock.ErrNoToken], [fencelock.ErrInvalidOption] for a nil tx, a query of
//     other than one or two columns, or one that finds several rows, [fencelock.ErrInvalidToken] for a row that
//     bears no token's text, ctx's error, or what the database said.
//
// After an error roll back. It does not go by the number of rows affected, which in
// MySQL is that of rows changed, or found, as the driver's settings have it.
//
// A mark in the row protects that row only, and goes when it goes. It does not
// protect what the transaction reads, as a [Fence] does. Use it where every write is
// of one row that is never deleted.
func CheckRow(ctx context.Context, tx *sql.Tx, token fencelock.Token, query string, args ...any) error {
	if ctx == nil {
		return errNilContext()
	}
	if tx == nil {
		return fmt.Errorf("%w: the transaction is nil", fencelock.ErrInvalidOption)
	}
	if token.IsZero() {
		return fencelock.ErrNoToken
	}
	highest, err := rowToken(ctx, tx, token, query, args)
	switch {
	case err != nil:
		return err
	case highest.Equal(token):
		return nil
	case highest.IsZero() || highest.Compare(token) < 0:
		return ErrNotWritten
	}
	return &fencelock.StaleError{Scope: token.Name(), Presented: token, Highest: highest}
}

// rowToken returns the token that the row bears, zero for the number 0.
func rowToken(ctx context.Context, tx *sql.Tx, presented fencelock.Token, query string, args []any) (fencelock.Token, error) {
	rows, err := tx.QueryContext(ctx, query, args...)
	if err != nil {
		return fencelock.Token{}, cannotReadRow(ctx, err)
	}
	defer rows.Close()
	names, err := rows.Columns()
	if err != nil {
		return fencelock.Token{}, cannotReadRow(ctx, err)
	}
	if len(names) != 1 && len(names) != 2 {
		return fencelock.Token{}, fmt.Errorf("%w: the query of CheckRow selects %d columns, and must select the token, or token and holder",
			fencelock.ErrInvalidOption, len(names))
	}
	if !rows.Next() {
		if err := rows.Err(); err != nil {
			return fencelock.Token{}, cannotReadRow(ctx, err)
		}
		return fencelock.Token{}, ErrNoRow
	}
	var (
		revision sql.NullInt64
		holder   sql.NullString
	)
	if err := rows.Scan([]any{&revision, &holder}[:len(names)]...); err != nil {
		return fencelock.Token{}, cannotReadRow(ctx, err)
	}
	if rows.Next() {
		return fencelock.Token{}, fmt.Errorf("%w: the query of CheckRow finds more than one row; call it for each row that the UPDATE was meant for",
			fencelock.ErrInvalidOption)
	}
	// Also shows an error that ended the rows early, and frees the connection for
	// the next statement.
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return fencelock.Token{}, cannotReadRow(ctx, err)
	}
	switch {
	case !revision.Valid:
		return fencelock.Token{}, ErrNullToken
	case revision.Int64 == 0:
		return fencelock.Token{}, nil // of a row that no holder has written
	case len(names) == 1:
		holder.String = presented.Holder()
	}
	token, err := fencelock.ParseToken(presented.Name(), strconv.FormatInt(revision.Int64, 10)+"."+holder.String)
	if err != nil {
		return fencelock.Token{}, fmt.Errorf("sqlfence: the row bears no fencing token: %w", err)
	}
	return token, nil
}

func cannotReadRow(ctx context.Context, err error) error {
	return fmt.Errorf("sqlfence: cannot read the row's fencing token: %w", because(ctx, err))
}
