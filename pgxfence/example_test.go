package pgxfence_test

import (
	"context"
	"log"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/pgxfence"
)

// The lock decides who may pay out an order, and the fence decides whose payment
// counts.
func ExampleFence_Tx() {
	var (
		locker *fencelock.Locker // from fencelock.New
		pool   *pgxpool.Pool     // from pgxpool.New
	)
	fence, err := pgxfence.New(pool, pgxfence.WithScope("orders/42"))
	if err != nil {
		log.Fatal(err)
	}
	err = locker.Do(context.Background(), "orders/42", func(ctx context.Context, token fencelock.Token) error {
		return fence.Tx(ctx, token, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "UPDATE orders SET paid = true WHERE id = 42")
			return err
		})
	})
	if err != nil {
		log.Print(err)
	}
}
