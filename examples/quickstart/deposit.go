package main

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/sqlfence"
)

const tables = `
	CREATE TABLE IF NOT EXISTS account (id TEXT PRIMARY KEY, balance INTEGER NOT NULL);
	CREATE TABLE IF NOT EXISTS entry (
		id     INTEGER PRIMARY KEY AUTOINCREMENT, -- the order in which entries were applied
		worker TEXT    NOT NULL,
		amount INTEGER NOT NULL,
		token  INTEGER NOT NULL                   -- what the fence admitted the entry with
	);
	INSERT INTO account VALUES ('alice', 0) ON CONFLICT DO NOTHING;`

// deposit is a critical section as it should be written: everything it reads
// and writes is in the fenced transaction. The transaction raises the mark
// before it does anything else, and fails if a newer token was seen. So nobody
// who had the lock earlier can write between this read and this write, and
// nothing here happens if somebody had it later.
func deposit(ctx context.Context, fence *sqlfence.Fence, token fencelock.Token, worker string, amount int) (balance int, err error) {
	err = fence.Tx(ctx, token, func(tx *sql.Tx) error {
		if err := tx.QueryRowContext(ctx, `SELECT balance FROM account WHERE id = 'alice'`).Scan(&balance); err != nil {
			return fmt.Errorf("read the balance: %w", err)
		}
		balance += amount
		if _, err := tx.ExecContext(ctx, `UPDATE account SET balance = ? WHERE id = 'alice'`, balance); err != nil {
			return fmt.Errorf("write the balance: %w", err)
		}
		_, err := tx.ExecContext(ctx, `INSERT INTO entry (worker, amount, token) VALUES (?, ?, ?)`, worker, amount, token)
		if err != nil {
			return fmt.Errorf("write the entry: %w", err)
		}
		return nil
	})
	return balance, err
}

// staleWrites counts, from what is in the database and without asking the
// fence, the entries that were applied after one with a larger token.
func staleWrites(ctx context.Context, db *sql.DB) (n int, err error) {
	err = db.QueryRowContext(ctx, `
		SELECT count(*) FROM entry AS late
		WHERE EXISTS (SELECT 1 FROM entry AS earlier WHERE earlier.id < late.id AND earlier.token > late.token)`).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("count the stale writes: %w", err)
	}
	return n, nil
}
