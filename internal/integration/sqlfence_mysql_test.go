package integration_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/integration/daemon"
	"github.com/fencelock/fencelock/sqlfence"
	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// mysqlConfig returns where db is, as a driver's configuration for root.
func mysqlConfig(t *testing.T, db fencedDB) *mysql.Config {
	t.Helper()
	config := mysql.NewConfig()
	config.User, config.Net = "root", "tcp"
	require.NoError(t, db.QueryRowContext(t.Context(), "SELECT DATABASE(), CONCAT('127.0.0.1:', @@port)").Scan(&config.DBName, &config.Addr))
	return config
}

func openMySQL(t *testing.T, db fencedDB, config *mysql.Config) fencedDB {
	t.Helper()
	connector, err := mysql.NewConnector(config)
	require.NoError(t, err)
	db.DB = sql.OpenDB(connector)
	t.Cleanup(func() { assert.NoError(t, db.Close()) })
	return db
}

// mysqlCommitRefused makes the server read-only inside of the callback, which then
// refuses the COMMIT. What was refused must not be committed by the next transaction on
// the connection. (MariaDB rolls it back. What MySQL does is not known here, so the
// outcome is called unknown.)
func mysqlCommitRefused(t *testing.T, db fencedDB) {
	ctx := t.Context()
	db.fence(t)
	config := mysqlConfig(t, db)
	for _, statement := range []string{
		"CREATE USER IF NOT EXISTS plain@'127.0.0.1'",
		"GRANT ALL ON " + config.DBName + ".* TO plain@'127.0.0.1'",
	} {
		_, err := db.ExecContext(ctx, statement)
		require.NoError(t, err)
	}
	config.User = "plain" // root may always write
	plain := openMySQL(t, db, config)
	plain.SetMaxOpenConns(1)
	fence := plain.unmigrated(t)
	token := sqlToken(t, "lock", 1, "h")

	t.Cleanup(func() {
		_, err := db.Exec("SET GLOBAL read_only = OFF")
		assert.NoError(t, err)
	})
	err := fence.Tx(ctx, token, func(tx *sql.Tx) error {
		if err := db.write(ctx, "x", 1)(tx); err != nil {
			return err
		}
		_, err := db.ExecContext(ctx, "SET GLOBAL read_only = ON")
		return err
	})
	require.ErrorContains(t, err, "read-only")
	require.ErrorIs(t, err, sqlfence.ErrUnknownOutcome)
	_, err = db.ExecContext(ctx, "SET GLOBAL read_only = OFF")
	require.NoError(t, err)

	require.NoError(t, fence.Advance(ctx, token))
	require.Zero(t, db.value(t, "x"), "the next transaction committed the refused one")
}

func mysqlConnectionKilled(t *testing.T, db fencedDB) {
	ctx := t.Context()
	fence := db.fence(t)
	token := sqlToken(t, "lock", 1, "h")
	err := fence.Tx(ctx, token, func(tx *sql.Tx) error {
		if err := db.write(ctx, "x", 1)(tx); err != nil {
			return err
		}
		var id int64
		if err := tx.QueryRowContext(ctx, "SELECT CONNECTION_ID()").Scan(&id); err != nil {
			return err
		}
		_, err := db.ExecContext(ctx, fmt.Sprintf("KILL %d", id))
		return err
	})
	require.Error(t, err)
	require.NotErrorIs(t, err, sqlfence.ErrUnknownOutcome, "nothing was committed before the commit")
	require.Zero(t, db.value(t, "x"))
	require.NoError(t, fence.Tx(ctx, token, db.write(ctx, "x", 2)))
}

// mysqlIdleConnectionsKilled is a restart of the server, or a firewall: none of the
// pool's connections is good any more, and none has been found out.
func mysqlIdleConnectionsKilled(t *testing.T, db fencedDB) {
	const idle = 20
	ctx := t.Context()
	db.fence(t)
	used := openMySQL(t, db, mysqlConfig(t, db))
	used.SetMaxIdleConns(idle)
	var (
		conns []*sql.Conn
		ids   []int64
	)
	for range idle {
		conn, err := used.Conn(ctx)
		require.NoError(t, err)
		var id int64
		require.NoError(t, conn.QueryRowContext(ctx, "SELECT CONNECTION_ID()").Scan(&id))
		conns, ids = append(conns, conn), append(ids, id)
	}
	for _, conn := range conns {
		require.NoError(t, conn.Close())
	}
	require.Equal(t, idle, used.Stats().Idle)
	for _, id := range ids {
		_, err := db.ExecContext(ctx, fmt.Sprintf("KILL %d", id))
		require.NoError(t, err)
	}
	fence, err := sqlfence.New(used.DB, sqlfence.MySQL)
	require.NoError(t, err)
	require.NoError(t, fence.Tx(ctx, sqlToken(t, "lock", 1, "h"), db.write(ctx, "x", 1)))
	require.EqualValues(t, 1, db.value(t, "x"))
}

// mysqlDeadlock has an unfenced transaction take what the callback has read in the
// other order. It has written more, so the callback's is the one that is undone.
func mysqlDeadlock(t *testing.T, db fencedDB) {
	ctx := t.Context()
	fence := db.fence(t)
	token := sqlToken(t, "lock", 1, "h")
	for _, id := range []string{"x", "y"} {
		require.NoError(t, fence.Tx(ctx, token, db.write(ctx, id, 1)))
	}
	other, err := db.BeginTx(ctx, nil)
	require.NoError(t, err)
	defer func() { _ = other.Rollback() }()
	for i := range 100 {
		require.NoError(t, db.write(ctx, fmt.Sprint("heavy ", i), 1)(other))
	}
	require.NoError(t, db.write(ctx, "y", 10)(other))

	runs := 0
	result := make(chan error, 1)
	require.NoError(t, fence.Tx(ctx, token, func(tx *sql.Tx) error {
		runs++
		if err := db.write(ctx, "x", 2)(tx); err != nil {
			return err
		}
		if runs == 1 {
			go func() {
				db.awaitBlocked(t) // the callback, for y
				result <- errors.Join(db.write(ctx, "x", 10)(other), other.Commit())
			}()
		}
		return db.write(ctx, "y", 2)(tx)
	}))
	require.NoError(t, <-result)
	require.Equal(t, 2, runs)
	require.EqualValues(t, 2, db.value(t, "x"))
	require.EqualValues(t, 2, db.value(t, "y"))
}

// mysqlTransactionEnds: what comes after the end is not fenced, and that must not go
// unnoticed.
func mysqlTransactionEnds(t *testing.T, db fencedDB) {
	ctx := t.Context()
	fence := db.fence(t)
	for i, end := range []string{"CREATE TABLE inside (id INT)", "ROLLBACK", "COMMIT", "START TRANSACTION"} {
		t.Run(end, func(t *testing.T) {
			runs := 0
			err := fence.Tx(ctx, sqlToken(t, "lock", int64(i)+1, "h"), func(tx *sql.Tx) error {
				runs++
				if _, err := tx.ExecContext(ctx, end); err != nil {
					return err
				}
				return db.write(ctx, "x", 1)(tx)
			})
			require.ErrorIs(t, err, sqlfence.ErrTransactionEnded)
			require.NotErrorIs(t, err, sqlfence.ErrUnknownOutcome)
			require.Equal(t, 1, runs)

			// With an error of the callback's it must not pass for rolled back; and one
			// after which it would run again must not have it applied twice.
			for _, failure := range []error{errors.New("the work failed"), errors.New("Error 1205 (HY000): Lock wait timeout exceeded")} {
				runs = 0
				err = fence.Tx(ctx, sqlToken(t, "lock", int64(i)+1, "h"), func(tx *sql.Tx) error {
					runs++
					if _, err := tx.ExecContext(ctx, end); err != nil && i > 0 {
						return err
					}
					return errors.Join(db.write(ctx, "x", 1)(tx), failure)
				})
				require.ErrorIs(t, err, sqlfence.ErrTransactionEnded)
				require.ErrorIs(t, err, failure)
				require.Equal(t, 1, runs)
			}
		})
	}
}

// mysqlEmptyIsNull: a mode in which an empty text is NULL, as in Oracle.
func mysqlEmptyIsNull(t *testing.T, db fencedDB) {
	config := mysqlConfig(t, db)
	config.Params = map[string]string{"sql_mode": "'EMPTY_STRING_IS_NULL'"}
	odd := openMySQL(t, db, config)
	fence := odd.fence(t)
	require.NoError(t, fence.Advance(t.Context(), sqlToken(t, "lock", 1, "h")))
	own := odd.unmigrated(t, sqlfence.WithTable(config.DBName+".fencelock_marks"))
	requireMark(t, own, sqlToken(t, "lock", 1, "h"))
}

// mysqlSnapshotIsolation is a setting of MariaDB, on by default in later versions,
// with which a transaction is refused what changed since it began to read.
func mysqlSnapshotIsolation(t *testing.T, db fencedDB) {
	ctx := t.Context()
	db.fence(t)
	config := mysqlConfig(t, db)
	config.Params = map[string]string{"innodb_snapshot_isolation": "ON"}
	strict := openMySQL(t, db, config)
	if err := strict.PingContext(ctx); err != nil {
		require.ErrorContains(t, err, "Unknown system variable")
		daemon.Missing(t, err)
	}
	fence := strict.unmigrated(t, sqlfence.WithTxOptions(&sql.TxOptions{Isolation: sql.LevelRepeatableRead}))
	requireRunsAgain(t, db, fence)

	// A transaction of the caller that has read before Check is refused too.
	tx, err := strict.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
	require.NoError(t, err)
	_, err = db.read(ctx, tx, "x")
	require.NoError(t, err)
	require.NoError(t, fence.Advance(ctx, sqlToken(t, "lock", 1, "h")))
	require.ErrorContains(t, fence.Check(ctx, tx, sqlToken(t, "lock", 2, "h")), "1020")
	require.NoError(t, tx.Rollback())
}

// mysqlFirstWriterRollsBack leaves several waiting for a row that then is not there,
// which InnoDB can end with a deadlock for some of them.
func mysqlFirstWriterRollsBack(t *testing.T, db fencedDB) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	fence := db.fence(t)
	var wg sync.WaitGroup
	failure := errors.New("the work failed")
	err := fence.Tx(ctx, sqlToken(t, "lock", 1, "h"), func(*sql.Tx) error {
		for i := range 8 {
			wg.Go(func() {
				assert.NoError(t, fence.Tx(ctx, sqlToken(t, "lock", 2, "h"), db.write(ctx, fmt.Sprint(i), 1)))
			})
		}
		db.awaitBlocked(t)
		return failure
	})
	require.Equal(t, failure, err)
	wg.Wait()
	for i := range 8 {
		require.EqualValues(t, 1, db.value(t, fmt.Sprint(i)))
	}
}
