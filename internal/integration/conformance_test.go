package integration_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/fencetest"
	"github.com/fencelock/fencelock/internal/integration/harness"
	"github.com/fencelock/fencelock/internal/integration/mytest"
	"github.com/fencelock/fencelock/internal/integration/pgtest"
	"github.com/fencelock/fencelock/pgxfence"
	"github.com/fencelock/fencelock/sqlfence"
)

// The kit's rules decide over every fence in SQL.
func TestSQLFenceConformance(t *testing.T) {
	harness.Parallel(t)
	t.Run("PostgreSQL", func(t *testing.T) {
		server := pgtest.Start(t)
		fencetest.Run(t, func(t *testing.T) fencetest.Resource { return sqlResource(t, postgresDB(t, server)) })
	})
	t.Run("MySQL", func(t *testing.T) {
		server := mytest.Start(t)
		fencetest.Run(t, func(t *testing.T) fencetest.Resource { return sqlResource(t, mysqlDB(t, server, "")) })
	})
	t.Run("SQLite", func(t *testing.T) {
		fencetest.Run(t, func(t *testing.T) fencetest.Resource { return sqlResource(t, sqliteDB(t, sqliteModes["wal"])) })
	})
}

// sqlResource has a row for each key of a scope. For LoseAnswer a commit is made to
// lose its answer where there is a connection to lose; Reopen opens everything anew, as
// another process does.
func sqlResource(t *testing.T, db fencedDB) fencetest.Resource {
	bytes := map[sqlfence.Dialect]string{sqlfence.PostgreSQL: "BYTEA", sqlfence.MySQL: "VARBINARY(1024)", sqlfence.SQLite: "BLOB"}[db.dialect]
	_, err := db.ExecContext(t.Context(), "CREATE TABLE item (scope "+bytes+" NOT NULL, name VARCHAR(100) NOT NULL, value TEXT NOT NULL, PRIMARY KEY (scope, name))")
	require.NoError(t, err)
	upsert := db.sql("INSERT INTO item (scope, name, value) VALUES ($1, $2, $3) ON CONFLICT (scope, name) DO UPDATE SET value = excluded.value")
	if db.dialect == sqlfence.MySQL {
		upsert = "INSERT INTO item (scope, name, value) VALUES (?, ?, ?) ON DUPLICATE KEY UPDATE value = VALUES(value)"
	}
	fence := db.fence(t)
	reads := func(ctx context.Context, q interface {
		QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
	}, scope, key string,
	) (value string, found bool, err error) {
		err = q.QueryRowContext(ctx, db.sql("SELECT value FROM item WHERE scope = $1 AND name = $2"), []byte(scope), key).Scan(&value)
		if errors.Is(err, sql.ErrNoRows) {
			return "", false, nil
		}
		return value, err == nil, err
	}
	written := func(ctx context.Context, fence *sqlfence.Fence, token fencelock.Token, key, value string) error {
		return fence.Tx(ctx, token, func(tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, upsert, []byte(token.Name()), key, value)
			return err
		})
	}
	var spoilt *sqlfence.Fence // for one write
	r := fencetest.Resource{
		Write: func(ctx context.Context, token fencelock.Token, key, value string) error {
			if with := spoilt; with != nil {
				spoilt = nil
				return written(ctx, with, token, key, value)
			}
			return written(ctx, fence, token, key, value)
		},
		Read: func(ctx context.Context, scope, key string) (string, bool, error) {
			return reads(ctx, db.DB, scope, key)
		},
		Update: func(ctx context.Context, token fencelock.Token, key string, f func(string, bool) (string, error)) error {
			return fence.Tx(ctx, token, func(tx *sql.Tx) error {
				old, found, err := reads(ctx, tx, token.Name(), key)
				if err != nil {
					return err
				}
				value, err := f(old, found)
				if err != nil {
					return err
				}
				_, err = tx.ExecContext(ctx, upsert, []byte(token.Name()), key, value)
				return err
			})
		},
		Advance: fence.Advance,
		Delete: func(ctx context.Context, token fencelock.Token, key string) error {
			return fence.Tx(ctx, token, func(tx *sql.Tx) error {
				_, err := tx.ExecContext(ctx, db.sql("DELETE FROM item WHERE scope = $1 AND name = $2"), []byte(token.Name()), key)
				return err
			})
		},
		Reopen: func() error {
			var err error
			fence, err = sqlfence.New(db.DB, db.dialect)
			return err
		},
	}
	if db.dialect != sqlfence.SQLite {
		r.LoseAnswer = func() {
			fault := &commitFault{kind: loseReply}
			var err error
			spoilt, err = sqlfence.New(fault.open(t, db), db.dialect)
			require.NoError(t, err)
			fault.armed.Store(true)
		}
	}
	return r
}

func TestPgxFenceConformance(t *testing.T) {
	harness.Parallel(t)
	server := pgtest.Start(t)
	fencetest.Run(t, func(t *testing.T) fencetest.Resource {
		ctx := t.Context()
		pool, err := pgxpool.New(ctx, server.URL()+"&pool_max_conns=20")
		require.NoError(t, err)
		t.Cleanup(pool.Close)
		_, err = pool.Exec(ctx, `DROP SCHEMA public CASCADE; CREATE SCHEMA public;
CREATE TABLE item (scope BYTEA NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (scope, name))`)
		require.NoError(t, err)
		fence, err := pgxfence.New(pool)
		require.NoError(t, err)
		require.NoError(t, fence.Migrate(ctx))
		put := func(ctx context.Context, tx pgx.Tx, scope, key, value string) error {
			_, err := tx.Exec(ctx, `INSERT INTO item VALUES ($1, $2, $3) ON CONFLICT (scope, name) DO UPDATE SET value = excluded.value`, []byte(scope), key, value)
			return err
		}
		reads := func(ctx context.Context, q interface {
			QueryRow(ctx context.Context, query string, args ...any) pgx.Row
		}, scope, key string,
		) (value string, found bool, err error) {
			err = q.QueryRow(ctx, "SELECT value FROM item WHERE scope = $1 AND name = $2", []byte(scope), key).Scan(&value)
			if errors.Is(err, pgx.ErrNoRows) {
				return "", false, nil
			}
			return value, err == nil, err
		}
		return fencetest.Resource{
			Write: func(ctx context.Context, token fencelock.Token, key, value string) error {
				return fence.Tx(ctx, token, func(tx pgx.Tx) error { return put(ctx, tx, token.Name(), key, value) })
			},
			Read: func(ctx context.Context, scope, key string) (string, bool, error) {
				return reads(ctx, pool, scope, key)
			},
			Update: func(ctx context.Context, token fencelock.Token, key string, f func(string, bool) (string, error)) error {
				return fence.Tx(ctx, token, func(tx pgx.Tx) error {
					old, found, err := reads(ctx, tx, token.Name(), key)
					if err != nil {
						return err
					}
					value, err := f(old, found)
					if err != nil {
						return err
					}
					return put(ctx, tx, token.Name(), key, value)
				})
			},
			Advance: fence.Advance,
			Delete: func(ctx context.Context, token fencelock.Token, key string) error {
				return fence.Tx(ctx, token, func(tx pgx.Tx) error {
					_, err := tx.Exec(ctx, "DELETE FROM item WHERE scope = $1 AND name = $2", []byte(token.Name()), key)
					return err
				})
			},
			Reopen: func() error {
				var err error
				fence, err = pgxfence.New(pool)
				return err
			},
		}
	})
}
