package integration_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/fencelock/fencelock/sqlfence"
	"github.com/stretchr/testify/require"
)

// sqliteModes are the ways to use SQLite that matter to a fence. With a rollback
// journal a commit is refused while anybody reads, so there the connection has
// to wait; in WAL mode every wait is left to the fence.
var sqliteModes = map[string]string{
	"wal":              "&_pragma=journal_mode(wal)&_pragma=busy_timeout(0)",
	"rollback journal": "&_pragma=journal_mode(delete)&_pragma=busy_timeout(30000)",
}

// sqliteDB returns a database file.
func sqliteDB(t *testing.T, params string) fencedDB {
	t.Helper()
	path := filepath.Join(t.TempDir(), "data.db")
	return openSQL(t, fencedDB{dialect: sqlfence.SQLite, levels: []sql.IsolationLevel{sql.LevelDefault}},
		"sqlite", "file:"+path+"?_pragma=foreign_keys(1)"+params)
}

// sqliteWaitsForTheWriteLock has a writer that is not the fence's keep the
// file, as another process does.
func sqliteWaitsForTheWriteLock(t *testing.T, db fencedDB) {
	fence := db.fence(t)
	token := sqlToken(t, "lock", 1, "h")

	writer, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	require.NoError(t, db.write(t.Context(), "x", 1)(writer))

	// It waits as long as it may.
	ctx, cancel := context.WithCancelCause(t.Context())
	result := make(chan error, 1)
	go func() { result <- fence.Tx(ctx, token, neverRun(t)) }()
	lost := errors.New("the lock was lost")
	cancel(lost)
	require.ErrorIs(t, <-result, lost)

	ctx, stop := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer stop()
	err = fence.Tx(ctx, token, neverRun(t))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NotErrorIs(t, err, sqlfence.ErrUnknownOutcome)

	// And passes when the other has committed.
	go func() { result <- fence.Tx(t.Context(), token, db.write(t.Context(), "x", 2)) }()
	require.NoError(t, writer.Commit())
	require.NoError(t, <-result)
	require.EqualValues(t, 2, db.value(t, "x"))
}

func sqliteDeferredConstraint(t *testing.T, db fencedDB) {
	fence := db.fence(t)
	_, err := db.ExecContext(t.Context(), `CREATE TABLE child (parent TEXT REFERENCES data (id) DEFERRABLE INITIALLY DEFERRED)`)
	require.NoError(t, err)
	requireRefusedCommit(t, db, fence)
}

// sqliteTransactionEnds: SQLite ends a transaction in which a statement failed that it
// cannot undo alone, and the statements after it are no part of any.
func sqliteTransactionEnds(t *testing.T, db fencedDB) {
	fence := db.fence(t)
	require.NoError(t, fence.Advance(t.Context(), sqlToken(t, "lock", 1, "h")))
	for name, fails := range map[string]func(ctx context.Context, tx *sql.Tx) error{
		"OR ROLLBACK": func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "INSERT OR ROLLBACK INTO data (id, value) VALUES ('x', 1), ('x', 2)")
			return err
		},
		"interrupted write": func(ctx context.Context, tx *sql.Tx) error {
			short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
			defer cancel()
			_, err := tx.ExecContext(short, `INSERT INTO data (id, value)
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT 'row ' || i, i FROM n`)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			runs := 0
			err := fence.Tx(ctx, sqlToken(t, "lock", 1, "h"), func(tx *sql.Tx) error {
				runs++
				if err := fails(ctx, tx); err == nil {
					t.Error("the statement did not fail")
				}
				return db.write(ctx, name, 1)(tx) // as if nothing had happened
			})
			require.ErrorIs(t, err, sqlfence.ErrTransactionEnded)
			require.NotErrorIs(t, err, sqlfence.ErrUnknownOutcome)
			require.Equal(t, 1, runs)
			require.EqualValues(t, 1, db.value(t, name), "applied at once, as the documentation warns")
			require.Zero(t, db.value(t, "row 1"))

			// Nor may an error of the callback's pass for all being rolled back; and one
			// after which it would run again must not have it applied twice.
			for _, failure := range []error{errors.New("the work failed"), errors.New("database is locked")} {
				runs = 0
				err := fence.Tx(ctx, sqlToken(t, "lock", 1, "h"), func(tx *sql.Tx) error {
					runs++
					if err := fails(ctx, tx); err == nil {
						t.Error("the statement did not fail")
					}
					return errors.Join(db.write(ctx, name, 2)(tx), failure)
				})
				require.ErrorIs(t, err, sqlfence.ErrTransactionEnded)
				require.ErrorIs(t, err, failure)
				require.Equal(t, 1, runs)
			}

			// With its error returned nothing of it is applied.
			err = fence.Tx(ctx, sqlToken(t, "lock", 1, "h"), func(tx *sql.Tx) error {
				if err := fails(ctx, tx); err != nil {
					return err
				}
				return db.write(ctx, "never", 1)(tx)
			})
			require.Error(t, err)
			require.NotErrorIs(t, err, sqlfence.ErrTransactionEnded)
			require.Zero(t, db.value(t, "never"))
		})
	}
}

// sqliteShadowed has the session make a table of the marks' name that comes first.
func sqliteShadowed(t *testing.T, db fencedDB) {
	ctx := t.Context()
	db.SetMaxOpenConns(1)
	fence := db.fence(t)
	older, newer := sqlToken(t, "lock", 4, "old"), sqlToken(t, "lock", 5, "new")
	require.NoError(t, fence.Advance(ctx, newer))
	_, err := db.ExecContext(ctx, "CREATE TEMP TABLE fencelock_marks (scope BLOB PRIMARY KEY, token INTEGER NOT NULL, holder TEXT NOT NULL, written_at TEXT NOT NULL)")
	require.NoError(t, err)
	requireStale(t, fence.Advance(ctx, older), older, newer)
	requireStale(t, db.unmigrated(t).Advance(ctx, older), older, newer)
}

// sqliteHolderCollation has a table in which holders are equal in any case.
func sqliteHolderCollation(t *testing.T, db fencedDB) {
	ctx := t.Context()
	_, err := db.ExecContext(ctx, "CREATE TABLE fencelock_marks (scope BLOB PRIMARY KEY, token INTEGER NOT NULL, holder TEXT NOT NULL COLLATE NOCASE, written_at TEXT NOT NULL)")
	require.NoError(t, err)
	sqlFenceEqual(t, db)
}

func TestSQLFenceSQLiteBusyCommit(t *testing.T) {
	t.Run("wal", func(t *testing.T) { sqliteBusyCommit(t, "&_pragma=journal_mode(wal)", 1) })
	t.Run("rollback journal", func(t *testing.T) { sqliteBusyCommit(t, "&_pragma=journal_mode(delete)", 2) })
}

// sqliteBusyCommit commits beside a reader, on connections that do not wait. A
// rollback journal refuses that commit, and the transaction is made again; in
// WAL mode readers are no matter.
func sqliteBusyCommit(t *testing.T, params string, wantRuns int) {
	ctx := t.Context()
	db := sqliteDB(t, params)
	fence := db.fence(t)
	reader, err := db.BeginTx(ctx, nil)
	require.NoError(t, err)
	defer func() { _ = reader.Rollback() }()
	_, err = db.read(ctx, reader, "x")
	require.NoError(t, err)

	runs, leaves := 0, -1
	increment := func(tx *sql.Tx) error {
		if runs++; runs == leaves {
			if err := reader.Rollback(); err != nil {
				return err
			}
		}
		v, err := db.read(ctx, tx, "x")
		if err != nil {
			return err
		}
		return db.write(ctx, "x", v+1)(tx)
	}
	token := sqlToken(t, "lock", 1, "h")
	if wantRuns > 1 {
		// A reader that stays: the callback does not run for ever.
		err := fence.Tx(ctx, token, increment)
		require.ErrorContains(t, err, "database is locked")
		require.NotErrorIs(t, err, sqlfence.ErrUnknownOutcome)
		require.Equal(t, 8, runs)
		require.Zero(t, db.value(t, "x"))
		requireMarkless(t, fence, "lock")
	}
	runs, leaves = 0, 2
	require.NoError(t, fence.Tx(ctx, token, increment))
	require.Equal(t, wantRuns, runs)
	require.EqualValues(t, 1, db.value(t, "x"), "applied once")
}
