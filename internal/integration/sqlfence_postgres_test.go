package integration_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/sqlfence"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// awaitPostgresLock returns when a backend waits for a lock: nothing tells but
// asking.
func awaitPostgresLock(t *testing.T, db *sql.DB) {
	assert.Eventually(t, func() bool {
		var waiting bool
		err := db.QueryRowContext(t.Context(),
			"SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock')").Scan(&waiting)
		return assert.NoError(t, err) && waiting
	}, 10*time.Second, time.Millisecond, "nobody waits for a lock")
}

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
				seen, err = read(ctx, tx, "x")
				return err
			})
		}()
		db.awaitBlocked(t)
		return write(ctx, "x", 2)(tx)
	}))
	require.NoError(t, <-result)
	require.Zero(t, seen, "the snapshot is older than the commit that was waited for")
	require.EqualValues(t, 2, db.value(t, "x"))
}

// postgresRunsAgain has an unfenced writer change what the callback has read.
func postgresRunsAgain(t *testing.T, db fencedDB) {
	ctx := t.Context()
	fence := db.fence(t, sqlfence.WithTxOptions(&sql.TxOptions{Isolation: sql.LevelRepeatableRead}))
	token := sqlToken(t, "lock", 1, "h")
	require.NoError(t, fence.Tx(ctx, token, write(ctx, "x", 1)))

	var seen []int64
	require.NoError(t, fence.Tx(ctx, token, func(tx *sql.Tx) error {
		v, err := read(ctx, tx, "x")
		if err != nil {
			return err
		}
		seen = append(seen, v)
		if len(seen) == 1 {
			if _, err := db.ExecContext(ctx, "UPDATE data SET value = 10 WHERE id = 'x'"); err != nil {
				return err
			}
		}
		return write(ctx, "x", v+1)(tx)
	}))
	require.Equal(t, []int64{1, 10}, seen)
	require.EqualValues(t, 11, db.value(t, "x"))
}

// commitFault spoils the next COMMIT of a connection to PostgreSQL. It wraps
// the real connection, so both ends see what a broken network shows them.
type commitFault struct {
	kind  faultKind
	armed atomic.Bool
	// stalled is closed when the reply has come and is kept back.
	stalled chan struct{}
}

type faultKind int

const (
	loseReply   faultKind = iota // and the connection breaks
	loseRequest                  // and the connection breaks
	stallReply                   // for ever, on a connection that looks alive
)

func (f *commitFault) open(t *testing.T, db fencedDB) *sql.DB {
	t.Helper()
	var (
		schema string
		url    string
	)
	require.NoError(t, db.QueryRowContext(t.Context(), "SELECT current_schema()").Scan(&schema))
	require.NoError(t, db.QueryRowContext(t.Context(),
		"SELECT 'postgres://pgtest@127.0.0.1:' || inet_server_port() || '/postgres?sslmode=disable'").Scan(&url))
	config, err := pgx.ParseConfig(url + "&search_path=" + schema)
	require.NoError(t, err)
	dial := config.DialFunc
	config.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &faultyConn{Conn: conn, fault: f}, nil
	}
	faulty := stdlib.OpenDB(*config)
	t.Cleanup(func() { assert.NoError(t, faulty.Close()) })
	return faulty
}

type faultyConn struct {
	net.Conn
	fault *commitFault
	hit   atomic.Bool // the reply to come is that of the spoiled commit
}

func (c *faultyConn) Write(p []byte) (int, error) {
	if !bytes.Contains(p, []byte("commit")) || !c.fault.armed.CompareAndSwap(true, false) {
		return c.Conn.Write(p)
	}
	if c.fault.kind == loseRequest {
		return len(p), c.Close()
	}
	c.hit.Store(true)
	return c.Conn.Write(p)
}

func (c *faultyConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil || !c.hit.Load() {
		return n, err
	}
	if c.fault.kind == loseReply {
		return 0, errors.Join(io.ErrUnexpectedEOF, c.Close())
	}
	close(c.fault.stalled)
	return c.Conn.Read(p) // the server has nothing more to say
}

func postgresCommitReplyLost(t *testing.T, db fencedDB) {
	postgresCommitFault(t, db, &commitFault{kind: loseReply}, 1)
}

func postgresCommitRequestLost(t *testing.T, db fencedDB) {
	postgresCommitFault(t, db, &commitFault{kind: loseRequest}, 0)
}

func postgresCommitFault(t *testing.T, db fencedDB, fault *commitFault, applied int64) {
	ctx := t.Context()
	db.fence(t)
	fence, err := sqlfence.New(fault.open(t, db), sqlfence.PostgreSQL)
	require.NoError(t, err)
	token := sqlToken(t, "lock", 1, "h")

	runs := 0
	fault.armed.Store(true)
	err = fence.Tx(ctx, token, func(tx *sql.Tx) error {
		runs++
		return write(ctx, "x", 1)(tx)
	})
	require.ErrorIs(t, err, sqlfence.ErrUnknownOutcome)
	require.NotErrorIs(t, err, fencelock.ErrStale)
	require.Equal(t, 1, runs, "an effect that may be applied is not applied again unasked")
	require.Equal(t, applied, db.value(t, "x"))

	require.NoError(t, fence.Tx(ctx, token, write(ctx, "x", 2)), "the same token passes, applied or not")
	require.EqualValues(t, 2, db.value(t, "x"))
}

func postgresCommitReplyStalled(t *testing.T, db fencedDB) {
	db.fence(t)
	fault := &commitFault{kind: stallReply, stalled: make(chan struct{})}
	fence, err := sqlfence.New(fault.open(t, db), sqlfence.PostgreSQL)
	require.NoError(t, err)

	lost := errors.New("the lock was lost")
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		<-fault.stalled
		cancel(lost)
	}()
	fault.armed.Store(true)
	err = fence.Tx(ctx, sqlToken(t, "lock", 1, "h"), write(ctx, "x", 1))
	require.ErrorIs(t, err, sqlfence.ErrUnknownOutcome)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, lost)
	require.EqualValues(t, 1, db.value(t, "x"))
}

func postgresConnectionKilled(t *testing.T, db fencedDB) {
	ctx := t.Context()
	fence := db.fence(t)
	token := sqlToken(t, "lock", 1, "h")
	err := fence.Tx(ctx, token, func(tx *sql.Tx) error {
		if err := write(ctx, "x", 1)(tx); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, "SELECT pg_terminate_backend(pg_backend_pid())")
		return err
	})
	require.ErrorContains(t, err, "57P01")
	require.NotErrorIs(t, err, sqlfence.ErrUnknownOutcome, "nothing was committed before the commit")
	require.Zero(t, db.value(t, "x"))
	require.NoError(t, fence.Tx(ctx, token, write(ctx, "x", 2)))
}

func postgresSwallowedFailure(t *testing.T, db fencedDB) {
	ctx := t.Context()
	fence := db.fence(t)
	err := fence.Tx(ctx, sqlToken(t, "lock", 1, "h"), func(tx *sql.Tx) error {
		if err := write(ctx, "x", 1)(tx); err != nil {
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
		if err := write(ctx, "x", 1)(tx); err != nil {
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
