package sqlfence_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/sqlfence"
	"github.com/stretchr/testify/require"
)

// nowhere is a database that cannot be reached, and counts who tries. What needs one
// is tested with real servers, in a module that may have their drivers.
type nowhere struct{ asked atomic.Int64 }

func (n *nowhere) Connect(context.Context) (driver.Conn, error) {
	n.asked.Add(1)
	return nil, errors.New("no database here")
}

func (*nowhere) Driver() driver.Driver { return nil }

// untouched fails the test if anybody tried to reach the database.
func (n *nowhere) untouched(t *testing.T) {
	t.Helper()
	require.Zero(t, n.asked.Load(), "a request was made")
}

func nowhereDB(t *testing.T) (*sql.DB, *nowhere) {
	n := new(nowhere)
	db := sql.OpenDB(n)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db, n
}

// opened is what New returns for a database that cannot be reached.
func opened(t *testing.T, dialect sqlfence.Dialect, opts ...sqlfence.Option) *sqlfence.Fence {
	t.Helper()
	db, _ := nowhereDB(t)
	fence, err := sqlfence.New(db, dialect, opts...)
	require.NoError(t, err)
	return fence
}

var dialects = map[sqlfence.Dialect]string{sqlfence.PostgreSQL: `"`, sqlfence.SQLite: `"`, sqlfence.MySQL: "`"}

func TestNewRefuses(t *testing.T) {
	db, n := nowhereDB(t)
	for name, c := range map[string]struct {
		db      *sql.DB
		dialect sqlfence.Dialect
		opts    []sqlfence.Option
		says    string
	}{
		"nil db":          {nil, sqlfence.SQLite, nil, "nil *sql.DB"},
		"zero dialect":    {db, sqlfence.Dialect(0), nil, "Dialect(0)"},
		"unknown dialect": {db, sqlfence.Dialect(99), nil, "Dialect(99)"},
		"nil option":      {db, sqlfence.SQLite, []sqlfence.Option{nil}, "nil option"},
		"read only":       {db, sqlfence.SQLite, []sqlfence.Option{sqlfence.WithTxOptions(&sql.TxOptions{ReadOnly: true})}, "ReadOnly"},
	} {
		t.Run(name, func(t *testing.T) {
			fence, err := sqlfence.New(c.db, c.dialect, c.opts...)
			require.ErrorIs(t, err, fencelock.ErrInvalidOption)
			require.ErrorContains(t, err, c.says)
			require.Nil(t, fence)
			n.untouched(t)
		})
	}
}

func TestWithScopeRefuses(t *testing.T) {
	db, n := nowhereDB(t)
	for _, name := range []string{"", strings.Repeat("x", 1025)} {
		_, err := sqlfence.New(db, sqlfence.MySQL, sqlfence.WithScope(name))
		require.ErrorIs(t, err, fencelock.ErrInvalidName)
	}
	n.untouched(t)
}

func TestWithTable(t *testing.T) {
	db, n := nowhereDB(t)
	long := strings.Repeat("x", 63)
	for _, name := range []string{"marks", "_", "m2", "order", "app.marks", long, long + "." + long} {
		for dialect, quote := range dialects {
			fence := opened(t, dialect, sqlfence.WithTable(name))
			quoted := quote + strings.ReplaceAll(name, ".", quote+"."+quote) + quote
			if dialect == sqlfence.SQLite && !strings.Contains(name, ".") {
				quoted = `"main".` + quoted
			}
			require.True(t, strings.HasPrefix(fence.DDL(), "CREATE TABLE IF NOT EXISTS "+quoted+" ("), fence.DDL())
		}
	}
	for _, name := range []string{
		"", ".", "a.", ".a", "a..b", "a.b.c", "Marks", "2m", "m-m", "m m", "m;", `m"m`, "m'", "m\x00", "märks", "%s",
		long + "x", "a." + long + "x", strings.Repeat("x", 1<<20),
	} {
		_, err := sqlfence.New(db, sqlfence.SQLite, sqlfence.WithTable(name))
		require.ErrorIs(t, err, fencelock.ErrInvalidOption, "%.80q", name)
		require.Less(t, len(err.Error()), 1024, "an option must not fill a log")
	}
	n.untouched(t)
}

func TestWithTxOptionsNil(t *testing.T) {
	opened(t, sqlfence.PostgreSQL, sqlfence.WithTxOptions(nil))
}

func TestDDLDefaultTable(t *testing.T) {
	for dialect, quote := range dialects {
		ddl := opened(t, dialect).DDL()
		require.Contains(t, ddl, quote+"fencelock_marks"+quote+" (")
		require.NotContains(t, ddl, "%", "what Sprintf could not place")
		require.True(t, strings.HasSuffix(ddl, ";"), ddl)
	}
}

// TestBadArguments is about what is found before a request.
func TestBadArguments(t *testing.T) {
	ctx := t.Context()
	var rejected []fencelock.TokenRejectedInfo
	db, n := nowhereDB(t)
	fence, err := sqlfence.New(db, sqlfence.PostgreSQL, sqlfence.WithScope("lock"), sqlfence.WithHooks(fencelock.Hooks{
		TokenRejected: func(info fencelock.TokenRejectedInfo) { rejected = append(rejected, info) },
	}))
	require.NoError(t, err)
	n.asked.Store(0) // by New
	token, err := fencelock.ParseToken("lock", "1.h")
	require.NoError(t, err)
	fn := func(*sql.Tx) error {
		t.Error("the callback ran")
		return nil
	}
	var none context.Context

	require.ErrorIs(t, fence.Tx(ctx, token, nil), fencelock.ErrInvalidOption)
	require.ErrorIs(t, fence.Tx(none, token, fn), fencelock.ErrInvalidOption)
	require.ErrorIs(t, fence.Advance(none, token), fencelock.ErrInvalidOption)
	require.ErrorIs(t, fence.Migrate(none), fencelock.ErrInvalidOption)
	_, err = fence.Highest(none, "lock")
	require.ErrorIs(t, err, fencelock.ErrInvalidOption)
	require.Empty(t, rejected, "no token was refused")

	for _, name := range []string{"", strings.Repeat("x", 1025)} {
		_, err = fence.Highest(ctx, name)
		require.ErrorIs(t, err, fencelock.ErrInvalidName)
	}

	require.ErrorIs(t, fence.Tx(ctx, fencelock.Token{}, fn), fencelock.ErrNoToken)
	require.ErrorIs(t, fence.Advance(ctx, fencelock.Token{}), fencelock.ErrNoToken)
	require.Len(t, rejected, 2)
	for _, info := range rejected {
		require.True(t, info.Token.IsZero())
		require.ErrorIs(t, info.Err, fencelock.ErrNoToken)
	}

	rejected = nil
	other, err := fencelock.ParseToken("lock ", "1.h")
	require.NoError(t, err)
	require.ErrorIs(t, fence.Tx(ctx, other, fn), fencelock.ErrScope)
	require.ErrorIs(t, fence.Advance(ctx, other), fencelock.ErrScope)
	require.ErrorIs(t, fence.Check(ctx, new(sql.Tx), other), fencelock.ErrScope)
	require.Len(t, rejected, 3)
	require.True(t, rejected[0].Token.Equal(other))

	require.ErrorIs(t, fence.Check(ctx, nil, token), fencelock.ErrInvalidOption)
	require.ErrorIs(t, fence.Check(none, new(sql.Tx), token), fencelock.ErrInvalidOption)
	require.ErrorIs(t, fence.Check(ctx, new(sql.Tx), fencelock.Token{}), fencelock.ErrNoToken)

	ended, cancel := context.WithCancel(ctx)
	cancel()
	require.ErrorIs(t, fence.Tx(ended, token, fn), context.Canceled)
	require.ErrorIs(t, fence.Migrate(ended), context.Canceled)
	n.untouched(t)
}
