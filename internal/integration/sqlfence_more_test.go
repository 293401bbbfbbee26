package integration_test

import (
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/sqlfence"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// sqlFenceCheck is about transactions that are the caller's.
func sqlFenceCheck(t *testing.T, db fencedDB) {
	ctx := t.Context()
	var rejected []fencelock.TokenRejectedInfo
	fence := db.fence(t, sqlfence.WithHooks(fencelock.Hooks{TokenRejected: func(info fencelock.TokenRejectedInfo) {
		rejected = append(rejected, info)
	}}))
	checked := func(token fencelock.Token, effect func(*sql.Tx) error) error {
		tx, err := db.BeginTx(ctx, nil)
		require.NoError(t, err)
		defer func() { _ = tx.Rollback() }()
		if err := fence.Check(ctx, tx, token); err != nil {
			return err
		}
		if err := effect(tx); err != nil {
			return err
		}
		return tx.Commit()
	}
	first, second := sqlToken(t, "lock", 1, "a"), sqlToken(t, "lock", 2, "b")
	require.NoError(t, checked(first, db.write(ctx, "x", 1)))
	requireMark(t, fence, first)

	// A rollback takes the mark back.
	failure := errors.New("the work failed")
	require.Equal(t, failure, checked(second, func(*sql.Tx) error { return failure }))
	requireMark(t, fence, first)

	require.NoError(t, checked(second, db.write(ctx, "x", 2)))
	requireStale(t, checked(first, neverRun(t)), first, second)
	require.Len(t, rejected, 1)
	require.EqualValues(t, 2, db.value(t, "x"))

	// So does a savepoint: what comes after is not fenced, as the documentation says.
	third := sqlToken(t, "lock", 3, "c")
	tx, err := db.BeginTx(ctx, nil)
	require.NoError(t, err)
	defer func() { _ = tx.Rollback() }()
	for _, step := range []func() error{
		// A transaction that begins with a SAVEPOINT begins without a write.
		func() error { return second2(tx.ExecContext(ctx, "SAVEPOINT a")) },
		func() error { return fence.Check(ctx, tx, third) },
		func() error { return second2(tx.ExecContext(ctx, "ROLLBACK TO SAVEPOINT a")) },
		func() error { return db.write(ctx, "x", 3)(tx) },
		tx.Commit,
	} {
		require.NoError(t, step())
	}
	requireMark(t, fence, second)
	require.EqualValues(t, 3, db.value(t, "x"), "applied, and the mark was not raised")

	// The right order: before any savepoint.
	tx, err = db.BeginTx(ctx, nil)
	require.NoError(t, err)
	defer func() { _ = tx.Rollback() }()
	for _, step := range []func() error{
		func() error { return fence.Check(ctx, tx, third) },
		func() error { return second2(tx.ExecContext(ctx, "SAVEPOINT a")) },
		func() error { return db.write(ctx, "x", 4)(tx) },
		func() error { return second2(tx.ExecContext(ctx, "ROLLBACK TO SAVEPOINT a")) },
		tx.Commit,
	} {
		require.NoError(t, step())
	}
	requireMark(t, fence, third)
	require.EqualValues(t, 3, db.value(t, "x"))

	if db.dialect == sqlfence.SQLite {
		return // refuses a transaction whose reads are outdated when it begins to write
	}
	// A read before Check is not protected: this one is outdated when Check passes.
	tx, err = db.BeginTx(ctx, nil)
	require.NoError(t, err)
	defer func() { _ = tx.Rollback() }()
	before, err := db.read(ctx, tx, "x")
	require.NoError(t, err)
	require.NoError(t, fence.Tx(ctx, third, db.write(ctx, "x", 5)))
	require.NoError(t, fence.Check(ctx, tx, sqlToken(t, "lock", 4, "d")))
	require.NoError(t, tx.Commit())
	require.EqualValues(t, 3, before)
	require.EqualValues(t, 5, db.value(t, "x"))
}

func second2(_ sql.Result, err error) error { return err }

func sqlFenceScope(t *testing.T, db fencedDB) {
	ctx := t.Context()
	db.fence(t)
	fence := db.unmigrated(t, sqlfence.WithScope("orders/42"))
	require.NoError(t, fence.Tx(ctx, sqlToken(t, "orders/42", 1, "h"), db.write(ctx, "x", 1)))
	for _, name := range []string{"orders/4", "orders/421", "Orders/42", "other"} {
		token := sqlToken(t, name, 9, "h")
		require.ErrorIs(t, fence.Tx(ctx, token, neverRun(t)), fencelock.ErrScope)
		require.ErrorIs(t, fence.Advance(ctx, token), fencelock.ErrScope)
		requireMarkless(t, fence, name)
	}
}

// badTables are tables that would hold marks until they matter: cut, rounded, compared
// as texts, taken for equal, or not at all. Each of these is what says names, and
// nothing else.
var badTables = map[sqlfence.Dialect]map[string]struct{ columns, says string }{
	sqlfence.PostgreSQL: {
		"32 bits":         {"scope BYTEA PRIMARY KEY, token INTEGER NOT NULL, holder TEXT NOT NULL, written_at TIMESTAMPTZ NOT NULL", "token is integer"},
		"16 bits":         {"scope BYTEA PRIMARY KEY, token SMALLINT NOT NULL, holder TEXT NOT NULL, written_at TIMESTAMPTZ NOT NULL", "token is smallint"},
		"a text":          {"scope BYTEA PRIMARY KEY, token TEXT NOT NULL, holder TEXT NOT NULL, written_at TIMESTAMPTZ NOT NULL", "token is text"},
		"a float":         {"scope BYTEA PRIMARY KEY, token DOUBLE PRECISION NOT NULL, holder TEXT NOT NULL, written_at TIMESTAMPTZ NOT NULL", "token is double precision"},
		"nullable":        {"scope BYTEA PRIMARY KEY, token BIGINT, holder TEXT NOT NULL, written_at TIMESTAMPTZ NOT NULL", "token is bigint and nullable"},
		"nullable holder": {"scope BYTEA PRIMARY KEY, token BIGINT NOT NULL, holder TEXT, written_at TIMESTAMPTZ NOT NULL", "holder is text and nullable"},
		"short holder":    {"scope BYTEA PRIMARY KEY, token BIGINT NOT NULL, holder VARCHAR(20) NOT NULL, written_at TIMESTAMPTZ NOT NULL", "holder is character varying(20)"},
		"padded holder":   {"scope BYTEA PRIMARY KEY, token BIGINT NOT NULL, holder CHAR(128) NOT NULL, written_at TIMESTAMPTZ NOT NULL", "holder is character"},
		"a text scope":    {"scope TEXT PRIMARY KEY, token BIGINT NOT NULL, holder TEXT NOT NULL, written_at TIMESTAMPTZ NOT NULL", "scope is text"},
		"no holder":       {"scope BYTEA PRIMARY KEY, token BIGINT NOT NULL, written_at TIMESTAMPTZ NOT NULL", "holder is missing"},
		"unlogged":        {"scope BYTEA PRIMARY KEY, token BIGINT NOT NULL, holder TEXT NOT NULL, written_at TIMESTAMPTZ NOT NULL); ALTER TABLE fencelock_marks SET UNLOGGED; SELECT (1", "unlogged"},
		"no time":         {"scope BYTEA PRIMARY KEY, token BIGINT NOT NULL, holder TEXT NOT NULL", "written_at is missing"},
	},
	sqlfence.MySQL: {
		"32 bits":         {"scope VARBINARY(1024) PRIMARY KEY, token INT NOT NULL, holder VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, written_at DATETIME(6) NOT NULL", "token is int"},
		"a text":          {"scope VARBINARY(1024) PRIMARY KEY, token VARCHAR(30) NOT NULL, holder VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, written_at DATETIME(6) NOT NULL", "token is varchar"},
		"a float":         {"scope VARBINARY(1024) PRIMARY KEY, token DOUBLE NOT NULL, holder VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, written_at DATETIME(6) NOT NULL", "token is double"},
		"nullable":        {"scope VARBINARY(1024) PRIMARY KEY, token BIGINT, holder VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, written_at DATETIME(6) NOT NULL", "token is bigint and nullable"},
		"any case":        {"scope VARBINARY(1024) PRIMARY KEY, token BIGINT NOT NULL, holder VARCHAR(128) CHARACTER SET ascii COLLATE ascii_general_ci NOT NULL, written_at DATETIME(6) NOT NULL", "ascii_general_ci"},
		"short holder":    {"scope VARBINARY(1024) PRIMARY KEY, token BIGINT NOT NULL, holder VARCHAR(20) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, written_at DATETIME(6) NOT NULL", "holder is varchar(20) collate ascii_bin"},
		"short scope":     {"scope VARBINARY(255) PRIMARY KEY, token BIGINT NOT NULL, holder VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, written_at DATETIME(6) NOT NULL", "scope is varbinary(255)"},
		"no transactions": {"scope VARBINARY(1000) PRIMARY KEY, token BIGINT NOT NULL, holder VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, written_at DATETIME(6) NOT NULL) ENGINE = MyISAM -- (", "engine is MyISAM"},
		"no unique key":   {"scope VARBINARY(1024) NOT NULL, token BIGINT NOT NULL, holder VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, written_at DATETIME(6) NOT NULL", "unique key"},
		"whole seconds":   {"scope VARBINARY(1024) PRIMARY KEY, token BIGINT NOT NULL, holder VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, written_at DATETIME NOT NULL", "written_at is datetime"},
		"another key":     {"scope VARBINARY(1024) PRIMARY KEY, token BIGINT NOT NULL, holder VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL UNIQUE, written_at DATETIME(6) NOT NULL", "unique key"},
		"a prefix":        {"scope VARBINARY(1024) NOT NULL, token BIGINT NOT NULL, holder VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, written_at DATETIME(6) NOT NULL, UNIQUE KEY (scope(10))", "unique key"},
	},
	sqlfence.SQLite: {
		"a text":   {"scope BLOB PRIMARY KEY, token TEXT NOT NULL, holder TEXT NOT NULL, written_at TEXT NOT NULL", "token is text"},
		"a float":  {"scope BLOB PRIMARY KEY, token REAL NOT NULL, holder TEXT NOT NULL, written_at TEXT NOT NULL", "token is real"},
		"anything": {"scope BLOB PRIMARY KEY, token, holder TEXT NOT NULL, written_at TEXT NOT NULL", "token is"},
		"no time":  {"scope BLOB PRIMARY KEY, token INTEGER NOT NULL, holder TEXT NOT NULL", "written_at is missing"},
		"nullable": {"scope BLOB PRIMARY KEY, token INTEGER, holder TEXT NOT NULL, written_at TEXT NOT NULL", "token is integer and nullable"},
	},
}

func sqlFenceBadTables(t *testing.T, db fencedDB) {
	ctx := t.Context()
	// PostgreSQL's drivers keep plans, which a change of the columns spoils.
	db.SetMaxIdleConns(0)
	early := db.unmigrated(t) // looks for the first time when it is used
	token := sqlToken(t, "lock", 1, "h")
	for name, table := range badTables[db.dialect] {
		t.Run(name, func(t *testing.T) {
			_, err := db.ExecContext(ctx, "CREATE TABLE fencelock_marks ("+table.columns+")")
			require.NoError(t, err)
			_, err = sqlfence.New(db.DB, db.dialect)
			require.ErrorIs(t, err, sqlfence.ErrBadTable)
			require.ErrorContains(t, err, table.says)
			for _, err := range []error{
				early.Tx(ctx, token, neverRun(t)),
				early.Advance(ctx, token),
				early.Migrate(ctx),
				second(early.Highest(ctx, "lock")),
			} {
				require.ErrorIs(t, err, sqlfence.ErrBadTable)
			}
			tx, err := db.BeginTx(ctx, nil)
			require.NoError(t, err)
			// Its statement, which comes first, can also fail by itself.
			err = early.Check(ctx, tx, token)
			require.Error(t, err)
			require.NoError(t, tx.Rollback())

			// What the error says is how it is mended, one fault after the other.
			for err != nil {
				_, err = sqlfence.New(db.DB, db.dialect)
				if _, mend, found := strings.Cut(fmt.Sprint(err), "; ALTER TABLE"); found {
					mend, _, _ = strings.Cut(mend, "; ")
					_, mended := db.ExecContext(ctx, "ALTER TABLE"+mend)
					require.NoError(t, mended)
					continue
				}
				break
			}
			if err == nil {
				mended := db.unmigrated(t)
				require.NoError(t, mended.Advance(ctx, token))
				requireMark(t, mended, token)
			} else {
				require.ErrorContains(t, err, "call Migrate")
			}
			_, err = db.ExecContext(ctx, "DROP TABLE fencelock_marks")
			require.NoError(t, err)
		})
	}
	// None of that is remembered.
	require.NoError(t, early.Migrate(ctx))
	require.NoError(t, early.Advance(ctx, token))
}

// sqlFenceRow is the recipe for a token that is kept in the row it protects.
func sqlFenceRow(t *testing.T, db fencedDB) {
	ctx := t.Context()
	for _, statement := range []string{
		"CREATE TABLE account (id BIGINT PRIMARY KEY, balance BIGINT NOT NULL, fence_token BIGINT DEFAULT 0, fence_holder VARCHAR(128))",
		"INSERT INTO account (id, balance) VALUES (1, 0)",
		"INSERT INTO account (id, balance, fence_token) VALUES (2, 0, NULL)",
		"INSERT INTO account (id, balance, fence_token, fence_holder) VALUES (3, 0, 5, 'not a holder')",
	} {
		_, err := db.ExecContext(ctx, statement)
		require.NoError(t, err)
	}
	set := func(token fencelock.Token, id, balance int64, where string) error {
		tx, err := db.BeginTx(ctx, nil)
		require.NoError(t, err)
		defer func() { _ = tx.Rollback() }()
		// Not the numbers of PostgreSQL, so that one text is for all.
		_, err = tx.ExecContext(ctx, db.sql(`UPDATE account SET balance = $1, fence_token = $2, fence_holder = $3
WHERE id = $4 AND (fence_token < $5 OR fence_token = $6 AND fence_holder = $7)`+where),
			balance, token, token.Holder(), id, token, token, token.Holder())
		require.NoError(t, err)
		err = sqlfence.CheckRow(ctx, tx, token, db.sql("SELECT fence_token, fence_holder FROM account WHERE id = $1"), id)
		if err != nil {
			return err
		}
		return tx.Commit()
	}
	balance := func(id int64) (v int64) {
		require.NoError(t, db.QueryRowContext(ctx, db.sql("SELECT balance FROM account WHERE id = $1"), id).Scan(&v))
		return v
	}
	one, same, two := sqlToken(t, "lock", 1<<53, "a"), sqlToken(t, "lock", 1<<53, "b"), sqlToken(t, "lock", 1<<53+1, "c")
	require.NoError(t, set(one, 1, 10, ""))
	// MySQL finds nothing to change in this, and it passes.
	require.NoError(t, set(one, 1, 10, ""))
	requireStale(t, set(same, 1, 11, ""), same, one)
	require.NoError(t, set(two, 1, 20, ""))
	requireStale(t, set(one, 1, 30, ""), one, two)
	require.EqualValues(t, 20, balance(1))

	require.ErrorIs(t, set(two, 2, 1, ""), sqlfence.ErrNullToken)
	require.ErrorIs(t, set(two, 4, 1, ""), sqlfence.ErrNoRow)
	require.ErrorIs(t, set(sqlToken(t, "lock", 5, "h"), 3, 1, ""), fencelock.ErrInvalidToken)
	require.ErrorIs(t, set(sqlToken(t, "lock", 1<<53+2, "d"), 1, 1, " AND 1 = 0"), sqlfence.ErrNotWritten)
	require.EqualValues(t, 20, balance(1))
	_, err := db.ExecContext(ctx, "UPDATE account SET fence_token = 0 WHERE id = 2")
	require.NoError(t, err)
	require.ErrorIs(t, set(two, 2, 1, " AND 1 = 0"), sqlfence.ErrNotWritten, "a row that no holder has written")
	require.NoError(t, set(two, 2, 1, ""))

	tx, err := db.BeginTx(ctx, nil)
	require.NoError(t, err)
	defer func() { _ = tx.Rollback() }()
	// Without the holder's column the number decides alone.
	query := "SELECT fence_token FROM account WHERE id = 1"
	require.NoError(t, sqlfence.CheckRow(ctx, tx, two, query))
	require.NoError(t, sqlfence.CheckRow(ctx, tx, sqlToken(t, "lock", 1<<53+1, "x"), query))
	require.ErrorIs(t, sqlfence.CheckRow(ctx, tx, one, query), fencelock.ErrStale)

	require.ErrorIs(t, sqlfence.CheckRow(ctx, tx, fencelock.Token{}, query), fencelock.ErrNoToken)
	require.ErrorIs(t, sqlfence.CheckRow(ctx, nil, one, query), fencelock.ErrInvalidOption)
	require.ErrorIs(t, sqlfence.CheckRow(ctx, tx, one, "SELECT 1, 2, 3"), fencelock.ErrInvalidOption)
	// The first row bears the token, and another one does not.
	err = sqlfence.CheckRow(ctx, tx, two, "SELECT fence_token, fence_holder FROM account ORDER BY id")
	require.ErrorIs(t, err, fencelock.ErrInvalidOption)
	require.ErrorContains(t, err, "more than one row")
	require.ErrorContains(t, sqlfence.CheckRow(ctx, tx, one, "SELECT token FROM nowhere"), "sqlfence: cannot read the row")
}

// sqlFenceSelectIsNotEnough is what many write: look whether the token is the highest,
// then act. Between the two there is room for a whole holder.
func sqlFenceSelectIsNotEnough(t *testing.T, db fencedDB) {
	ctx := t.Context()
	_, err := db.ExecContext(ctx, "CREATE TABLE guard (token BIGINT NOT NULL)")
	require.NoError(t, err)
	_, err = db.ExecContext(ctx, "INSERT INTO guard VALUES (1)")
	require.NoError(t, err)
	var token int64
	require.NoError(t, db.QueryRowContext(ctx, "SELECT token FROM guard").Scan(&token))
	require.EqualValues(t, 1, token, "the first holder may write, it seems")

	// The first is stalled here, and the second comes and goes.
	effect := func(value int64) {
		tx, err := db.BeginTx(ctx, nil)
		require.NoError(t, err)
		require.NoError(t, db.write(ctx, "x", value)(tx))
		require.NoError(t, tx.Commit())
	}
	_, err = db.ExecContext(ctx, "UPDATE guard SET token = 2")
	require.NoError(t, err)
	effect(2)
	effect(1) // the first goes on
	require.EqualValues(t, 1, db.value(t, "x"), "the second's effect is lost")

	// The same with a fence.
	fence := db.fence(t)
	first, second := sqlToken(t, "lock", 1, "a"), sqlToken(t, "lock", 2, "b")
	require.NoError(t, fence.Tx(ctx, first, func(*sql.Tx) error { return nil }))
	require.NoError(t, fence.Tx(ctx, second, db.write(ctx, "x", 2)))
	err = fence.Tx(ctx, first, db.write(ctx, "x", 1))
	assert.ErrorIs(t, err, fencelock.ErrStale)
	require.EqualValues(t, 2, db.value(t, "x"))
}
