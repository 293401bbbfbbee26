package sqlfence

import (
	"errors"
	"strings"
)

// The scope is BYTEA: a lock's name is any bytes, TEXT holds neither NUL nor
// invalid UTF-8, and no collation may ever find two names equal. An escaped
// TEXT would be three times as long, above what an index entry can hold.
//
// RETURNING decides, not the number of rows affected: drivers and settings
// disagree on what that counts. ON CONFLICT locks the row also where WHERE says
// no, so the mark read after a refusal is the one it was refused for.
var postgreSQL = dialect{
	quote: doubleQuotes,
	names: []string{defaultTable},
	create: `CREATE TABLE IF NOT EXISTS %s (
	scope      BYTEA       NOT NULL PRIMARY KEY, -- the lock's name
	token      BIGINT      NOT NULL CHECK (token > 0), -- the highest revision seen
	holder     TEXT        NOT NULL, -- the acquisition it came from
	written_at TIMESTAMPTZ NOT NULL -- the last transaction that passed
);`,
	read: `SELECT token, holder FROM %s WHERE scope = $1`,
	raise: `INSERT INTO %s AS mark (scope, token, holder, written_at)
VALUES ($1, $2, $3, now())
ON CONFLICT (scope) DO UPDATE
SET token = excluded.token, holder = excluded.holder, written_at = excluded.written_at
WHERE mark.token < excluded.token OR (mark.token = excluded.token AND mark.holder COLLATE "C" = excluded.holder COLLATE "C")
RETURNING token, holder`,
	returns: true,
	faults:  postgresFaults,

	transient: func(err error) bool {
		state := sqlState(err)
		return state == "40001" || // serialization_failure
			state == "40P01" // deadlock_detected
	},
	rolledBack: postgresRolledBack,
	// After the end of a transaction, which only the callback can bring about, a
	// COMMIT is a warning.
	ended:        never,
	ends:         never,
	missingTable: func(err error) bool { return sqlState(err) == "42P01" }, // undefined_table
	// IF NOT EXISTS looks before it creates, and so can lose a race. How, depends
	// on where the winner is: its rows in the catalog are in the way when they
	// are inserted, or when their names are looked up, the row type's first.
	raced: func(err error) bool {
		switch sqlState(err) {
		case "23505", "42710", "42P07": // unique_violation, duplicate_object, duplicate_table
			return true
		}
		return false
	},
}

// sqlState returns the SQLSTATE of an error from the server, "" of any other.
// pgx and lib/pq both have the method.
func sqlState(err error) string {
	var e interface{ SQLState() string }
	if errors.As(err, &e) {
		return e.SQLState()
	}
	return ""
}

func postgresRolledBack(err error) bool {
	state := sqlState(err)
	if len(state) != 5 {
		// A callback that swallowed the error of a statement leaves a failed
		// transaction, and its COMMIT is answered with ROLLBACK. pgx makes that the
		// first error, lib/pq the second, without a SQLSTATE. Where the words change, the outcome is
		// called unknown, which errs on the safe side.
		return leaf(err, func(err error) bool {
			return strings.Contains(err.Error(), "commit unexpectedly resulted in rollback") ||
				strings.Contains(err.Error(), "could not complete operation in a failed transaction")
		})
	}
	// An answer of the server to COMMIT is a refusal, except where it says that
	// it does not know, and where it is the session that ends: that can come
	// between the commit and its reply.
	switch state[:2] {
	case "08", "57", "58", "XX": // connection, operator intervention, system, internal
		return false
	}
	return state != "40003" // statement_completion_unknown
}
