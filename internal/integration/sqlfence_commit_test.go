package integration_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"io"
	"log"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/sqlfence"
	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// awaitLockWait returns when a transaction waits for a lock, which query tells:
// nothing does but asking.
func awaitLockWait(t *testing.T, db *sql.DB, query string) {
	assert.Eventually(t, func() bool {
		var waiting bool
		err := db.QueryRowContext(t.Context(), query).Scan(&waiting)
		return assert.NoError(t, err) && waiting
	}, 10*time.Second, time.Millisecond, "nobody waits for a lock")
}

// commitFault spoils the next COMMIT of a connection. It wraps
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

// open returns another handle of db, whose connections have the fault.
func (f *commitFault) open(t *testing.T, db fencedDB) *sql.DB {
	t.Helper()
	var faulty *sql.DB
	if db.dialect == sqlfence.MySQL {
		faulty = f.openMySQL(t, db)
	} else {
		faulty = f.openPostgres(t, db)
	}
	t.Cleanup(func() { assert.NoError(t, faulty.Close()) })
	return faulty
}

func (f *commitFault) openPostgres(t *testing.T, db fencedDB) *sql.DB {
	t.Helper()
	var schema, url string
	require.NoError(t, db.QueryRowContext(t.Context(), "SELECT current_schema()").Scan(&schema))
	require.NoError(t, db.QueryRowContext(t.Context(),
		"SELECT 'postgres://pgtest@127.0.0.1:' || inet_server_port() || '/postgres?sslmode=disable'").Scan(&url))
	config, err := pgx.ParseConfig(url + "&search_path=" + schema)
	require.NoError(t, err)
	dial := config.DialFunc
	config.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		return f.wrap(dial(ctx, network, addr))
	}
	return stdlib.OpenDB(*config)
}

func (f *commitFault) openMySQL(t *testing.T, db fencedDB) *sql.DB {
	t.Helper()
	config := mysqlConfig(t, db)
	config.Logger = log.New(io.Discard, "", 0) // it would tell of the fault
	config.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		return f.wrap(new(net.Dialer).DialContext(ctx, network, addr))
	}
	connector, err := mysql.NewConnector(config)
	require.NoError(t, err)
	return sql.OpenDB(connector)
}

func (f *commitFault) wrap(conn net.Conn, err error) (net.Conn, error) {
	if err != nil {
		return nil, err
	}
	return &faultyConn{Conn: conn, fault: f}, nil
}

type faultyConn struct {
	net.Conn
	fault *commitFault
	hit   atomic.Bool // the reply to come is that of the spoiled commit
}

func (c *faultyConn) Write(p []byte) (int, error) {
	if !bytes.Contains(bytes.ToLower(p), []byte("commit")) || !c.fault.armed.CompareAndSwap(true, false) {
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

func sqlCommitReplyLost(t *testing.T, db fencedDB) {
	sqlCommitFault(t, db, &commitFault{kind: loseReply}, 1)
}

func sqlCommitRequestLost(t *testing.T, db fencedDB) {
	sqlCommitFault(t, db, &commitFault{kind: loseRequest}, 0)
}

func sqlCommitFault(t *testing.T, db fencedDB, fault *commitFault, applied int64) {
	ctx := t.Context()
	db.fence(t)
	fence, err := sqlfence.New(fault.open(t, db), db.dialect)
	require.NoError(t, err)
	token := sqlToken(t, "lock", 1, "h")

	runs := 0
	fault.armed.Store(true)
	err = fence.Tx(ctx, token, func(tx *sql.Tx) error {
		runs++
		return db.write(ctx, "x", 1)(tx)
	})
	require.ErrorIs(t, err, sqlfence.ErrUnknownOutcome)
	require.NotErrorIs(t, err, fencelock.ErrStale)
	require.Equal(t, 1, runs, "an effect that may be applied is not applied again unasked")
	require.Equal(t, applied, db.value(t, "x"))

	require.NoError(t, fence.Tx(ctx, token, db.write(ctx, "x", 2)), "the same token passes, applied or not")
	require.EqualValues(t, 2, db.value(t, "x"))
}

func sqlCommitReplyStalled(t *testing.T, db fencedDB) {
	db.fence(t)
	fault := &commitFault{kind: stallReply, stalled: make(chan struct{})}
	fence, err := sqlfence.New(fault.open(t, db), db.dialect)
	require.NoError(t, err)

	lost := errors.New("the lock was lost")
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		<-fault.stalled
		cancel(lost)
	}()
	fault.armed.Store(true)
	err = fence.Tx(ctx, sqlToken(t, "lock", 1, "h"), db.write(ctx, "x", 1))
	require.ErrorIs(t, err, sqlfence.ErrUnknownOutcome)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, lost)
	require.EqualValues(t, 1, db.value(t, "x"))
}
