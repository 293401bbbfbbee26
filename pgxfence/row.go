package pgxfence

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/fencelock/fencelock"
)

// What [CheckRow] finds beside a stale token. Each is for [errors.Is].
var (
	// ErrNoRow is returned by [CheckRow] when the query found no row. It was never
	// there, or was deleted, and its mark with it: a row that keeps its own mark
	// must be emptied and not deleted.
	ErrNoRow = errors.New("pgxfence: there is no such row")

	// ErrNullToken is returned by [CheckRow] when the row's token is NULL. NULL is
	// not below any number, so the UPDATE can never write the row.
	ErrNullToken = errors.New("pgxfence: the row's fencing token is NULL; declare the column NOT NULL DEFAULT 0")

	// ErrNotWritten is returned by [CheckRow] when the row would have let the token
	// pass, and does not bear it: the UPDATE left it out for another reason, or
	// was not made, or does not set the token.
	ErrNotWritten = errors.New("pgxfence: the row would have let the token pass, and was not written with it")
)

// CheckRow tells what became of an UPDATE of a row that keeps a fencing token of its
// own, as sqlfence.CheckRow does for database/sql; see there for when that is enough:
//
//	UPDATE account SET balance = $1, fence_token = $2, fence_holder = $3
//	WHERE id = $4 AND (fence_token < $2 OR fence_token = $2 AND fence_holder = $3)
//
// After that, in the same transaction, it runs query, which selects the row's token
// and holder, and returns:
//
//   - nil: the row bears the token, so the token passed, now or in an earlier
//     transaction of the same holder;
//   - a [*fencelock.StaleError]: it bears a larger token, or an equal one of another
//     holder;
//   - [ErrNoRow], [ErrNullToken], [ErrNotWritten]: as they say;
//   - [fencelock.ErrNoToken], [fencelock.ErrInvalidOption] for a nil tx, a query
//     of other than two columns, or one that finds several rows, [fencelock.ErrInvalidToken] for a row that bears no token's text, ctx's error, or
//     what the database said.
//
// After an error roll back.
func CheckRow(ctx context.Context, tx pgx.Tx, token fencelock.Token, query string, args ...any) error {
	if ctx == nil {
		return errNilContext()
	}
	if tx == nil {
		return fmt.Errorf("%w: the transaction is nil", fencelock.ErrInvalidOption)
	}
	if token.IsZero() {
		return fencelock.ErrNoToken
	}
	var (
		revision *int64
		holder   *string
	)
	rows, err := tx.Query(ctx, query, args...)
	if err == nil {
		if n := len(rows.FieldDescriptions()); rows.Err() == nil && n != 2 {
			rows.Close()
			if rows.Err() == nil {
				return fmt.Errorf("%w: the query of CheckRow selects %d columns, and must select token and holder", fencelock.ErrInvalidOption, n)
			}
		}
		found := 0
		_, err = pgx.ForEachRow(rows, []any{&revision, &holder}, func() error {
			if found++; found > 1 {
				return fmt.Errorf("%w: the query of CheckRow finds more than one row; call it for each row that the UPDATE was meant for", fencelock.ErrInvalidOption)
			}
			return nil
		})
		if err == nil && found == 0 {
			return ErrNoRow
		}
	}
	switch {
	case errors.Is(err, fencelock.ErrInvalidOption):
		return err
	case err != nil:
		return fmt.Errorf("pgxfence: cannot read the row's fencing token: %w", because(ctx, err))
	case revision == nil:
		return ErrNullToken
	case *revision == 0:
		return ErrNotWritten // a row that no holder has written
	}
	text := strconv.FormatInt(*revision, 10) + "."
	if holder != nil {
		text += *holder
	}
	highest, err := fencelock.ParseToken(token.Name(), text)
	switch {
	case err != nil:
		return fmt.Errorf("pgxfence: the row bears no fencing token: %w", err)
	case highest.Equal(token):
		return nil
	case highest.Compare(token) < 0:
		return ErrNotWritten
	}
	return &fencelock.StaleError{Scope: token.Name(), Presented: token, Highest: highest}
}
