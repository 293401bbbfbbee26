package pgxfence

// The statements of sqlfence for PostgreSQL, in the same table. They are here once
// more because two modules that are released apart must not depend on each other's
// text; a test of both on one database, "shares its marks", holds them together.
const (
	createMarks = `CREATE TABLE IF NOT EXISTS %s (
	scope      BYTEA       NOT NULL PRIMARY KEY, -- the lock's name
	token      BIGINT      NOT NULL CHECK (token > 0), -- the highest revision seen
	holder     TEXT        NOT NULL, -- the acquisition it came from
	written_at TIMESTAMPTZ NOT NULL -- the last transaction that passed
);`

	readMark = `SELECT token, holder FROM %s WHERE scope = $1`

	// RETURNING decides, not the number of rows affected. It writes a new version
	// of the row in every case it passes: with a mere row lock a REPEATABLE READ
	// transaction can read from a snapshot older than its predecessor's commit.
	raiseMark = `INSERT INTO %s AS mark (scope, token, holder, written_at)
VALUES ($1, $2, $3, now())
ON CONFLICT (scope) DO UPDATE
SET token = excluded.token, holder = excluded.holder, written_at = excluded.written_at
WHERE mark.token < excluded.token OR (mark.token = excluded.token AND mark.holder COLLATE "C" = excluded.holder COLLATE "C")
RETURNING token, holder`
)
