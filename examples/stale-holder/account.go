//go:build unix

package main

import (
	"context"
	"database/sql"
	"fmt"

	_ "modernc.org/sqlite" // the database/sql driver "sqlite"
)

const tables = `
	CREATE TABLE account (id TEXT PRIMARY KEY, balance INTEGER NOT NULL);
	CREATE TABLE deposit (
		id     INTEGER PRIMARY KEY AUTOINCREMENT, -- the order in which deposits were applied
		worker TEXT    NOT NULL,
		amount INTEGER NOT NULL
	);
	INSERT INTO account VALUES ('alice', 0);`

func openAccount(file string) (*sql.DB, error) {
	// Processes that write to one SQLite file wait for each other instead of
	// failing at once.
	return sql.Open("sqlite", "file:"+file+"?_pragma=busy_timeout(5000)")
}

func readBalance(ctx context.Context, db *sql.DB) (balance int, err error) {
	err = db.QueryRowContext(ctx, `SELECT balance FROM account WHERE id = 'alice'`).Scan(&balance)
	if err != nil {
		return 0, fmt.Errorf("read the balance: %w", err)
	}
	return balance, nil
}

// writeBalance makes a deposit, the new balance of which was worked out before.
func writeBalance(tx *sql.Tx, worker string, amount, balance int) error {
	if _, err := tx.Exec(`UPDATE account SET balance = ? WHERE id = 'alice'`, balance); err != nil {
		return fmt.Errorf("write the balance: %w", err)
	}
	if _, err := tx.Exec(`INSERT INTO deposit (worker, amount) VALUES (?, ?)`, worker, amount); err != nil {
		return fmt.Errorf("write the deposit: %w", err)
	}
	return nil
}

// outcome is what an act left behind, as the database has it.
type outcome struct {
	stale     int // deposits of A after one of B, who was given the lock after A
	refused   int
	deposited int // all deposits that were applied
	balance   int // what should be the same
}

func (o outcome) lost() int { return o.deposited - o.balance }

func (o outcome) String() string {
	return fmt.Sprintf("stale writes applied: %d, refused: %d; deposited: %d, balance: %d, lost: %d",
		o.stale, o.refused, o.deposited, o.balance, o.lost())
}

func audit(ctx context.Context, db *sql.DB) (o outcome, err error) {
	err = db.QueryRowContext(ctx, `
		SELECT
			(SELECT count(*) FROM deposit AS late WHERE late.worker = 'A' AND EXISTS
				(SELECT 1 FROM deposit AS earlier WHERE earlier.worker = 'B' AND earlier.id < late.id)),
			(SELECT coalesce(sum(amount), 0) FROM deposit),
			(SELECT balance FROM account WHERE id = 'alice')`).Scan(&o.stale, &o.deposited, &o.balance)
	if err != nil {
		return outcome{}, fmt.Errorf("audit the account: %w", err)
	}
	return o, nil
}
