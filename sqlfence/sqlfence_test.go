package sqlfence_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"strings"
	"testing"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/sqlfence"
	"github.com/stretchr/testify/require"
)

// untouched is a database that must not get a request. What needs one is tested
// with real servers, in a module that may have their drivers.
type untouched struct{ t *testing.T }

func (u untouched) Connect(context.Context) (driver.Conn, error) {
	u.t.Error("a request was made")
	return nil, errors.New("no database here")
}

func (untouched) Driver() driver.Driver { return nil }

func untouchedDB(t *testing.T) *sql.DB {
	db := sql.OpenDB(untouched{t})
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

func TestNewRefuses(t *testing.T) {
	db := untouchedDB(t)
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
		})
	}
}

func TestWithTable(t *testing.T) {
	db := untouchedDB(t)
	long := strings.Repeat("x", 63)
	for _, name := range []string{"marks", "_", "m2", "order", "app.marks", long, long + "." + long} {
		for _, dialect := range []sqlfence.Dialect{sqlfence.PostgreSQL, sqlfence.SQLite} {
			fence, err := sqlfence.New(db, dialect, sqlfence.WithTable(name))
			require.NoError(t, err, name)
			quoted := `"` + strings.ReplaceAll(name, ".", `"."`) + `"`
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
}

func TestWithTxOptionsNil(t *testing.T) {
	_, err := sqlfence.New(untouchedDB(t), sqlfence.PostgreSQL, sqlfence.WithTxOptions(nil))
	require.NoError(t, err)
}

func TestDDLDefaultTable(t *testing.T) {
	for _, dialect := range []sqlfence.Dialect{sqlfence.PostgreSQL, sqlfence.SQLite} {
		fence, err := sqlfence.New(untouchedDB(t), dialect)
		require.NoError(t, err)
		ddl := fence.DDL()
		require.Contains(t, ddl, "CREATE TABLE IF NOT EXISTS fencelock_marks (")
		require.NotContains(t, ddl, "%", "what Sprintf could not place")
		require.True(t, strings.HasSuffix(ddl, ";"), ddl)
	}
}

// TestBadArguments is about what is found before a request.
func TestBadArguments(t *testing.T) {
	ctx := t.Context()
	var rejected []fencelock.TokenRejectedInfo
	fence, err := sqlfence.New(untouchedDB(t), sqlfence.PostgreSQL, sqlfence.WithHooks(fencelock.Hooks{
		TokenRejected: func(info fencelock.TokenRejectedInfo) { rejected = append(rejected, info) },
	}))
	require.NoError(t, err)
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

	ended, cancel := context.WithCancel(ctx)
	cancel()
	require.ErrorIs(t, fence.Tx(ended, token, fn), context.Canceled)
	require.ErrorIs(t, fence.Migrate(ended), context.Canceled)
}
