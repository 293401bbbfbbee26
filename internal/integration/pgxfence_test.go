package integration_test

import (
	"context"
	"database/sql"
	"errors"
	"math"
	"math/rand/v2"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/integration/harness"
	"github.com/fencelock/fencelock/internal/integration/pgtest"
	"github.com/fencelock/fencelock/pgxfence"
	"github.com/fencelock/fencelock/sqlfence"
)

// pgxDB is an empty schema of its own, with a table of values.
type pgxDB struct {
	*pgxpool.Pool
	url string // leads to the schema
}

// TestPgxFence runs on a real PostgreSQL. Each part says in its own comment what a
// naive fence gets wrong.
func TestPgxFence(t *testing.T) {
	harness.NoLeaks(t)
	server := pgtest.Start(t)
	for name, test := range map[string]func(*testing.T, *pgxDB){
		"the rule":                                 pgxRule,
		"exact for every int64":                    pgxExact,
		"deleted data keeps its mark":              pgxDeletedData,
		"reads its predecessor":                    pgxReadsPredecessor,
		"first writers at once":                    pgxFirstWriters,
		"shuffled tokens":                          pgxShuffled,
		"the reply to commit is lost":              func(t *testing.T, db *pgxDB) { pgxCommitFault(t, db, loseReply, 1) },
		"the commit itself is lost":                func(t *testing.T, db *pgxDB) { pgxCommitFault(t, db, loseRequest, 0) },
		"the connection is killed":                 pgxKilled,
		"a failure is swallowed":                   pgxSwallowed,
		"the callback commits":                     pgxCallbackCommits,
		"panic and Goexit":                         pgxPanicAndGoexit,
		"a context that ends inside":               pgxContextEnds,
		"runs again with its token":                pgxRunsAgain,
		"check in one's own":                       pgxCheck,
		"a savepoint rolled back":                  pgxSavepoint,
		"no table":                                 pgxNoTable,
		"migrated by many at once":                 pgxMigrate,
		"shares its marks":                         pgxSharesMarksWithSQLFence,
		"tables that cannot hold marks":            pgxBadTables,
		"transaction that ends under the callback": pgxTransactionEnds,
		"a token kept in the row":                  pgxRow,
		"bad input":                                pgxBadInput,
		"hooks":                                    pgxHooks,
		"a pool that is closed":                    pgxClosed,
		"waits and serves other locks":             pgxWaits,
	} {
		t.Run(name, func(t *testing.T) {
			url := server.URL() + "&search_path=" + pgxSchema(t, server.URL())
			if !strings.Contains(server.URL(), "?") {
				url = server.URL() + "?search_path=" + pgxSchema(t, server.URL())
			}
			pool, err := pgxpool.New(t.Context(), url)
			require.NoError(t, err)
			t.Cleanup(pool.Close)
			_, err = pool.Exec(t.Context(), `CREATE TABLE data (id TEXT PRIMARY KEY, value BIGINT NOT NULL)`)
			require.NoError(t, err)
			test(t, &pgxDB{pool, url})
		})
	}
}

// pgxSchema makes an empty schema.
func pgxSchema(t *testing.T, url string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	defer conn.Close(t.Context())
	var name string
	require.NoError(t, conn.QueryRow(t.Context(),
		`SELECT 'pgx_' || replace(gen_random_uuid()::text, '-', '')`).Scan(&name))
	_, err = conn.Exec(t.Context(), `CREATE SCHEMA `+name)
	require.NoError(t, err)
	return name
}

func (db *pgxDB) fence(t *testing.T, opts ...pgxfence.Option) *pgxfence.Fence {
	t.Helper()
	f, err := pgxfence.New(db.Pool, opts...)
	require.NoError(t, err)
	require.NoError(t, f.Migrate(t.Context()))
	return f
}

func (db *pgxDB) value(t *testing.T, id string) (v int64) {
	t.Helper()
	err := db.QueryRow(t.Context(), `SELECT coalesce(max(value), 0) FROM data WHERE id = $1`, id).Scan(&v)
	require.NoError(t, err)
	return v
}

func pgxWrite(ctx context.Context, id string, value int64) func(pgx.Tx) error {
	return func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO data VALUES ($1, $2) ON CONFLICT (id) DO UPDATE SET value = excluded.value`, id, value)
		return err
	}
}

func pgxNever(t *testing.T) func(pgx.Tx) error {
	return func(pgx.Tx) error {
		t.Error("the callback ran")
		return nil
	}
}

func pgxRule(t *testing.T, db *pgxDB) {
	ctx := t.Context()
	f := db.fence(t)
	older, newer, twin := sqlToken(t, "lock", 1, "old"), sqlToken(t, "lock", 2, "new"), sqlToken(t, "lock", 2, "twin")
	require.NoError(t, f.Tx(ctx, older, pgxWrite(ctx, "x", 1)))
	require.NoError(t, f.Tx(ctx, older, pgxWrite(ctx, "x", 2)), "the same holder writes many times")
	require.NoError(t, f.Tx(ctx, newer, pgxWrite(ctx, "x", 3)))
	requireStale(t, f.Tx(ctx, older, pgxNever(t)), older, newer)
	requireStale(t, f.Tx(ctx, twin, pgxNever(t)), twin, newer)
	require.NoError(t, f.Tx(ctx, sqlToken(t, "another lock", 1, "h"), pgxWrite(ctx, "y", 1)), "marks are independent")
	require.EqualValues(t, 3, db.value(t, "x"))
	highest, err := f.Highest(ctx, "lock")
	require.NoError(t, err)
	require.True(t, highest.Equal(newer))
	highest, err = f.Highest(ctx, "never seen")
	require.NoError(t, err)
	require.True(t, highest.IsZero())

	// An effect that fails takes the mark's rise with it; Advance does not.
	third := sqlToken(t, "lock", 3, "third")
	failed := errors.New("failed")
	require.ErrorIs(t, f.Tx(ctx, third, func(pgx.Tx) error { return failed }), failed)
	require.NoError(t, f.Tx(ctx, newer, pgxWrite(ctx, "x", 4)))
	require.NoError(t, f.Advance(ctx, third))
	requireStale(t, f.Advance(ctx, newer), newer, third)
}

// A float or an int32 somewhere makes neighbours equal.
func pgxExact(t *testing.T, db *pgxDB) {
	f := db.fence(t)
	for _, edge := range []int64{1<<31 - 1, 1 << 31, 1<<53 - 1, 1 << 53, 1<<53 + 1, math.MaxInt64 - 1} {
		name := "lock " + sqlToken(t, "n", edge, "h").String() + " with \x00 and \xff"
		older, newer := sqlToken(t, name, edge, "h"), sqlToken(t, name, edge+1, "h")
		require.NoError(t, f.Advance(t.Context(), newer))
		requireStale(t, f.Advance(t.Context(), older), older, newer)
	}
}

// A mark in the data's own row is forgotten with it.
func pgxDeletedData(t *testing.T, db *pgxDB) {
	ctx := t.Context()
	f := db.fence(t)
	older, newer := sqlToken(t, "lock", 1, "old"), sqlToken(t, "lock", 2, "new")
	require.NoError(t, f.Tx(ctx, older, pgxWrite(ctx, "x", 1)))
	require.NoError(t, f.Tx(ctx, newer, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `DELETE FROM data`)
		return err
	}))
	requireStale(t, f.Tx(ctx, older, pgxNever(t)), older, newer)
	require.Zero(t, db.value(t, "x"))
}

// A fence that locks the mark's row for an equal token, instead of writing it, lets
// a REPEATABLE READ transaction read from before its predecessor's commit.
func pgxReadsPredecessor(t *testing.T, db *pgxDB) {
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		t.Run(string(level), func(t *testing.T) {
			ctx := t.Context()
			f := db.fence(t, pgxfence.WithTxOptions(pgx.TxOptions{IsoLevel: level}))
			token := sqlToken(t, "lock "+string(level), 1, "h")
			require.NoError(t, f.Tx(ctx, token, pgxWrite(ctx, string(level), 1)))
			var seen int64
			result := make(chan error, 1)
			require.NoError(t, f.Tx(ctx, token, func(tx pgx.Tx) error {
				go func() {
					result <- f.Tx(ctx, token, func(tx pgx.Tx) error {
						return tx.QueryRow(ctx, `SELECT value FROM data WHERE id = $1`, string(level)).Scan(&seen)
					})
				}()
				db.awaitBlocked(t)
				return pgxWrite(ctx, string(level), 2)(tx)
			}))
			require.NoError(t, <-result)
			require.EqualValues(t, 2, seen)
		})
	}
}

func (db *pgxDB) awaitBlocked(t *testing.T) {
	assert.Eventually(t, func() bool {
		var waiting bool
		err := db.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock')`).Scan(&waiting)
		return assert.NoError(t, err) && waiting
	}, 10*time.Second, time.Millisecond, "nobody waits for a lock")
}

// Two who both find no mark must not both pass in the wrong order.
func pgxFirstWriters(t *testing.T, db *pgxDB) {
	ctx := t.Context()
	f := db.fence(t)
	older, newer := sqlToken(t, "lock", 1, "old"), sqlToken(t, "lock", 2, "new")
	late := make(chan error, 1)
	require.NoError(t, f.Tx(ctx, newer, func(tx pgx.Tx) error {
		go func() { late <- f.Tx(ctx, older, pgxNever(t)) }()
		db.awaitBlocked(t)
		return pgxWrite(ctx, "x", 2)(tx)
	}))
	requireStale(t, <-late, older, newer)
	require.EqualValues(t, 2, db.value(t, "x"))
}

func pgxShuffled(t *testing.T, db *pgxDB) {
	ctx := t.Context()
	f := db.fence(t)
	const writers = 100
	var all sync.WaitGroup
	errs := make([]error, writers+1)
	for _, n := range rand.Perm(writers) {
		token := sqlToken(t, "lock", int64(n+1), "h")
		all.Go(func() {
			errs[token.Revision()] = f.Tx(ctx, token, func(tx pgx.Tx) error {
				var before int64
				err := tx.QueryRow(ctx, `SELECT coalesce(max(value), 0) FROM data WHERE id = 'x'`).Scan(&before)
				if err != nil {
					return err
				}
				assert.Less(t, before, token.Revision(), "applied after a newer one")
				return pgxWrite(ctx, "x", token.Revision())(tx)
			})
		})
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			require.ErrorIs(t, err, fencelock.ErrStale)
		}
	}
	require.NoError(t, errs[writers], "the highest passes whenever it comes")
	require.EqualValues(t, writers, db.value(t, "x"))
}

// An unknown outcome called stale makes the caller give up an effect that was
// applied; one tried again unasked applies it twice.
func pgxCommitFault(t *testing.T, db *pgxDB, kind faultKind, applied int64) {
	ctx := t.Context()
	db.fence(t)
	fault := &commitFault{kind: kind}
	config, err := pgxpool.ParseConfig(db.url)
	require.NoError(t, err)
	dial := config.ConnConfig.DialFunc
	config.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &faultyConn{Conn: conn, fault: fault}, nil
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	require.NoError(t, err)
	defer pool.Close()
	f, err := pgxfence.New(pool)
	require.NoError(t, err)
	token := sqlToken(t, "lock", 1, "h")
	runs := 0
	fault.armed.Store(true)
	err = f.Tx(ctx, token, func(tx pgx.Tx) error {
		runs++
		return pgxWrite(ctx, "x", 1)(tx)
	})
	require.ErrorIs(t, err, pgxfence.ErrUnknownOutcome)
	require.NotErrorIs(t, err, fencelock.ErrStale)
	require.Equal(t, 1, runs)
	require.Equal(t, applied, db.value(t, "x"))
	require.NoError(t, f.Tx(ctx, token, pgxWrite(ctx, "x", 2)), "the same token passes, applied or not")
	require.EqualValues(t, 2, db.value(t, "x"))
}

func pgxKilled(t *testing.T, db *pgxDB) {
	ctx := t.Context()
	f := db.fence(t)
	token := sqlToken(t, "lock", 1, "h")
	err := f.Tx(ctx, token, func(tx pgx.Tx) error {
		if err := pgxWrite(ctx, "x", 1)(tx); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `SELECT pg_terminate_backend(pg_backend_pid())`)
		return err
	})
	require.ErrorContains(t, err, "57P01")
	require.NotErrorIs(t, err, pgxfence.ErrUnknownOutcome, "nothing was committed before the commit")
	require.Zero(t, db.value(t, "x"))
	require.NoError(t, f.Tx(ctx, token, pgxWrite(ctx, "x", 2)))
}

// A failed transaction's COMMIT is answered with ROLLBACK, and no error.
func pgxSwallowed(t *testing.T, db *pgxDB) {
	ctx := t.Context()
	f := db.fence(t)
	err := f.Tx(ctx, sqlToken(t, "lock", 1, "h"), func(tx pgx.Tx) error {
		if err := pgxWrite(ctx, "x", 1)(tx); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `SELECT 1/0`)
		assert.Error(t, err)
		return nil
	})
	require.ErrorContains(t, err, "nothing was applied")
	require.NotErrorIs(t, err, pgxfence.ErrUnknownOutcome)
	require.Zero(t, db.value(t, "x"))
}

func pgxCallbackCommits(t *testing.T, db *pgxDB) {
	ctx := t.Context()
	f := db.fence(t)
	err := f.Tx(ctx, sqlToken(t, "lock", 1, "h"), func(tx pgx.Tx) error { return tx.Commit(ctx) })
	require.ErrorIs(t, err, pgxfence.ErrUnknownOutcome)
	require.ErrorContains(t, err, "the callback ended the transaction")
}

func pgxPanicAndGoexit(t *testing.T, db *pgxDB) {
	ctx := t.Context()
	f := db.fence(t)
	token := sqlToken(t, "lock", 1, "h")
	require.PanicsWithValue(t, "boom", func() {
		_ = f.Tx(ctx, token, func(tx pgx.Tx) error {
			assert.NoError(t, pgxWrite(ctx, "x", 1)(tx))
			panic("boom")
		})
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = f.Tx(ctx, token, func(tx pgx.Tx) error {
			assert.NoError(t, pgxWrite(ctx, "x", 1)(tx))
			runtime.Goexit()
			return nil
		})
	}()
	<-done
	require.Zero(t, db.value(t, "x"))
	require.Zero(t, db.Stat().AcquiredConns(), "both gave their connection back")
}

func pgxContextEnds(t *testing.T, db *pgxDB) {
	f := db.fence(t)
	lost := errors.New("the lock was lost")
	ctx, cancel := context.WithCancelCause(t.Context())
	err := f.Tx(ctx, sqlToken(t, "lock", 1, "h"), func(tx pgx.Tx) error {
		assert.NoError(t, pgxWrite(ctx, "x", 1)(tx))
		cancel(lost)
		return nil
	})
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, lost)
	require.NotErrorIs(t, err, pgxfence.ErrUnknownOutcome)
	require.Zero(t, db.value(t, "x"))
	require.Zero(t, db.Stat().AcquiredConns())
}

// A serialization failure is no refusal: the same token is tried again.
func pgxRunsAgain(t *testing.T, db *pgxDB) {
	ctx := t.Context()
	f := db.fence(t, pgxfence.WithTxOptions(pgx.TxOptions{IsoLevel: pgx.RepeatableRead}))
	token := sqlToken(t, "lock", 1, "h")
	require.NoError(t, f.Tx(ctx, token, pgxWrite(ctx, "x", 1)))
	runs := 0
	require.NoError(t, f.Tx(ctx, token, func(tx pgx.Tx) error {
		var v int64
		if err := tx.QueryRow(ctx, `SELECT value FROM data WHERE id = 'x'`).Scan(&v); err != nil {
			return err
		}
		if runs++; runs == 1 {
			if _, err := db.Exec(ctx, `UPDATE data SET value = 10 WHERE id = 'x'`); err != nil {
				return err
			}
		}
		return pgxWrite(ctx, "x", v+1)(tx)
	}))
	require.Equal(t, 2, runs)
	require.EqualValues(t, 11, db.value(t, "x"))

	runs = 0
	err := f.Tx(ctx, token, func(tx pgx.Tx) error {
		runs++
		_, err := tx.Exec(ctx, `DO $$ BEGIN RAISE SQLSTATE '40001'; END $$`)
		return err
	})
	require.ErrorContains(t, err, "in 8 runs")
	require.Equal(t, 8, runs)
}

func pgxCheck(t *testing.T, db *pgxDB) {
	ctx := t.Context()
	f := db.fence(t)
	older, newer := sqlToken(t, "lock", 1, "old"), sqlToken(t, "lock", 2, "new")
	require.NoError(t, pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		if err := f.Check(ctx, tx, newer); err != nil {
			return err
		}
		return pgxWrite(ctx, "x", 2)(tx)
	}))
	err := pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		if err := f.Check(ctx, tx, older); err != nil {
			return err
		}
		return pgxWrite(ctx, "x", 1)(tx)
	})
	requireStale(t, err, older, newer)
	require.EqualValues(t, 2, db.value(t, "x"))
	require.ErrorIs(t, f.Check(ctx, nil, newer), fencelock.ErrInvalidOption)
	require.ErrorIs(t, f.Check(ctx, nil, fencelock.Token{}), fencelock.ErrInvalidOption)
}

// What the documentation of Check warns of.
func pgxSavepoint(t *testing.T, db *pgxDB) {
	ctx := t.Context()
	f := db.fence(t)
	token := sqlToken(t, "lock", 1, "h")
	failed := errors.New("failed")
	require.NoError(t, pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		err := pgx.BeginFunc(ctx, tx, func(inner pgx.Tx) error {
			return errors.Join(f.Check(ctx, inner, token), failed)
		})
		assert.ErrorIs(t, err, failed)
		return nil
	}))
	highest, err := f.Highest(ctx, "lock")
	require.NoError(t, err)
	require.True(t, highest.IsZero(), "the mark's rise went with the savepoint")
}

func pgxNoTable(t *testing.T, db *pgxDB) {
	f, err := pgxfence.New(db.Pool)
	require.NoError(t, err)
	require.ErrorIs(t, f.Tx(t.Context(), sqlToken(t, "lock", 1, "h"), pgxNever(t)), pgxfence.ErrNoTable)
	_, err = f.Highest(t.Context(), "lock")
	require.ErrorIs(t, err, pgxfence.ErrNoTable)
}

func pgxMigrate(t *testing.T, db *pgxDB) {
	f, err := pgxfence.New(db.Pool)
	require.NoError(t, err)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() { assert.NoError(t, f.Migrate(t.Context())) })
	}
	all.Wait()
	require.NoError(t, f.Migrate(t.Context()), "again")
	_, err = db.Exec(t.Context(), f.DDL())
	require.NoError(t, err)
}

// Programs that use the one and the other must see one mark, and make one table.
func pgxSharesMarksWithSQLFence(t *testing.T, db *pgxDB) {
	ctx := t.Context()
	std, err := sql.Open("pgx", db.url)
	require.NoError(t, err)
	defer std.Close()
	ours := db.fence(t)
	theirs, err := sqlfence.New(std, sqlfence.PostgreSQL)
	require.NoError(t, err)
	require.NoError(t, theirs.Migrate(ctx))
	require.Equal(t, theirs.DDL(), ours.DDL())
	first, second, third := sqlToken(t, "lock", 1, "a"), sqlToken(t, "lock", 2, "b"), sqlToken(t, "lock", 3, "c")
	require.NoError(t, ours.Advance(ctx, second))
	requireStale(t, theirs.Advance(ctx, first), first, second)
	require.NoError(t, theirs.Advance(ctx, third))
	requireStale(t, ours.Advance(ctx, second), second, third)
}

func pgxBadInput(t *testing.T, db *pgxDB) {
	ctx := t.Context()
	var nilPool *pgxpool.Pool
	for name, make := range map[string]func() (*pgxfence.Fence, error){
		"nil":        func() (*pgxfence.Fence, error) { return pgxfence.New(nil) },
		"nil pool":   func() (*pgxfence.Fence, error) { return pgxfence.New(nilPool) },
		"nil option": func() (*pgxfence.Fence, error) { return pgxfence.New(db.Pool, nil) },
		"read only": func() (*pgxfence.Fence, error) {
			return pgxfence.New(db.Pool, pgxfence.WithTxOptions(pgx.TxOptions{AccessMode: pgx.ReadOnly}))
		},
		"empty table": func() (*pgxfence.Fence, error) { return pgxfence.New(db.Pool, pgxfence.WithTable("")) },
		"three parts": func() (*pgxfence.Fence, error) { return pgxfence.New(db.Pool, pgxfence.WithTable("a.b.c")) },
		"injected": func() (*pgxfence.Fence, error) {
			return pgxfence.New(db.Pool, pgxfence.WithTable(`m"; DROP TABLE data; --`))
		},
		"too long": func() (*pgxfence.Fence, error) {
			return pgxfence.New(db.Pool, pgxfence.WithTable(strings.Repeat("a", 64)))
		},
		"1 MiB of table": func() (*pgxfence.Fence, error) {
			return pgxfence.New(db.Pool, pgxfence.WithTable(strings.Repeat("a", 1<<20)))
		},
	} {
		_, err := make()
		require.ErrorIs(t, err, fencelock.ErrInvalidOption, name)
		require.Less(t, len(err.Error()), 500, name)
	}
	_, err := pgxfence.New(db.Pool, pgxfence.WithScope(""))
	require.ErrorIs(t, err, fencelock.ErrInvalidName)

	f := db.fence(t, pgxfence.WithScope("lock"))
	require.ErrorIs(t, f.Tx(ctx, fencelock.Token{}, pgxNever(t)), fencelock.ErrNoToken)
	require.ErrorIs(t, f.Tx(ctx, sqlToken(t, "other", 9, "h"), pgxNever(t)), fencelock.ErrScope)
	require.ErrorIs(t, f.Tx(ctx, sqlToken(t, "lock", 1, "h"), nil), fencelock.ErrInvalidOption)
	var none context.Context
	require.ErrorIs(t, f.Tx(none, sqlToken(t, "lock", 1, "h"), pgxNever(t)), fencelock.ErrInvalidOption)
	require.ErrorIs(t, f.Migrate(none), fencelock.ErrInvalidOption)
	_, err = f.Highest(ctx, "")
	require.ErrorIs(t, err, fencelock.ErrInvalidName)
	require.NoError(t, f.Advance(ctx, sqlToken(t, "lock", 1, "h")))
}

func pgxHooks(t *testing.T, db *pgxDB) {
	var rejected []fencelock.TokenRejectedInfo
	f := db.fence(t, pgxfence.WithHooks(fencelock.Hooks{TokenRejected: func(i fencelock.TokenRejectedInfo) {
		rejected = append(rejected, i)
		panic("an observer")
	}}))
	older, newer := sqlToken(t, "lock", 1, "old"), sqlToken(t, "lock", 2, "new")
	require.NoError(t, f.Advance(t.Context(), newer))
	requireStale(t, f.Advance(t.Context(), older), older, newer)
	require.ErrorIs(t, f.Advance(t.Context(), fencelock.Token{}), fencelock.ErrNoToken)
	require.Len(t, rejected, 2)
	require.ErrorIs(t, rejected[0].Err, fencelock.ErrStale)
	require.ErrorIs(t, rejected[1].Err, fencelock.ErrNoToken)
}

func pgxClosed(t *testing.T, db *pgxDB) {
	f := db.fence(t)
	db.Close()
	err := f.Tx(t.Context(), sqlToken(t, "lock", 1, "h"), pgxNever(t))
	require.ErrorContains(t, err, "closed pool")
}

// A transaction waits for the one before it on its lock, no longer than its context,
// and for nobody else's.
func pgxWaits(t *testing.T, db *pgxDB) {
	ctx := t.Context()
	f := db.fence(t)
	token := sqlToken(t, "lock", 1, "h")
	require.NoError(t, f.Tx(ctx, token, func(tx pgx.Tx) error {
		require.NoError(t, f.Advance(ctx, sqlToken(t, "another", 1, "h")))
		brief, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		defer cancel()
		require.ErrorIs(t, f.Tx(brief, token, pgxNever(t)), context.DeadlineExceeded)
		return nil
	}))
}

func pgxBadTables(t *testing.T, db *pgxDB) {
	ctx := t.Context()
	early, err := pgxfence.New(db.Pool)
	require.NoError(t, err)
	token := sqlToken(t, "lock", 1, "h")
	for name, table := range badTables[sqlfence.PostgreSQL] {
		t.Run(name, func(t *testing.T) {
			_, err := db.Exec(ctx, "CREATE TABLE fencelock_marks ("+table.columns+")")
			require.NoError(t, err)
			_, err = pgxfence.New(db.Pool)
			require.ErrorIs(t, err, pgxfence.ErrBadTable)
			require.ErrorContains(t, err, table.says)
			for _, err := range []error{
				early.Tx(ctx, token, pgxNever(t)),
				early.Migrate(ctx),
				second(early.Highest(ctx, "lock")),
			} {
				require.ErrorIs(t, err, pgxfence.ErrBadTable)
			}
			_, err = db.Exec(ctx, "DROP TABLE fencelock_marks")
			require.NoError(t, err)
		})
	}
	require.NoError(t, early.Migrate(ctx))
	require.NoError(t, early.Advance(ctx, token))
}

func pgxRow(t *testing.T, db *pgxDB) {
	ctx := t.Context()
	_, err := db.Exec(ctx, `CREATE TABLE account (id BIGINT PRIMARY KEY, balance BIGINT, fence_token BIGINT DEFAULT 0, fence_holder TEXT)`)
	require.NoError(t, err)
	_, err = db.Exec(ctx, "INSERT INTO account VALUES (1, 0, 0, NULL), (2, 0, NULL, NULL), (3, 0, 5, 'not a holder')")
	require.NoError(t, err)
	set := func(token fencelock.Token, id int64, where string) error {
		return pgx.BeginFunc(ctx, db.Pool, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `UPDATE account SET balance = $1, fence_token = $1, fence_holder = $2
WHERE id = $3 AND (fence_token < $1 OR fence_token = $1 AND fence_holder = $2)`+where, token, token.Holder(), id)
			require.NoError(t, err)
			return pgxfence.CheckRow(ctx, tx, token, "SELECT fence_token, fence_holder FROM account WHERE id = $1", id)
		})
	}
	one, same, two := sqlToken(t, "lock", 1<<53, "a"), sqlToken(t, "lock", 1<<53, "b"), sqlToken(t, "lock", 1<<53+1, "c")
	require.ErrorIs(t, set(one, 1, " AND false"), pgxfence.ErrNotWritten)
	require.NoError(t, set(one, 1, ""))
	require.NoError(t, set(one, 1, ""))
	requireStale(t, set(same, 1, ""), same, one)
	require.ErrorIs(t, set(two, 1, " AND false"), pgxfence.ErrNotWritten)
	require.NoError(t, set(two, 1, ""))
	requireStale(t, set(one, 1, ""), one, two)
	require.ErrorIs(t, set(two, 2, ""), pgxfence.ErrNullToken)
	require.ErrorIs(t, set(two, 4, ""), pgxfence.ErrNoRow)
	require.ErrorIs(t, set(sqlToken(t, "lock", 5, "h"), 3, ""), fencelock.ErrInvalidToken)
	require.ErrorIs(t, pgxfence.CheckRow(ctx, nil, one, "SELECT 1"), fencelock.ErrInvalidOption)
	for query, says := range map[string]string{
		"SELECT 1": "1 columns", "SELECT 1, 'a', 2": "3 columns", "SELECT 9, 'a' FROM account": "more than one row",
		"SELECT nothing FROM nowhere": "cannot read the row",
	} {
		err := pgx.BeginFunc(ctx, db.Pool, func(tx pgx.Tx) error { return pgxfence.CheckRow(ctx, tx, two, query) })
		require.ErrorContains(t, err, says)
	}
}

// pgxTransactionEnds: what comes after the end is not fenced, and that must not go
// unnoticed, nor be done again.
func pgxTransactionEnds(t *testing.T, db *pgxDB) {
	ctx := t.Context()
	f := db.fence(t)
	for i, end := range []string{"COMMIT", "ROLLBACK"} {
		token := sqlToken(t, "lock", int64(i)+1, "h")
		for _, failure := range []error{nil, errors.New("the work failed"), &pgconn.PgError{Code: "40001"}} {
			runs := 0
			err := f.Tx(ctx, token, func(tx pgx.Tx) error {
				runs++
				if _, err := tx.Exec(ctx, end); err != nil {
					return err
				}
				return errors.Join(pgxWrite(ctx, "x", 1)(tx), failure)
			})
			require.ErrorIs(t, err, pgxfence.ErrTransactionEnded, end)
			require.Equal(t, 1, runs)
			if failure != nil {
				require.ErrorIs(t, err, failure)
			}
		}
	}
	// Rows that were not read keep the connection busy: nothing was sent.
	err := f.Tx(ctx, sqlToken(t, "lock", 9, "h"), func(tx pgx.Tx) error {
		_, err := tx.Query(ctx, "SELECT generate_series(1, 10)")
		return err
	})
	require.ErrorContains(t, err, "rows of a query are still open")
	require.NotErrorIs(t, err, pgxfence.ErrUnknownOutcome)
	require.NoError(t, f.Advance(ctx, sqlToken(t, "lock", 9, "h")))
}
