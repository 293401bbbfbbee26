package sqlfence

import (
	"regexp"
	"strconv"
)

// The scope is VARBINARY, and the holder has a binary collation, because MySQL's
// usual ones find "a" and "A" equal. The engine is named: a table of MyISAM takes
// no part in a transaction.
//
// MySQL has no RETURNING. ON DUPLICATE KEY UPDATE locks the row also where every
// column keeps its value, and the locking read after it then finds what that
// decided. Its assignments are made from left to right and see each other's results,
// so the condition comes before what it is about is changed.
//
// Only InnoDB's first plain read fixes what a transaction sees, so here the lock
// alone would do for an equal token. The new version keeps the fences alike, and it
// is what lets MariaDB's innodb_snapshot_isolation refuse a transaction that has
// read before the check. The time is made to rise, for two statements that began in
// one microsecond.
var mysql = dialect{
	quote: backticks,
	names: []string{defaultTable},
	create: `CREATE TABLE IF NOT EXISTS %s (
	scope      VARBINARY(1024) NOT NULL PRIMARY KEY, -- the lock's name
	token      BIGINT          NOT NULL CHECK (token > 0), -- the highest revision seen
	holder     VARCHAR(128)    CHARACTER SET ascii COLLATE ascii_bin NOT NULL, -- the acquisition it came from
	written_at DATETIME(6)     NOT NULL -- the last transaction that passed, UTC
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;`,
	read:       `SELECT token, holder FROM %s WHERE scope = ?`,
	readLocked: `SELECT token, holder FROM %s WHERE scope = ? FOR UPDATE`,
	raise: `INSERT INTO %s (scope, token, holder, written_at)
VALUES (?, ?, ?, UTC_TIMESTAMP(6))
ON DUPLICATE KEY UPDATE
written_at = IF(token < VALUES(token) OR (token = VALUES(token) AND holder = VALUES(holder)),
	GREATEST(VALUES(written_at), written_at + INTERVAL 1 MICROSECOND), written_at),
holder = IF(token < VALUES(token), VALUES(holder), holder),
token = GREATEST(token, VALUES(token))`,
	savepoints: true,
	commit:     "COMMIT",
	faults:     mysqlFaults,

	transient: func(err error) bool {
		switch mysqlNumber(err) {
		case 1213, // ER_LOCK_DEADLOCK, also a conflict found by Galera at the commit
			1205, // ER_LOCK_WAIT_TIMEOUT
			1020, // ER_CHECKREAD: MariaDB's snapshot isolation
			3101: // ER_TRANSACTION_ROLLBACK_DURING_COMMIT, of group replication
			return true
		}
		return false
	},
	// What else the server says to COMMIT can be about one that was half made.
	rolledBack: never,
	ended:      func(err error) bool { return mysqlNumber(err) == 1305 }, // ER_SP_DOES_NOT_EXIST, of the savepoint
	ends: func(err error) bool {
		number := mysqlNumber(err)
		return number == 1213 || number == 1020
	},
	missingTable: func(err error) bool { return mysqlNumber(err) == 1146 }, // ER_NO_SUCH_TABLE
	raced:        never,                                                    // IF NOT EXISTS is safe here
}

// mysqlWords is how drivers write what the server answered: "Error 1213 (40001):
// Deadlock found …".
var mysqlWords = regexp.MustCompile(`(?i)^error (\d{4,5})(?: \(\w{5}\))?: `)

// mysqlNumber returns the number of an error from the server, 0 of any other.
// Drivers have no method in common that tells it.
func mysqlNumber(err error) (number int) {
	leaf(err, func(err error) bool {
		if m := mysqlWords.FindStringSubmatch(err.Error()); m != nil {
			number, _ = strconv.Atoi(m[1])
		}
		return number != 0
	})
	return number
}
