package integration_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/integration/mytest"
	"github.com/fencelock/fencelock/internal/integration/pgtest"
	"github.com/fencelock/fencelock/sqlfence"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"
)

// fencedDB is an empty database of one kind, with a table of data to protect.
type fencedDB struct {
	*sql.DB
	dialect sqlfence.Dialect
	// levels are the isolation levels that its driver can set.
	levels []sql.IsolationLevel
	// awaitBlocked returns when some transaction waits for another, if the
	// database can tell. SQLite cannot; there the waiting one may not yet have
	// begun, which must make no difference.
	awaitBlocked func(t *testing.T)
}

// fence returns a fence whose table of marks exists.
func (db fencedDB) fence(t *testing.T, opts ...sqlfence.Option) *sqlfence.Fence {
	t.Helper()
	fence := db.unmigrated(t, opts...)
	require.NoError(t, fence.Migrate(t.Context()))
	return fence
}

func (db fencedDB) unmigrated(t *testing.T, opts ...sqlfence.Option) *sqlfence.Fence {
	t.Helper()
	fence, err := sqlfence.New(db.DB, db.dialect, opts...)
	require.NoError(t, err)
	return fence
}

// value returns the protected value of id, 0 if there is none.
func (db fencedDB) value(t *testing.T, id string) int64 {
	t.Helper()
	v, err := db.read(t.Context(), db.DB, id)
	require.NoError(t, err)
	return v
}

// sql returns a statement with the placeholders of the database.
func (db fencedDB) sql(statement string) string {
	if db.dialect == sqlfence.MySQL {
		return placeholder.ReplaceAllString(statement, "?")
	}
	return statement
}

var placeholder = regexp.MustCompile(`\$\d`)

func (db fencedDB) read(ctx context.Context, q interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}, id string,
) (v int64, err error) {
	err = q.QueryRowContext(ctx, db.sql("SELECT coalesce(max(value), 0) FROM data WHERE id = $1"), id).Scan(&v)
	return v, err
}

// write returns a callback that sets the protected value of id.
func (db fencedDB) write(ctx context.Context, id string, value int64) func(*sql.Tx) error {
	conflict := "ON CONFLICT (id) DO UPDATE SET value = excluded.value"
	if db.dialect == sqlfence.MySQL {
		conflict = "ON DUPLICATE KEY UPDATE value = VALUES(value)"
	}
	return func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, db.sql("INSERT INTO data (id, value) VALUES ($1, $2) "+conflict), id, value)
		return err
	}
}

// neverRun is a callback for a call that must fail before it.
func neverRun(t *testing.T) func(*sql.Tx) error {
	return func(*sql.Tx) error {
		t.Error("the callback ran")
		return nil
	}
}

func sqlToken(t *testing.T, name string, revision int64, holder string) fencelock.Token {
	t.Helper()
	token, err := fencelock.ParseToken(name, fmt.Sprintf("%d.%s", revision, holder))
	require.NoError(t, err)
	return token
}

func requireStale(t *testing.T, err error, presented, highest fencelock.Token) {
	t.Helper()
	var stale *fencelock.StaleError
	require.ErrorAs(t, err, &stale)
	require.ErrorIs(t, err, fencelock.ErrStale)
	require.NotErrorIs(t, err, sqlfence.ErrUnknownOutcome)
	require.Equal(t, presented.Name(), stale.Scope)
	require.True(t, stale.Presented.Equal(presented), "presented: %v", stale.Presented)
	require.True(t, stale.Highest.Equal(highest), "highest: %v", stale.Highest)
}

func requireMark(t *testing.T, fence *sqlfence.Fence, want fencelock.Token) {
	t.Helper()
	got, err := fence.Highest(t.Context(), want.Name())
	require.NoError(t, err)
	require.True(t, got.Equal(want), "mark of %q: %v, want %v", want.Name(), got, want)
}

func TestSQLFencePostgreSQL(t *testing.T) {
	server := pgtest.Start(t)
	runSQLFence(t, func(t *testing.T) fencedDB { return postgresDB(t, server) }, []sqlFenceCase{
		{"a row lock is not enough", postgresRowLockIsNotEnough},
		{"serialization failure inside runs the callback again", postgresRunsAgain},
		{"commit whose reply is lost", sqlCommitReplyLost},
		{"commit whose request is lost", sqlCommitRequestLost},
		{"context that ends while the commit is under way", sqlCommitReplyStalled},
		{"connection killed inside", postgresConnectionKilled},
		{"swallowed failure of a statement", postgresSwallowedFailure},
		{"constraint that fails at the commit", postgresDeferredConstraint},
		{"table that hides its rows", postgresHiddenMark},
		{"table in a schema", postgresSchema},
		{"table that changes its rows", postgresChangedMark},
		{"table whose holders have a collation", postgresHolderCollation},
		{"temporary table of the same name", postgresTemporary},
		{"a trigger for the path somebody forgot", postgresTrigger},
	})
}

func TestSQLFenceSQLite(t *testing.T) {
	for mode, params := range sqliteModes {
		t.Run(mode, func(t *testing.T) {
			runSQLFence(t, func(t *testing.T) fencedDB { return sqliteDB(t, params) }, []sqlFenceCase{
				{"a write lock held by others", sqliteWaitsForTheWriteLock},
				{"constraint that fails at the commit", sqliteDeferredConstraint},
				{"transaction that ends under the callback", sqliteTransactionEnds},
				{"temporary table of the same name", sqliteShadowed},
				{"table whose holders have a collation", sqliteHolderCollation},
			})
		})
	}
}

// TestSQLFenceMySQL runs on MariaDB, in both ways a driver can count rows, and with
// both ways to send arguments: none may make a difference.
func TestSQLFenceMySQL(t *testing.T) {
	server := mytest.Start(t)
	for mode, params := range map[string]string{
		"rows changed":                   "",
		"rows found, arguments in texts": "clientFoundRows=true&interpolateParams=true",
	} {
		t.Run(mode, func(t *testing.T) {
			runSQLFence(t, func(t *testing.T) fencedDB { return mysqlDB(t, server, params) }, []sqlFenceCase{
				{"commit whose reply is lost", sqlCommitReplyLost},
				{"commit whose request is lost", sqlCommitRequestLost},
				{"context that ends while the commit is under way", sqlCommitReplyStalled},
				{"commit that is refused", mysqlCommitRefused},
				{"connection killed inside", mysqlConnectionKilled},
				{"connections that broke while idle", mysqlIdleConnectionsKilled},
				{"a deadlock inside runs the callback again", mysqlDeadlock},
				{"transaction that ends under the callback", mysqlTransactionEnds},
				{"snapshot isolation", mysqlSnapshotIsolation},
				{"empty texts that are NULL", mysqlEmptyIsNull},
				{"first writer that rolls back", mysqlFirstWriterRollsBack},
			})
		})
	}
}

type sqlFenceCase struct {
	name string
	run  func(t *testing.T, db fencedDB)
}

// runSQLFence runs what is true of every database, and then what is not.
func runSQLFence(t *testing.T, open func(t *testing.T) fencedDB, more []sqlFenceCase) {
	for _, c := range append([]sqlFenceCase{
		{"stale is refused", sqlFenceStale},
		{"equal passes for the same holder only", sqlFenceEqual},
		{"zero token", sqlFenceZeroToken},
		{"advance refuses what is older", sqlFenceAdvance},
		{"deleting the data keeps the mark", sqlFenceDelete},
		{"first writers at once", sqlFenceFirstWriters},
		{"successor reads what its predecessor committed", sqlFenceReadsPredecessor},
		{"exact to the last bit", sqlFenceEdges},
		{"any name is a scope of its own", sqlFenceNames},
		{"writers with shuffled tokens", sqlFenceShuffled},
		{"the callback's error undoes the mark", sqlFenceError},
		{"panic and Goexit roll back", sqlFencePanic},
		{"context that ends", sqlFenceContext},
		{"callback that ends the transaction", sqlFenceEndedByCallback},
		{"closed database", sqlFenceClosed},
		{"missing table", sqlFenceMissingTable},
		{"migrations at once", sqlFenceMigrate},
		{"table with a reserved name", sqlFenceTable},
		{"damaged mark", sqlFenceDamaged},
		{"hooks", sqlFenceHooks},
		{"arguments", sqlFenceArguments},
		{"check in the caller's transaction", sqlFenceCheck},
		{"bound to one lock", sqlFenceScope},
		{"tables that cannot hold marks", sqlFenceBadTables},
		{"a token kept in the row", sqlFenceRow},
		{"a check by SELECT is not enough", sqlFenceSelectIsNotEnough},
	}, more...) {
		t.Run(c.name, func(t *testing.T) {
			db := open(t)
			c.run(t, db)
			// Every transaction has ended; one that a context ended is being
			// rolled back by database/sql in the background.
			require.Eventually(t, func() bool { return db.Stats().InUse == 0 }, 5*time.Second, time.Millisecond)
		})
	}
}

var serverLevels = []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable}

// postgresDB returns a schema of its own on the server.
func postgresDB(t *testing.T, server *pgtest.Server) fencedDB {
	t.Helper()
	schema := fmt.Sprintf("case_%x", rand.Uint64())
	return openSQL(t, fencedDB{dialect: sqlfence.PostgreSQL, levels: serverLevels},
		"pgx", server.URL()+"&search_path="+schema, "CREATE SCHEMA "+schema)
}

// mysqlDB returns a database of its own on the server.
func mysqlDB(t *testing.T, server *mytest.Server, params string) fencedDB {
	t.Helper()
	name := fmt.Sprintf("case_%x", rand.Uint64())
	root, err := sql.Open("mysql", "root@tcp("+server.Addr()+")/")
	require.NoError(t, err)
	defer root.Close()
	_, err = root.ExecContext(t.Context(), "CREATE DATABASE "+name)
	require.NoError(t, err)
	return openSQL(t, fencedDB{dialect: sqlfence.MySQL, levels: serverLevels},
		"mysql", "root@tcp("+server.Addr()+")/"+name+"?"+params)
}

func openSQL(t *testing.T, db fencedDB, driver, dsn string, before ...string) fencedDB {
	t.Helper()
	var err error
	db.DB, err = sql.Open(driver, dsn)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, db.Close()) })
	for _, statement := range append(before, "CREATE TABLE data (id VARCHAR(100) PRIMARY KEY, value BIGINT NOT NULL)") {
		_, err = db.ExecContext(t.Context(), statement)
		require.NoError(t, err)
	}
	db.awaitBlocked = func(t *testing.T) {
		switch db.dialect {
		case sqlfence.PostgreSQL:
			awaitLockWait(t, db.DB, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock')")
		case sqlfence.MySQL:
			// Not innodb_trx: what that shows is kept while it is asked for often.
			awaitLockWait(t, db.DB, "SELECT variable_value > 0 FROM information_schema.global_status WHERE variable_name = 'INNODB_ROW_LOCK_CURRENT_WAITS'")
		}
	}
	return db
}

func sqlFenceStale(t *testing.T, db fencedDB) {
	ctx := t.Context()
	fence := db.fence(t)
	older, newer := sqlToken(t, "lock", 4, "old"), sqlToken(t, "lock", 5, "new")

	requireMarkless(t, fence, "lock")
	require.NoError(t, fence.Tx(ctx, older, db.write(ctx, "x", 1)))
	require.NoError(t, fence.Tx(ctx, newer, db.write(ctx, "x", 2)))
	requireStale(t, fence.Tx(ctx, older, neverRun(t)), older, newer)
	requireStale(t, fence.Advance(ctx, older), older, newer)
	require.EqualValues(t, 2, db.value(t, "x"))
	requireMark(t, fence, newer)

	// The mark is the database's, not the Fence's.
	requireStale(t, db.unmigrated(t).Tx(ctx, older, neverRun(t)), older, newer)
}

func requireMarkless(t *testing.T, fence *sqlfence.Fence, name string) {
	t.Helper()
	none, err := fence.Highest(t.Context(), name)
	require.NoError(t, err)
	require.True(t, none.IsZero(), "mark of %q: %v", name, none)
}

func sqlFenceEqual(t *testing.T, db fencedDB) {
	ctx := t.Context()
	fence := db.fence(t)
	one, other := sqlToken(t, "lock", 7, "a"), sqlToken(t, "lock", 7, "b")

	for value := range int64(3) {
		require.NoError(t, fence.Tx(ctx, one, db.write(ctx, "x", value)))
		require.EqualValues(t, value, db.value(t, "x"))
	}
	requireStale(t, fence.Tx(ctx, other, neverRun(t)), other, one)
	// A holder id that differs in case is another holder.
	upper := sqlToken(t, "lock", 7, "A")
	requireStale(t, fence.Tx(ctx, upper, neverRun(t)), upper, one)
	requireMark(t, fence, one)
}

func sqlFenceZeroToken(t *testing.T, db fencedDB) {
	var rejected []fencelock.TokenRejectedInfo
	// No table, so a request would be another error.
	fence := db.unmigrated(t, sqlfence.WithHooks(fencelock.Hooks{
		TokenRejected: func(info fencelock.TokenRejectedInfo) { rejected = append(rejected, info) },
	}))
	require.ErrorIs(t, fence.Tx(t.Context(), fencelock.Token{}, neverRun(t)), fencelock.ErrNoToken)
	require.ErrorIs(t, fence.Advance(t.Context(), fencelock.Token{}), fencelock.ErrNoToken)
	require.Len(t, rejected, 2)
	require.True(t, rejected[0].Token.IsZero())
	require.ErrorIs(t, rejected[0].Err, fencelock.ErrNoToken)
}

func sqlFenceAdvance(t *testing.T, db fencedDB) {
	ctx := t.Context()
	fence := db.fence(t)
	older, newer := sqlToken(t, "lock", 10, "old"), sqlToken(t, "lock", 11, "new")

	require.NoError(t, fence.Tx(ctx, older, db.write(ctx, "x", 1)))
	require.NoError(t, fence.Advance(ctx, newer))
	require.NoError(t, fence.Advance(ctx, newer))
	requireStale(t, fence.Tx(ctx, older, neverRun(t)), older, newer)
	require.EqualValues(t, 1, db.value(t, "x"))
	require.NoError(t, fence.Tx(ctx, newer, db.write(ctx, "x", 2)))
}

func sqlFenceDelete(t *testing.T, db fencedDB) {
	ctx := t.Context()
	fence := db.fence(t)
	older, newer := sqlToken(t, "lock", 1, "old"), sqlToken(t, "lock", 2, "new")

	require.NoError(t, fence.Tx(ctx, older, db.write(ctx, "x", 1)))
	require.NoError(t, fence.Tx(ctx, newer, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "DELETE FROM data WHERE id = 'x'")
		return err
	}))
	// A mark in the row itself would be gone, and the row come back.
	requireStale(t, fence.Tx(ctx, older, db.write(ctx, "x", 3)), older, newer)
	require.Zero(t, db.value(t, "x"))
}

// sqlFenceFirstWriters lets a second writer come while the first, whose mark is
// not yet committed, is inside.
func sqlFenceFirstWriters(t *testing.T, db fencedDB) {
	ctx := t.Context()
	fence := db.fence(t)
	for _, second := range []int64{1, 3} {
		name := fmt.Sprintf("second is %d", second)
		first, second := sqlToken(t, name, 2, "first"), sqlToken(t, name, second, "second")

		result := make(chan error, 1)
		var seen int64
		require.NoError(t, fence.Tx(ctx, first, func(tx *sql.Tx) error {
			go func() {
				result <- fence.Tx(ctx, second, func(tx *sql.Tx) (err error) {
					if seen, err = db.read(ctx, tx, name); err != nil {
						return err
					}
					return db.write(ctx, name, 3)(tx)
				})
			}()
			db.awaitBlocked(t)
			return db.write(ctx, name, 2)(tx)
		}))
		err := <-result
		if second.Compare(first) < 0 {
			requireStale(t, err, second, first)
			require.EqualValues(t, 2, db.value(t, name))
			continue
		}
		require.NoError(t, err)
		require.EqualValues(t, 2, seen, "the second did not read what the first wrote")
		require.EqualValues(t, 3, db.value(t, name))
		requireMark(t, fence, second)
	}
}

// sqlFenceReadsPredecessor lets two transactions of one holder meet, where the
// token is equal and only the new version of the mark's row keeps the second
// from reading a snapshot older than the first's commit.
func sqlFenceReadsPredecessor(t *testing.T, db fencedDB) {
	for _, level := range db.levels {
		for _, revision := range []int64{2, 3} {
			name := fmt.Sprintf("%v, second is %d", level, revision)
			t.Run(name, func(t *testing.T) {
				ctx := t.Context()
				fence := db.fence(t, sqlfence.WithTxOptions(&sql.TxOptions{Isolation: level}))
				first, second := sqlToken(t, name, 2, "h"), sqlToken(t, name, revision, "h")
				require.NoError(t, fence.Advance(ctx, first))
				require.NoError(t, fence.Tx(ctx, first, db.write(ctx, name, 1)))

				result := make(chan error, 1)
				var seen []int64
				require.NoError(t, fence.Tx(ctx, first, func(tx *sql.Tx) error {
					go func() {
						result <- fence.Tx(ctx, second, func(tx *sql.Tx) error {
							v, err := db.read(ctx, tx, name)
							seen = append(seen, v)
							return err
						})
					}()
					db.awaitBlocked(t)
					return db.write(ctx, name, 2)(tx)
				}))
				require.NoError(t, <-result)
				require.Equal(t, []int64{2}, seen, "what each run of the second read")
			})
		}
	}
}

func sqlFenceEdges(t *testing.T, db fencedDB) {
	ctx := t.Context()
	fence := db.fence(t)
	var last fencelock.Token
	for _, revision := range []int64{
		1, 9, 10, // as texts they would be out of order
		math.MaxInt32, math.MaxInt32 + 1, math.MaxUint32, math.MaxUint32 + 1,
		1<<53 - 1, 1 << 53, 1<<53 + 1, // a float64 confuses the last two
		math.MaxInt64 - 1, math.MaxInt64,
	} {
		token := sqlToken(t, "lock", revision, "h")
		require.NoError(t, fence.Tx(ctx, token, db.write(ctx, "x", revision)))
		requireMark(t, fence, token)
		require.Equal(t, revision, db.value(t, "x"))
		if !last.IsZero() {
			requireStale(t, fence.Tx(ctx, last, neverRun(t)), last, token)
		}
		last = token
	}
}

func sqlFenceNames(t *testing.T, db fencedDB) {
	ctx := t.Context()
	fence := db.fence(t)
	random := make([]byte, 1024) // no compression makes an index entry of it fit
	rng := rand.NewChaCha8([32]byte{1})
	_, _ = rng.Read(random)
	names := []string{
		"a", "A", "a ", " a", "a/b", "a%2Fb", "a%2fb", `a\b`, `\x61`, `a\000`, "%", "%25", "'", `"`, "$1", "?",
		"\x00", "a\x00", "a\x00b", "a%00b", "\xff", "\xfe", "%FF", "\xc3\x28", "é", "e\u0301", "ß", "ss", "database is locked",
		string(random), strings.Repeat("\x00", 1024), strings.Repeat("\x00", 1023),
	}
	for i, name := range names {
		require.NoError(t, fence.Tx(ctx, sqlToken(t, name, int64(i)+1, "h"), db.write(ctx, fmt.Sprint(i), 1)), "%q", name)
	}
	for i, name := range names {
		mark := sqlToken(t, name, int64(i)+1, "h")
		requireMark(t, fence, mark)
		other := sqlToken(t, name, int64(i)+1, "other")
		requireStale(t, fence.Advance(ctx, other), other, mark)
	}
	for _, bad := range []string{"", strings.Repeat("x", 1025)} {
		_, err := fence.Highest(ctx, bad)
		require.ErrorIs(t, err, fencelock.ErrInvalidName)
	}
}

// sqlFenceShuffled checks a history: what the transactions that passed wrote,
// in the order of their commits. Each reads before it writes, so a stale read
// would show as a number given twice.
func sqlFenceShuffled(t *testing.T, db fencedDB) {
	for _, level := range db.levels {
		t.Run(level.String(), func(t *testing.T) {
			sqlFenceHistory(t, db, fmt.Sprintf("history_%d", level), &sql.TxOptions{Isolation: level})
		})
	}
}

func sqlFenceHistory(t *testing.T, db fencedDB, table string, opts *sql.TxOptions) {
	const writers, revisions = 100, 50
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	fence := db.fence(t, sqlfence.WithTxOptions(opts))
	_, err := db.ExecContext(ctx, "CREATE TABLE "+table+" (n BIGINT PRIMARY KEY, token VARCHAR(40))")
	require.NoError(t, err)

	// Every revision twice, of two holders: as after a restore of etcd.
	var tokens []fencelock.Token
	for revision := range int64(revisions) {
		tokens = append(tokens, sqlToken(t, table, revision+1, "a"), sqlToken(t, table, revision+1, "b"))
	}
	rand.Shuffle(len(tokens), func(i, j int) { tokens[i], tokens[j] = tokens[j], tokens[i] })

	work := make(chan fencelock.Token)
	var (
		wg     sync.WaitGroup
		mu     sync.Mutex
		passed []string
	)
	for range writers {
		wg.Go(func() {
			for token := range work {
				err := fence.Tx(ctx, token, func(tx *sql.Tx) error {
					var n int64
					if err := tx.QueryRowContext(ctx, "SELECT coalesce(max(n), 0) FROM "+table).Scan(&n); err != nil {
						return err
					}
					_, err := tx.ExecContext(ctx, db.sql("INSERT INTO "+table+" (n, token) VALUES ($1, $2)"), n+1, token.String())
					return err
				})
				var stale *fencelock.StaleError
				switch {
				case err == nil:
					mu.Lock()
					passed = append(passed, token.String())
					mu.Unlock()
				case assert.ErrorAs(t, err, &stale):
					assert.GreaterOrEqual(t, stale.Highest.Compare(token), 0)
					assert.False(t, stale.Highest.Equal(token))
				}
			}
		})
	}
	for _, token := range tokens {
		work <- token
	}
	close(work)
	wg.Wait()

	var history []string
	rows, err := db.QueryContext(ctx, "SELECT token FROM "+table+" ORDER BY n")
	require.NoError(t, err)
	defer rows.Close()
	var last fencelock.Token
	for rows.Next() {
		var text string
		require.NoError(t, rows.Scan(&text))
		token, err := fencelock.ParseToken(table, text)
		require.NoError(t, err)
		require.Positive(t, token.Compare(last), "%v was applied after %v", token, last)
		last, history = token, append(history, text)
	}
	require.NoError(t, rows.Err())
	slices.Sort(history)
	slices.Sort(passed)
	require.Equal(t, passed, history, "what was acknowledged is what was applied")
	require.EqualValues(t, revisions, last.Revision(), "one of the two highest passes, whenever it comes")
}

// requireRunsAgain has an unfenced writer change what the callback has read, and the
// database refuse the transaction for it: the callback runs again, and reads again.
func requireRunsAgain(t *testing.T, db fencedDB, fence *sqlfence.Fence) {
	t.Helper()
	ctx := t.Context()
	token := sqlToken(t, "lock", 1, "h")
	require.NoError(t, fence.Tx(ctx, token, db.write(ctx, "x", 1)))

	var seen []int64
	require.NoError(t, fence.Tx(ctx, token, func(tx *sql.Tx) error {
		v, err := db.read(ctx, tx, "x")
		if err != nil {
			return err
		}
		seen = append(seen, v)
		if len(seen) == 1 {
			if _, err := db.ExecContext(ctx, "UPDATE data SET value = 10 WHERE id = 'x'"); err != nil {
				return err
			}
		}
		return db.write(ctx, "x", v+1)(tx)
	}))
	require.Equal(t, []int64{1, 10}, seen)
	require.EqualValues(t, 11, db.value(t, "x"))
}

func sqlFenceError(t *testing.T, db fencedDB) {
	ctx := t.Context()
	fence := db.fence(t)
	older, newer := sqlToken(t, "lock", 1, "old"), sqlToken(t, "lock", 2, "new")
	failure := errors.New("the work failed")
	fails := func(tx *sql.Tx) error {
		if err := db.write(ctx, "x", 9)(tx); err != nil {
			return err
		}
		return failure
	}

	require.NoError(t, fence.Tx(ctx, older, db.write(ctx, "x", 1)))
	require.Equal(t, failure, fence.Tx(ctx, newer, fails), "the callback's error comes back as it is")
	require.EqualValues(t, 1, db.value(t, "x"))
	requireMark(t, fence, older)
	require.NoError(t, fence.Tx(ctx, older, db.write(ctx, "x", 2)))

	require.NoError(t, fence.Advance(ctx, newer))
	require.Equal(t, failure, fence.Tx(ctx, newer, fails))
	requireMark(t, fence, newer)
}

func sqlFencePanic(t *testing.T, db fencedDB) {
	ctx := t.Context()
	fence := db.fence(t)
	token := sqlToken(t, "lock", 1, "h")

	require.PanicsWithValue(t, "boom", func() {
		_ = fence.Tx(ctx, token, func(tx *sql.Tx) error {
			assert.NoError(t, db.write(ctx, "x", 1)(tx))
			panic("boom")
		})
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = fence.Tx(ctx, token, func(tx *sql.Tx) error {
			assert.NoError(t, db.write(ctx, "x", 1)(tx))
			runtime.Goexit()
			return nil
		})
	}()
	<-done
	require.Zero(t, db.Stats().InUse)
	require.Zero(t, db.value(t, "x"))
	requireMarkless(t, fence, "lock")
}

func sqlFenceContext(t *testing.T, db fencedDB) {
	fence := db.fence(t)
	token := sqlToken(t, "lock", 1, "h")
	lost := errors.New("the lock was lost")

	ctx, cancel := context.WithCancelCause(t.Context())
	err := fence.Tx(ctx, token, func(tx *sql.Tx) error {
		if err := db.write(ctx, "x", 1)(tx); err != nil {
			return err
		}
		cancel(lost)
		return nil
	})
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, lost)
	require.NotErrorIs(t, err, sqlfence.ErrUnknownOutcome)
	require.NotErrorIs(t, err, fencelock.ErrStale)

	err = fence.Tx(ctx, token, neverRun(t))
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, lost)
	_, err = fence.Highest(ctx, "lock")
	require.ErrorIs(t, err, lost)
	require.ErrorIs(t, fence.Migrate(ctx), lost)
	require.Zero(t, db.value(t, "x"))
	requireMarkless(t, fence, "lock")

	// While it waits for another's transaction.
	ctx, cancel = context.WithCancelCause(t.Context())
	result := make(chan error, 1)
	require.NoError(t, fence.Tx(t.Context(), token, func(*sql.Tx) error {
		go func() { result <- fence.Tx(ctx, sqlToken(t, "lock", 2, "h"), neverRun(t)) }()
		db.awaitBlocked(t)
		cancel(lost)
		err := <-result // it ends although this transaction goes on
		assert.ErrorIs(t, err, context.Canceled)
		assert.ErrorIs(t, err, lost)
		assert.NotErrorIs(t, err, sqlfence.ErrUnknownOutcome)
		return nil
	}))
	requireMark(t, fence, token)
}

func sqlFenceEndedByCallback(t *testing.T, db fencedDB) {
	ctx := t.Context()
	fence := db.fence(t)
	for name, end := range map[string]func(*sql.Tx) error{"commit": (*sql.Tx).Commit, "rollback": (*sql.Tx).Rollback} {
		err := fence.Tx(ctx, sqlToken(t, name, 1, "h"), end)
		require.ErrorIs(t, err, sqlfence.ErrUnknownOutcome)
		require.ErrorIs(t, err, sql.ErrTxDone)
	}
}

func sqlFenceClosed(t *testing.T, db fencedDB) {
	ctx := t.Context()
	fence := db.fence(t)
	require.NoError(t, db.Close())
	for _, err := range []error{
		fence.Tx(ctx, sqlToken(t, "lock", 1, "h"), neverRun(t)),
		fence.Advance(ctx, sqlToken(t, "lock", 1, "h")),
		fence.Migrate(ctx),
		second(fence.Highest(ctx, "lock")),
	} {
		require.ErrorContains(t, err, "sqlfence: ")
		require.ErrorContains(t, err, "database is closed")
		require.NotErrorIs(t, err, sqlfence.ErrUnknownOutcome)
	}
}

func second[T any](_ T, err error) error { return err }

func sqlFenceMissingTable(t *testing.T, db fencedDB) {
	ctx := t.Context()
	fence := db.unmigrated(t)
	token := sqlToken(t, "lock", 1, "h")
	for _, err := range []error{
		fence.Tx(ctx, token, neverRun(t)),
		fence.Advance(ctx, token),
		second(fence.Highest(ctx, "lock")),
	} {
		require.ErrorIs(t, err, sqlfence.ErrNoTable)
		require.ErrorContains(t, err, "call Migrate")
	}
	require.NoError(t, fence.Migrate(ctx))
	require.NoError(t, fence.Tx(ctx, token, db.write(ctx, "x", 1)))

	// Another missing table is the callback's affair.
	err := fence.Tx(ctx, token, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "DELETE FROM elsewhere")
		return err
	})
	require.ErrorContains(t, err, "elsewhere")
	require.NotErrorIs(t, err, sqlfence.ErrNoTable)
}

func sqlFenceMigrate(t *testing.T, db fencedDB) {
	ctx := t.Context()
	for round := range 10 {
		fence := db.unmigrated(t, sqlfence.WithTable(fmt.Sprintf("round_%d", round)))
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() { assert.NoError(t, fence.Migrate(ctx)) })
		}
		wg.Wait()
	}
	fence := db.fence(t)
	token := sqlToken(t, "lock", 1, "h")
	require.NoError(t, fence.Advance(ctx, token))
	require.NoError(t, fence.Migrate(ctx))
	requireMark(t, fence, token)

	// The text works by itself.
	other := db.unmigrated(t, sqlfence.WithTable("marks_2"))
	_, err := db.ExecContext(ctx, other.DDL())
	require.NoError(t, err)
	require.NoError(t, other.Advance(ctx, token))
	for column, bad := range map[string][]any{
		"scope":  {nil, 1, "h"},
		"token":  {[]byte("a"), nil, "h"},
		"holder": {[]byte("b"), 1, nil},
		"sign":   {[]byte("c"), 0, "h"},
	} {
		_, err := db.ExecContext(ctx, db.sql("INSERT INTO marks_2 (scope, token, holder, written_at) VALUES ($1, $2, $3, '2026-01-01')"), bad...)
		require.Regexp(t, "(?i)constraint|cannot be null", fmt.Sprint(err), column)
	}
}

func sqlFenceTable(t *testing.T, db fencedDB) {
	ctx := t.Context()
	one, other := db.fence(t, sqlfence.WithTable("order")), db.fence(t)
	older, newer := sqlToken(t, "lock", 1, "old"), sqlToken(t, "lock", 2, "new")
	require.NoError(t, one.Advance(ctx, newer))
	require.NoError(t, other.Advance(ctx, older), "each table has its own marks")
	requireStale(t, one.Advance(ctx, older), older, newer)
}

func sqlFenceDamaged(t *testing.T, db fencedDB) {
	ctx := t.Context()
	fence := db.fence(t)
	_, err := db.ExecContext(ctx, db.sql("INSERT INTO fencelock_marks (scope, token, holder, written_at) VALUES ($1, 5, 'not a holder', '2026-01-01')"), []byte("lock"))
	require.NoError(t, err)
	_, err = fence.Highest(ctx, "lock")
	require.ErrorIs(t, err, fencelock.ErrInvalidToken)
	err = fence.Tx(ctx, sqlToken(t, "lock", 5, "h"), neverRun(t))
	require.ErrorIs(t, err, fencelock.ErrInvalidToken)
	require.ErrorContains(t, err, "damaged")
	require.NoError(t, fence.Tx(ctx, sqlToken(t, "lock", 6, "h"), db.write(ctx, "x", 1)), "a newer token mends it")
}

func sqlFenceHooks(t *testing.T, db fencedDB) {
	ctx := t.Context()
	var log bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer slog.SetDefault(before)

	var rejected []fencelock.TokenRejectedInfo
	fence := db.fence(t, sqlfence.WithHooks(fencelock.Hooks{TokenRejected: func(info fencelock.TokenRejectedInfo) {
		assert.Zero(t, db.Stats().InUse, "a transaction is open while the hook runs")
		rejected = append(rejected, info)
		panic("of the hook")
	}}))
	older, newer := sqlToken(t, "lock", 1, "old"), sqlToken(t, "lock", 2, "new")
	require.NoError(t, fence.Advance(ctx, newer))
	err := fence.Tx(ctx, older, neverRun(t))
	requireStale(t, err, older, newer)
	require.Len(t, rejected, 1)
	require.True(t, rejected[0].Token.Equal(older))
	require.Equal(t, err, rejected[0].Err)
	require.Contains(t, log.String(), "of the hook")

	// A refusal that the callback brings along is another fence's.
	foreign := &fencelock.StaleError{Scope: "lock", Presented: newer, Highest: newer}
	require.Equal(t, error(foreign), fence.Tx(ctx, newer, func(*sql.Tx) error { return foreign }))
	require.Len(t, rejected, 1)
}

func sqlFenceArguments(t *testing.T, db fencedDB) {
	fence := db.unmigrated(t)
	token := sqlToken(t, "lock", 1, "h")
	var none context.Context
	for _, err := range []error{
		fence.Tx(t.Context(), token, nil),
		fence.Tx(none, token, neverRun(t)),
		fence.Advance(none, token),
		fence.Migrate(none),
		second(fence.Highest(none, "lock")),
	} {
		require.ErrorIs(t, err, fencelock.ErrInvalidOption)
	}
}
