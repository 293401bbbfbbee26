package sqlfence

import (
	"context"
	"errors"
	"strings"
)

// The scope is BLOB for the same reasons as in PostgreSQL. STRICT makes a scope
// that somebody inserts as TEXT an error: it would be another row than the BLOB
// of the same bytes.
//
// A deferred transaction that starts with a write takes the write lock before
// its snapshot, so no BEGIN IMMEDIATE is needed, which database/sql cannot say.
//
// Drivers have no method in common that tells a result code. The texts matched
// here are SQLite's own, which every driver passes on.
var sqlite = dialect{
	quote: doubleQuotes,
	// Without a schema a temporary table of this connection, of the same name, would
	// come first.
	names: []string{"main", defaultTable},
	create: `CREATE TABLE IF NOT EXISTS %s (
	scope      BLOB    NOT NULL PRIMARY KEY, -- the lock's name
	token      INTEGER NOT NULL CHECK (token > 0), -- the highest revision seen
	holder     TEXT    NOT NULL, -- the acquisition it came from
	written_at TEXT    NOT NULL -- the last transaction that passed, UTC
) STRICT, WITHOUT ROWID;`,
	read: `SELECT token, holder FROM %s WHERE scope = ?1`,
	raise: `INSERT INTO %s AS mark (scope, token, holder, written_at)
VALUES (?1, ?2, ?3, strftime('%%Y-%%m-%%dT%%H:%%M:%%fZ', 'now'))
ON CONFLICT (scope) DO UPDATE
SET token = excluded.token, holder = excluded.holder, written_at = excluded.written_at
WHERE mark.token < excluded.token OR (mark.token = excluded.token AND mark.holder COLLATE BINARY = excluded.holder)
RETURNING token, holder`,
	returns: true,
	faults:  sqliteFaults,

	// A COMMIT that is refused leaves the transaction open; drivers roll it back
	// then, as database/sql demands. A disk error can come after the commit point,
	// so it proves nothing.
	transient:  sqliteBusy,
	rolledBack: func(err error) bool { return sqliteSays(err, "constraint failed") },
	// SQLite ends a transaction under its callback when a statement fails that it
	// cannot undo alone: after an interrupt, on a full disk, by OR ROLLBACK.
	ended: func(err error) bool { return sqliteSays(err, "no transaction is active") },
	ends: func(err error) bool {
		if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
			return true // what a driver makes of an interrupt
		}
		for _, text := range []string{"interrupted", "disk is full", "disk I/O error", "out of memory", "constraint failed"} {
			if sqliteSays(err, text) {
				return true
			}
		}
		return false
	},
	missingTable: func(err error) bool { return sqliteSays(err, "no such table: ") },
	raced:        never, // there is one writer
}

// sqliteBusy is SQLITE_BUSY, another connection has the lock for longer than the
// connection's busy_timeout, which is 0 by default; or SQLITE_LOCKED, which is the same
// among connections that share a cache.
func sqliteBusy(err error) bool {
	return sqliteSays(err, "database is locked") || sqliteSays(err, "database table is locked")
}

func sqliteSays(err error, text string) bool {
	return leaf(err, func(err error) bool { return strings.Contains(err.Error(), text) })
}
