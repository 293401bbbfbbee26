package integration_test

import (
	"database/sql"
	"os"
	"strings"
	"testing"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/sqlfence"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// postgresRowLockIsNotEnough is the reason why an equal token writes too: the
// same meeting as in sqlFenceReadsPredecessor, guarded by a row lock.
func postgresRowLockIsNotEnough(t *testing.T, db fencedDB) {
	ctx := t.Context()
	_, err := db.ExecContext(ctx, "CREATE TABLE guard (token BIGINT)")
	require.NoError(t, err)
	_, err = db.ExecContext(ctx, "INSERT INTO guard VALUES (2)")
	require.NoError(t, err)

	guarded := func(effect func(*sql.Tx) error) error {
		tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		var token int64
		if err := tx.QueryRowContext(ctx, "SELECT token FROM guard FOR UPDATE").Scan(&token); err != nil {
			return err
		}
		if err := effect(tx); err != nil {
			return err
		}
		return tx.Commit()
	}
	result := make(chan error, 1)
	var seen int64
	require.NoError(t, guarded(func(tx *sql.Tx) error {
		go func() {
			result <- guarded(func(tx *sql.Tx) (err error) {
				seen, err = db.read(ctx, tx, "x")
				return err
			})
		}()
		db.awaitBlocked(t)
		return db.write(ctx, "x", 2)(tx)
	}))
	require.NoError(t, <-result)
	require.Zero(t, seen, "the snapshot is older than the commit that was waited for")
	require.EqualValues(t, 2, db.value(t, "x"))
}

func postgresRunsAgain(t *testing.T, db fencedDB) {
	requireRunsAgain(t, db, db.fence(t, sqlfence.WithTxOptions(&sql.TxOptions{Isolation: sql.LevelRepeatableRead})))
}

func postgresConnectionKilled(t *testing.T, db fencedDB) {
	ctx := t.Context()
	fence := db.fence(t)
	token := sqlToken(t, "lock", 1, "h")
	err := fence.Tx(ctx, token, func(tx *sql.Tx) error {
		if err := db.write(ctx, "x", 1)(tx); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, "SELECT pg_terminate_backend(pg_backend_pid())")
		return err
	})
	require.ErrorContains(t, err, "57P01")
	require.NotErrorIs(t, err, sqlfence.ErrUnknownOutcome, "nothing was committed before the commit")
	require.Zero(t, db.value(t, "x"))
	require.NoError(t, fence.Tx(ctx, token, db.write(ctx, "x", 2)))
}

func postgresSwallowedFailure(t *testing.T, db fencedDB) {
	ctx := t.Context()
	fence := db.fence(t)
	err := fence.Tx(ctx, sqlToken(t, "lock", 1, "h"), func(tx *sql.Tx) error {
		if err := db.write(ctx, "x", 1)(tx); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, "SELECT 1/0")
		assert.Error(t, err)
		return nil
	})
	require.ErrorIs(t, err, pgx.ErrTxCommitRollback)
	require.NotErrorIs(t, err, sqlfence.ErrUnknownOutcome)
	require.Zero(t, db.value(t, "x"))
	requireMarkless(t, fence, "lock")
}

func postgresDeferredConstraint(t *testing.T, db fencedDB) {
	ctx := t.Context()
	fence := db.fence(t)
	_, err := db.ExecContext(ctx, `CREATE TABLE child (parent VARCHAR(100) REFERENCES data (id) DEFERRABLE INITIALLY DEFERRED)`)
	require.NoError(t, err)
	requireRefusedCommit(t, db, fence)
}

// requireRefusedCommit commits a child without a parent.
func requireRefusedCommit(t *testing.T, db fencedDB, fence *sqlfence.Fence) {
	t.Helper()
	ctx := t.Context()
	runs := 0
	err := fence.Tx(ctx, sqlToken(t, "lock", 1, "h"), func(tx *sql.Tx) error {
		runs++
		if err := db.write(ctx, "x", 1)(tx); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, "INSERT INTO child (parent) VALUES ('nobody')")
		return err
	})
	require.ErrorContains(t, err, "the commit was refused")
	require.NotErrorIs(t, err, sqlfence.ErrUnknownOutcome)
	require.Equal(t, 1, runs)
	require.Zero(t, db.value(t, "x"))
	requireMarkless(t, fence, "lock")
}

// postgresHiddenMark has a trigger swallow the mark. What cannot be written
// must not pass, and is no refusal of the token either.
func postgresHiddenMark(t *testing.T, db fencedDB) {
	ctx := t.Context()
	fence := db.fence(t)
	for _, statement := range []string{
		"CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
		"CREATE TRIGGER swallow BEFORE INSERT ON fencelock_marks FOR EACH ROW EXECUTE FUNCTION swallow()",
	} {
		_, err := db.ExecContext(ctx, statement)
		require.NoError(t, err)
	}
	err := fence.Tx(ctx, sqlToken(t, "lock", 1, "h"), neverRun(t))
	require.ErrorContains(t, err, "trigger")
	require.NotErrorIs(t, err, fencelock.ErrStale)
}

// postgresChangedMark has a trigger keep the mark down.
func postgresChangedMark(t *testing.T, db fencedDB) {
	ctx := t.Context()
	fence := db.fence(t)
	for _, statement := range []string{
		"CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.token := OLD.token; RETURN NEW; END'",
		"CREATE TRIGGER keep BEFORE UPDATE ON fencelock_marks FOR EACH ROW EXECUTE FUNCTION keep()",
	} {
		_, err := db.ExecContext(ctx, statement)
		require.NoError(t, err)
	}
	require.NoError(t, fence.Advance(ctx, sqlToken(t, "lock", 1, "h")))
	err := fence.Tx(ctx, sqlToken(t, "lock", 2, "h"), neverRun(t))
	require.ErrorContains(t, err, "was not written, it is 1.h")
}

// postgresHolderCollation has a table in which holders are equal in any case.
func postgresHolderCollation(t *testing.T, db fencedDB) {
	ctx := t.Context()
	for _, statement := range []string{
		"CREATE COLLATION any_case (provider = icu, locale = 'und-u-ks-level2', deterministic = false)",
		"CREATE TABLE fencelock_marks (scope BYTEA PRIMARY KEY, token BIGINT NOT NULL, holder TEXT COLLATE any_case NOT NULL, written_at TIMESTAMPTZ NOT NULL)",
	} {
		_, err := db.ExecContext(ctx, statement)
		require.NoError(t, err)
	}
	sqlFenceEqual(t, db)
}

// postgresTemporary has the session make a table of the marks' name that comes first.
func postgresTemporary(t *testing.T, db fencedDB) {
	ctx := t.Context()
	db.SetMaxOpenConns(1)
	require.NoError(t, db.fence(t).Advance(ctx, sqlToken(t, "lock", 1, "h")))
	_, err := db.ExecContext(ctx, "CREATE TEMP TABLE fencelock_marks (LIKE fencelock_marks INCLUDING ALL)")
	require.NoError(t, err)
	_, err = sqlfence.New(db.DB, sqlfence.PostgreSQL)
	require.ErrorIs(t, err, sqlfence.ErrBadTable)
	require.ErrorContains(t, err, "temporary")
}

func postgresSchema(t *testing.T, db fencedDB) {
	ctx := t.Context()
	var schema string
	require.NoError(t, db.QueryRowContext(ctx, "SELECT current_schema()").Scan(&schema))
	one, other := db.fence(t), db.unmigrated(t, sqlfence.WithTable(schema+".fencelock_marks"))
	older, newer := sqlToken(t, "lock", 1, "old"), sqlToken(t, "lock", 2, "new")
	require.NoError(t, one.Advance(ctx, newer))
	requireStale(t, other.Advance(ctx, older), older, newer)

	nowhere := db.unmigrated(t, sqlfence.WithTable("nowhere.marks"))
	require.ErrorIs(t, nowhere.Advance(ctx, newer), sqlfence.ErrNoTable)
	require.ErrorContains(t, nowhere.Migrate(ctx), "nowhere")
}

// postgresTrigger is the recipe of docs/postgres-trigger.sql.
func postgresTrigger(t *testing.T, db fencedDB) {
	ctx := t.Context()
	fence := db.fence(t)
	recipe, err := os.ReadFile("../../docs/postgres-trigger.sql")
	require.NoError(t, err)
	var schema string
	require.NoError(t, db.QueryRowContext(ctx, "SELECT current_schema()").Scan(&schema))
	own := strings.ReplaceAll(string(recipe), "public.fencelock_marks", schema+".fencelock_marks")
	for _, statement := range []string{
		own,
		own, // again, as a migration that is run twice
		`CREATE TRIGGER fenced BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON data
FOR EACH STATEMENT EXECUTE FUNCTION fencelock_require('lock')`,
	} {
		_, err := db.ExecContext(ctx, statement)
		require.NoError(t, err)
	}
	first, second := sqlToken(t, "lock", 1, "a"), sqlToken(t, "lock", 2, "b")
	refused := func(err error) {
		t.Helper()
		require.ErrorContains(t, err, "no fencing token of lock lock was checked in this transaction")
		require.ErrorContains(t, err, "23000")
	}
	statements := []string{
		"INSERT INTO data VALUES ('x', 1)", "UPDATE data SET value = 2", "DELETE FROM data", "TRUNCATE data",
		"UPDATE data SET value = 2 WHERE false",
	}
	forgotten := func() {
		t.Helper()
		for _, statement := range statements {
			_, err := db.ExecContext(ctx, statement)
			refused(err)
		}
	}
	forgotten() // before there is any mark
	require.NoError(t, fence.Tx(ctx, first, db.write(ctx, "x", 1)))
	forgotten() // of a mark that another transaction wrote
	// Also on the same connection, and by a transaction that other locks' tokens passed.
	refused(fence.Tx(ctx, sqlToken(t, "other lock", 9, "h"), db.write(ctx, "x", 9)))
	require.NoError(t, fence.Tx(ctx, first, db.write(ctx, "x", 2)), "an equal token")
	require.NoError(t, fence.Tx(ctx, second, func(tx *sql.Tx) error {
		for _, statement := range statements[1:] {
			if _, err := tx.ExecContext(ctx, statement); err != nil {
				return err
			}
		}
		return db.write(ctx, "x", 3)(tx)
	}))
	requireStale(t, fence.Tx(ctx, first, neverRun(t)), first, second)

	// A table of the same name that the session sees first.
	tx, err := db.BeginTx(ctx, nil)
	require.NoError(t, err)
	defer func() { _ = tx.Rollback() }()
	_, err = tx.ExecContext(ctx, "CREATE TEMP TABLE fencelock_marks (scope BYTEA, token BIGINT); INSERT INTO fencelock_marks VALUES ('lock', 9)")
	require.NoError(t, err)
	refused(db.write(ctx, "x", 4)(tx))
	require.NoError(t, tx.Rollback())

	// With Check, and with one that a savepoint took back.
	tx, err = db.BeginTx(ctx, nil)
	require.NoError(t, err)
	defer func() { _ = tx.Rollback() }()
	_, err = tx.ExecContext(ctx, "SAVEPOINT a")
	require.NoError(t, err)
	require.NoError(t, fence.Check(ctx, tx, second))
	_, err = tx.ExecContext(ctx, "ROLLBACK TO SAVEPOINT a")
	require.NoError(t, err)
	refused(db.write(ctx, "x", 4)(tx))
	_, err = tx.ExecContext(ctx, "ROLLBACK TO SAVEPOINT a")
	require.NoError(t, err)
	require.NoError(t, fence.Check(ctx, tx, second))
	_, err = tx.ExecContext(ctx, "RELEASE SAVEPOINT a")
	require.NoError(t, err)
	refused(db.write(ctx, "x", 4)(tx))
	require.NoError(t, tx.Rollback())

	tx, err = db.BeginTx(ctx, nil)
	require.NoError(t, err)
	defer func() { _ = tx.Rollback() }()
	require.NoError(t, fence.Check(ctx, tx, second))
	require.NoError(t, db.write(ctx, "x", 5)(tx))
	require.NoError(t, tx.Commit())
	require.EqualValues(t, 5, db.value(t, "x"))
}
