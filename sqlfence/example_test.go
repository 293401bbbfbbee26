package sqlfence_test

import (
	"context"
	"database/sql"
	"errors"
	"log"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/sqlfence"
)

// The lock decides who may pay out an order, and the fence decides whose
// payment counts: a holder that was stalled and comes back late is refused.
func ExampleFence_Tx() {
	var (
		locker *fencelock.Locker // from fencelock.New
		db     *sql.DB           // from sql.Open, of a driver for PostgreSQL
	)
	fence, err := sqlfence.New(db, sqlfence.PostgreSQL)
	if err != nil {
		log.Fatal(err)
	}
	err = locker.Do(context.Background(), "orders/42", func(ctx context.Context, token fencelock.Token) error {
		return fence.Tx(ctx, token, func(tx *sql.Tx) error {
			// The mark was raised before this read, so it is of what earlier
			// holders left, and none of them can change it any more.
			var paid bool
			if err := tx.QueryRowContext(ctx, "SELECT paid FROM orders WHERE id = 42").Scan(&paid); err != nil || paid {
				return err
			}
			_, err := tx.ExecContext(ctx, "UPDATE orders SET paid = true WHERE id = 42")
			return err
		})
	})
	switch {
	case errors.Is(err, fencelock.ErrStale):
		log.Print("another holder has taken over; nothing was written: ", err)
	case errors.Is(err, sqlfence.ErrUnknownOutcome):
		log.Print("written or not: look, or do it again: ", err)
	case err != nil:
		log.Print(err)
	}
}

// A holder that reads outside of a fenced transaction claims the database
// first. Otherwise a late write of its predecessor can still land between the
// read and its own first write, and would be lost.
func ExampleFence_Advance() {
	var (
		locker *fencelock.Locker // from fencelock.New
		fence  *sqlfence.Fence   // from sqlfence.New
		db     *sql.DB           // the fence's
	)
	err := locker.Do(context.Background(), "report", func(ctx context.Context, token fencelock.Token) error {
		if err := fence.Advance(ctx, token); err != nil {
			return err
		}
		var total int64
		if err := db.QueryRowContext(ctx, "SELECT sum(cents) FROM orders WHERE paid").Scan(&total); err != nil {
			return err
		}
		return fence.Tx(ctx, token, func(tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "UPDATE report SET total = $1", total)
			return err
		})
	})
	if err != nil {
		log.Print(err)
	}
}
