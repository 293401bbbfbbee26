package sqlfence

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// stateError is an error with a SQLSTATE, as drivers of PostgreSQL have them.
type stateError string

func (e stateError) Error() string    { return "ERROR: something (SQLSTATE " + string(e) + ")" }
func (e stateError) SQLState() string { return string(e) }

func TestPostgreSQLErrors(t *testing.T) {
	type kinds struct{ transient, rolledBack, missingTable, raced bool }
	for _, c := range []struct {
		err  error
		want kinds
	}{
		{stateError("40001"), kinds{transient: true, rolledBack: true}},    // serialization_failure
		{stateError("40P01"), kinds{transient: true, rolledBack: true}},    // deadlock_detected
		{stateError("40003"), kinds{}},                                     // statement_completion_unknown
		{stateError("08007"), kinds{}},                                     // transaction_resolution_unknown
		{stateError("57P01"), kinds{}},                                     // admin_shutdown
		{stateError("57014"), kinds{}},                                     // query_canceled
		{stateError("58030"), kinds{}},                                     // io_error
		{stateError("XX000"), kinds{}},                                     // internal_error
		{stateError("23503"), kinds{rolledBack: true}},                     // foreign_key_violation
		{stateError("23505"), kinds{rolledBack: true, raced: true}},        // unique_violation
		{stateError("42P01"), kinds{rolledBack: true, missingTable: true}}, // undefined_table
		{stateError("42710"), kinds{rolledBack: true, raced: true}},        // duplicate_object
		{stateError("42P07"), kinds{rolledBack: true, raced: true}},        // duplicate_table
		{stateError("P0001"), kinds{rolledBack: true}},                     // raise_exception
		{stateError(""), kinds{}},
		{stateError("4000"), kinds{}},
		{errors.New("unexpected EOF"), kinds{}},
		{errors.New("commit unexpectedly resulted in rollback"), kinds{rolledBack: true}},
		{errors.New("pq: could not complete operation in a failed transaction"), kinds{rolledBack: true}},
		// SQLite's words mean nothing here.
		{errors.New("database is locked"), kinds{}},
	} {
		for _, err := range wrapped(c.err) {
			require.Equal(t, c.want, kinds{
				transient:    postgreSQL.transient(err),
				rolledBack:   postgreSQL.rolledBack(err),
				missingTable: postgreSQL.missingTable(err),
				raced:        postgreSQL.raced(err),
			}, "%v", err)
		}
	}
	require.False(t, postgreSQL.raced(nil))
}

func TestSQLiteErrors(t *testing.T) {
	type kinds struct{ transient, rolledBack, missingTable bool }
	for text, want := range map[string]kinds{
		// As modernc.org/sqlite, mattn/go-sqlite3 and ncruces/go-sqlite3 say it.
		"database is locked (5) (SQLITE_BUSY)":                   {transient: true},
		"database is locked":                                     {transient: true},
		"sqlite3: database is locked":                            {transient: true},
		"constraint failed: FOREIGN KEY constraint failed (787)": {rolledBack: true},
		"FOREIGN KEY constraint failed":                          {rolledBack: true},
		"SQL logic error: no such table: fencelock_marks (1)":    {missingTable: true},
		"no such table: fencelock_marks":                         {missingTable: true},
		"disk I/O error":                                         {},
		"database table is locked":                               {transient: true},
		"database or disk is full":                               {},
	} {
		for _, err := range wrapped(errors.New(text)) {
			require.Equal(t, want, kinds{
				transient:    sqlite.transient(err),
				rolledBack:   sqlite.rolledBack(err),
				missingTable: sqlite.missingTable(err),
			}, "%v", err)
		}
	}
	// What wraps an error can carry a name, and a name can be anything.
	err := fmt.Errorf("lock %q: %w", "database is locked", errors.New("disk I/O error"))
	require.False(t, sqlite.transient(err))
	require.False(t, sqlite.rolledBack(err))
}

func TestMySQLErrors(t *testing.T) {
	type kinds struct{ transient, rolledBack, ended, missingTable bool }
	for text, want := range map[string]kinds{
		// As go-sql-driver/mysql says it, with and without the state, and go-mysql-org's.
		"Error 1213 (40001): Deadlock found when trying to get lock; try restarting transaction": {transient: true},
		"Error 1213: Deadlock found when trying to get lock; try restarting transaction":         {transient: true},
		"ERROR 1213 (40001): Deadlock found when trying to get lock; try restarting transaction": {transient: true},
		"Error 1205 (HY000): Lock wait timeout exceeded; try restarting transaction":             {transient: true},
		"Error 1020 (HY000): Record has changed since last read in table 'data'":                 {transient: true},
		"Error 3101 (40000): Plugin instructed the server to rollback the current transaction.":  {transient: true},
		"Error 1305 (42000): SAVEPOINT fencelock_tx does not exist":                              {ended: true},
		"Error 1146 (42S02): Table 'app.fencelock_marks' doesn't exist":                          {missingTable: true},
		"Error 1290 (HY000): The MySQL server is running with the --read-only option":            {},
		"Error 1180 (HY000): Got error 1 during COMMIT":                                          {},
		"invalid connection":                            {},
		"the Error 1213 (40001): is not the first word": {},
		"Error 12130: no such number":                   {},
		"Error: 1213":                                   {},
		"database is locked":                            {},
	} {
		for _, err := range wrapped(errors.New(text)) {
			require.Equal(t, want, kinds{
				transient:    mysql.transient(err),
				rolledBack:   mysql.rolledBack(err),
				ended:        mysql.ended(err),
				missingTable: mysql.missingTable(err),
			}, "%v", err)
		}
	}
	err := fmt.Errorf("lock %q: %w", "Error 1213: x", errors.New("invalid connection"))
	require.False(t, mysql.transient(err))
}

// wrapped returns err as callers may find it.
func wrapped(err error) []error {
	return []error{
		err,
		fmt.Errorf("the work: %w", err),
		errors.Join(errors.New("first"), err),
		fmt.Errorf("%w: %w", errors.New("first"), fmt.Errorf("second: %w", err)),
	}
}

func TestDialectString(t *testing.T) {
	require.Equal(t, "PostgreSQL", PostgreSQL.String())
	require.Equal(t, "SQLite", SQLite.String())
	require.Equal(t, "MySQL", MySQL.String())
	require.Equal(t, "Dialect(0)", Dialect(0).String())
}
