//go:build unix

package main

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the database/sql driver "pgx"
	_ "modernc.org/sqlite"             // the database/sql driver "sqlite"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/sqlfence"
)

const (
	accounts = 4
	opening  = 1000 // in each
	total    = accounts * opening
)

// bank is the protected resource.
type bank struct {
	*sql.DB
	fence *sqlfence.Fence
	id    string // the type of a column that counts up
}

// openBank opens the accounts in PostgreSQL or in a SQLite file.
func openBank(database string) (*bank, error) {
	b, driver, source, dialect := &bank{}, "sqlite", "", sqlfence.SQLite
	if strings.Contains(database, "://") {
		b.id = "BIGSERIAL PRIMARY KEY"
		driver, source, dialect = "pgx", database, sqlfence.PostgreSQL
	} else {
		b.id = "INTEGER PRIMARY KEY AUTOINCREMENT"
		source = "file:" + database + "?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)"
	}
	var err error
	if b.DB, err = sql.Open(driver, source); err != nil {
		return nil, err
	}
	b.fence, err = sqlfence.New(b.DB, dialect)
	return b, err
}

func (b *bank) create(ctx context.Context) error {
	for _, statement := range []string{
		`DROP TABLE IF EXISTS account`,
		`DROP TABLE IF EXISTS journal`,
		`DROP TABLE IF EXISTS fencelock_marks`,
		`CREATE TABLE account (id INTEGER PRIMARY KEY, balance BIGINT NOT NULL)`,
		// The token stands in each line, and so does the time by the clock of the
		// machine that wrote it: that makes the audit after a loss one SELECT.
		`CREATE TABLE journal (
			id ` + b.id + `, token BIGINT NOT NULL, worker TEXT NOT NULL, at BIGINT NOT NULL,
			debit INTEGER NOT NULL, credit INTEGER NOT NULL, amount BIGINT NOT NULL)`,
	} {
		if _, err := b.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("create the accounts: %w", err)
		}
	}
	for id := range accounts {
		if _, err := b.ExecContext(ctx, `INSERT INTO account VALUES ($1, $2)`, id, opening); err != nil {
			return fmt.Errorf("open account %d: %w", id, err)
		}
	}
	return b.fence.Migrate(ctx)
}

func (b *bank) balance(ctx context.Context, id int) (balance int64, err error) {
	err = b.QueryRowContext(ctx, `SELECT balance FROM account WHERE id = $1`, id).Scan(&balance)
	return balance, err
}

// transfer is an amount that goes from one account to another, and the balances
// that were worked out for them.
type transfer struct {
	debit, credit           int
	debitAfter, creditAfter int64
	amount                  int64
}

func (b *bank) write(ctx context.Context, worker string, token fencelock.Token, t transfer) error {
	return b.fence.Tx(ctx, token, func(tx *sql.Tx) error {
		for id, balance := range map[int]int64{t.debit: t.debitAfter, t.credit: t.creditAfter} {
			if _, err := tx.ExecContext(ctx, `UPDATE account SET balance = $1 WHERE id = $2`, balance, id); err != nil {
				return err
			}
		}
		_, err := tx.ExecContext(ctx,
			`INSERT INTO journal (token, worker, at, debit, credit, amount) VALUES ($1, $2, $3, $4, $5, $6)`,
			token, worker, time.Now().UnixNano(), t.debit, t.credit, t.amount)
		return err
	})
}

// audit is what an operator asks after a loss: what was written with that token
// after the lease was last confirmed. All of it is right, since the fence let it
// pass; it is what to look at where an effect beside it has no fence.
const audit = `SELECT id, debit, credit, amount FROM journal WHERE token = $1 AND at > $2 ORDER BY id`

// written returns the lines of the audit.
func (b *bank) written(ctx context.Context, token fencelock.Token, since time.Time) (lines []string, err error) {
	rows, err := b.QueryContext(ctx, audit, token, since.UnixNano())
	if err != nil {
		return nil, fmt.Errorf("audit: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var id, debit, credit, amount int64
		if err := rows.Scan(&id, &debit, &credit, &amount); err != nil {
			return nil, fmt.Errorf("audit: %w", err)
		}
		lines = append(lines, fmt.Sprintf("#%d: %d from account %d to %d", id, amount, debit, credit))
	}
	return lines, rows.Err()
}

// result is what the books say in the end.
type result struct {
	transfers, holders int
	stale              int // lines of the journal after one with a larger token
	differing          int // balances that are not what the journal makes them
	sum                int64
}

// replay makes every balance again from the journal.
func (b *bank) replay(ctx context.Context) (r result, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("replay the journal: %w", err)
		}
	}()
	var should [accounts]int64
	for id := range should {
		should[id] = opening
	}
	rows, err := b.QueryContext(ctx, `SELECT token, debit, credit, amount FROM journal ORDER BY id`)
	if err != nil {
		return r, err
	}
	defer rows.Close()
	var highest int64
	for rows.Next() {
		var token, amount int64
		var debit, credit int
		if err := rows.Scan(&token, &debit, &credit, &amount); err != nil {
			return r, err
		}
		r.transfers++
		switch {
		case token < highest:
			r.stale++
		case token > highest:
			highest = token
			r.holders++
		}
		should[debit] -= amount
		should[credit] += amount
	}
	if err := rows.Err(); err != nil {
		return r, err
	}
	for id, want := range should {
		is, err := b.balance(ctx, id)
		if err != nil {
			return r, err
		}
		r.sum += is
		if is != want {
			r.differing++
		}
	}
	return r, nil
}
