package resource

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	_ "modernc.org/sqlite" // the driver

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/sqlfence"
)

// sqlite keeps registers, their marks and their history in a file, which
// survives the process.
type sqlite struct {
	db    *sql.DB
	fence *sqlfence.Fence
}

const sqliteSchema = `
CREATE TABLE IF NOT EXISTS registers (
	name  TEXT NOT NULL PRIMARY KEY,
	value TEXT NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS history (
	seq      INTEGER PRIMARY KEY,
	register TEXT    NOT NULL,
	op       TEXT    NOT NULL,
	revision INTEGER NOT NULL,
	holder   TEXT    NOT NULL,
	value    TEXT    NOT NULL,
	refused  INTEGER NOT NULL,
	at       INTEGER NOT NULL -- ns since 1970
) STRICT;
CREATE INDEX IF NOT EXISTS history_of ON history (register, seq);`

func openSQLite(ctx context.Context, path string) (_ *sqlite, err error) {
	// What a killed process wrote is in the kernel's hands and survives it; only
	// a crash of the machine would need synchronous.
	db, err := sql.Open("sqlite", "file:"+path+
		"?_pragma=journal_mode(wal)&_pragma=synchronous(off)&_pragma=busy_timeout(30000)")
	if err != nil {
		return nil, fmt.Errorf("resource: opening %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			_ = db.Close()
		}
	}()
	fence, err := sqlfence.New(db, sqlfence.SQLite)
	if err != nil {
		return nil, err
	}
	if err := fence.Migrate(ctx); err != nil {
		return nil, err
	}
	if _, err := db.ExecContext(ctx, sqliteSchema); err != nil {
		return nil, fmt.Errorf("resource: creating the tables of %s: %w", path, err)
	}
	return &sqlite{db: db, fence: fence}, nil
}

func (s *sqlite) claim(ctx context.Context, register string, token fencelock.Token) (value string, err error) {
	e := entry(OpClaim, token, "")
	err = s.fence.Tx(ctx, token, func(tx *sql.Tx) (err error) {
		if value, err = sqliteValue(ctx, tx, register); err != nil {
			return err
		}
		return sqliteNote(ctx, tx, register, e)
	})
	return value, s.refused(ctx, register, e, err)
}

func (s *sqlite) read(ctx context.Context, register string) (string, error) {
	return sqliteValue(ctx, s.db, register)
}

func (s *sqlite) write(ctx context.Context, register string, token fencelock.Token, value string) error {
	e := entry(OpWrite, token, value)
	err := s.fence.Tx(ctx, token, func(tx *sql.Tx) error { return sqliteApply(ctx, tx, register, e) })
	return s.refused(ctx, register, e, err)
}

func (s *sqlite) overwrite(ctx context.Context, register string, token fencelock.Token, value string) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after a commit it does nothing
	if err := sqliteApply(ctx, tx, register, entry(OpOverwrite, token, value)); err != nil {
		return err
	}
	return tx.Commit()
}

func (s *sqlite) history(ctx context.Context, register string) ([]Entry, error) {
	rows, err := s.db.QueryContext(ctx,
		`SELECT op, revision, holder, value, refused, at FROM history WHERE register = ?1 ORDER BY seq`, register)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	var entries []Entry
	for rows.Next() {
		var e Entry
		var at int64
		if err := rows.Scan(&e.Op, &e.Revision, &e.Holder, &e.Value, &e.Refused, &at); err != nil {
			return nil, err
		}
		e.At = time.Unix(0, at).UTC()
		entries = append(entries, e)
	}
	return entries, rows.Err()
}

func (s *sqlite) close() error { return s.db.Close() }

// refused puts down what the fence refused. Its transaction was rolled back, so
// this is one of its own.
func (s *sqlite) refused(ctx context.Context, register string, e Entry, err error) error {
	if !errors.Is(err, fencelock.ErrStale) {
		return err
	}
	e.Refused = true
	return errors.Join(err, sqliteNote(ctx, s.db, register, e))
}

func sqliteApply(ctx context.Context, tx *sql.Tx, register string, e Entry) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO registers (name, value) VALUES (?1, ?2)
ON CONFLICT (name) DO UPDATE SET value = excluded.value`, register, e.Value)
	if err != nil {
		return err
	}
	return sqliteNote(ctx, tx, register, e)
}

func sqliteNote(ctx context.Context, db interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}, register string, e Entry,
) error {
	_, err := db.ExecContext(ctx, `INSERT INTO history (register, op, revision, holder, value, refused, at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)`, register, e.Op, e.Revision, e.Holder, e.Value, e.Refused, e.At.UnixNano())
	return err
}

func sqliteValue(ctx context.Context, db interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}, register string,
) (value string, err error) {
	err = db.QueryRowContext(ctx, `SELECT value FROM registers WHERE name = ?1`, register).Scan(&value)
	if errors.Is(err, sql.ErrNoRows) {
		return "", nil
	}
	return value, err
}
