package sqlfence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"
)

// lookBound bounds the look at the table of marks in [New], which has no context.
const lookBound = 5 * time.Second

// querier is *sql.DB, *sql.Conn or *sql.Tx.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// look checks once that the table of marks can hold marks. A mark that is cut,
// rounded, compared as a text or absent lets stale tokens pass, and nobody would
// notice. While the table does not exist there is nothing to check.
func (f *Fence) look(ctx context.Context, q querier) error {
	if f.looked.Load() {
		return nil
	}
	faults, err := f.dialect.faults(ctx, q, f.names)
	switch {
	case errors.Is(err, errNoColumns):
		return nil // the statement that needs it will say so
	case err != nil:
		return fmt.Errorf("sqlfence: cannot look at table %s: %w", f.table, because(ctx, err))
	case len(faults) > 0:
		return fmt.Errorf("%w: %s: %s", ErrBadTable, f.table, strings.Join(faults, "; "))
	}
	f.looked.Store(true)
	return nil
}

// errNoColumns: there is no such table.
var errNoColumns = errors.New("no columns")

// column is one column of a table, as the database describes it.
type column struct {
	kind     string // in lower case, without what does not matter
	nullable bool
	length   int64 // of a text, 0 if unlimited
}

// columns reads rows of name, kind, nullable and length.
func columns(ctx context.Context, q querier, query string, args ...any) (map[string]column, error) {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	found := make(map[string]column)
	for rows.Next() {
		var (
			name string
			c    column
		)
		if err := rows.Scan(&name, &c.kind, &c.nullable, &c.length); err != nil {
			return nil, err
		}
		c.kind = strings.ToLower(c.kind)
		found[strings.ToLower(name)] = c
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, errNoColumns
	}
	return found, nil
}

// wanted is what a column must be.
type wanted struct {
	name, kind string
	ok         func(column) bool
	mend       string // the statement, with the table's name for %s
}

func misfits(found map[string]column, table string, want ...wanted) (faults []string) {
	for _, w := range want {
		c, ok := found[w.name]
		switch {
		case !ok:
			faults = append(faults, fmt.Sprintf("column %s is missing; move the table away and call Migrate", w.name))
		case !w.ok(c):
			faults = append(faults, fmt.Sprintf("column %s is %s, and must be %s; %s", w.name, c, w.kind, strings.ReplaceAll(w.mend, "%s", table)))
		}
	}
	return faults
}

func (c column) String() string {
	s := c.kind
	if c.length > 0 {
		kind, more, _ := strings.Cut(c.kind, " collate ")
		s = fmt.Sprintf("%s(%d)", kind, c.length)
		if more != "" {
			s += " collate " + more
		}
	}
	if c.nullable {
		return s + " and nullable"
	}
	return s
}

func postgresFaults(ctx context.Context, q querier, table []string) ([]string, error) {
	name := doubleQuotes.quoted(table)
	// to_regclass takes what stands in a statement, and is NULL for what does not
	// exist: an error would end the caller's transaction. It finds a temporary table of
	// the session first, as the statements do.
	found, err := columns(ctx, q, `SELECT attname::text, format_type(atttypid, NULL), NOT attnotnull,
	CASE WHEN atttypid = 'varchar'::regtype AND atttypmod > 4 THEN atttypmod - 4 ELSE 0 END
FROM pg_attribute WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped`, name)
	if err != nil {
		return nil, err
	}
	faults := misfits(found, name,
		wanted{
			"scope", "bytea and not null", func(c column) bool { return c.kind == "bytea" && !c.nullable },
			"move the table away and call Migrate",
		},
		wanted{
			"token", "bigint and not null", func(c column) bool { return c.kind == "bigint" && !c.nullable },
			"ALTER TABLE %s ALTER COLUMN token TYPE bigint USING token::bigint, ALTER COLUMN token SET NOT NULL",
		},
		wanted{
			"holder", "text and not null", func(c column) bool { return texts(c, "text", "character varying") },
			"ALTER TABLE %s ALTER COLUMN holder TYPE text, ALTER COLUMN holder SET NOT NULL",
		},
		wanted{
			"written_at", "timestamp with time zone", func(c column) bool { return c.kind == "timestamp with time zone" },
			"ALTER TABLE %s ALTER COLUMN written_at TYPE timestamptz",
		},
	)
	var persistence string
	if err := q.QueryRowContext(ctx, `SELECT relpersistence::text FROM pg_class WHERE oid = to_regclass($1)`, name).Scan(&persistence); err != nil {
		return nil, err
	}
	switch persistence {
	case "u":
		faults = append(faults, "it is unlogged, so a crash would empty it; ALTER TABLE "+name+" SET LOGGED")
	case "t":
		faults = append(faults, "it is a temporary table of the session; name the schema of the right one with WithTable")
	}
	return faults, nil
}

// texts reports whether c holds any holder, and tells any two apart.
func texts(c column, kinds ...string) bool {
	for _, kind := range kinds {
		if c.kind == kind {
			return !c.nullable && (c.length == 0 || c.length >= 128)
		}
	}
	return false
}

func sqliteFaults(ctx context.Context, q querier, table []string) ([]string, error) {
	if len(table) == 1 {
		table = append([]string{"main"}, table...)
	}
	// A primary key of an ordinary table can be NULL in SQLite; no scope is.
	found, err := columns(ctx, q, `SELECT name, type, "notnull" = 0 AND pk = 0, 0 FROM pragma_table_info(?1, ?2)`,
		table[1], table[0])
	if err != nil {
		return nil, err
	}
	const mend = "rename the table, call Migrate, and copy its rows"
	return misfits(found, doubleQuotes.quoted(table),
		// Without a type a column keeps what it is given, which are bytes.
		wanted{"scope", "BLOB", func(c column) bool { return c.kind == "blob" || c.kind == "" }, mend},
		// By SQLite's rule for affinity: anything else turns numbers into texts or
		// floats, or keeps texts beside them.
		wanted{
			"token", "INTEGER and not null",
			func(c column) bool { return strings.Contains(c.kind, "int") && !c.nullable }, mend,
		},
		wanted{"holder", "TEXT and not null", func(c column) bool { return c.kind == "text" && !c.nullable }, mend},
		wanted{"written_at", "TEXT", func(c column) bool { return c.kind == "text" }, mend},
	), nil
}

func mysqlFaults(ctx context.Context, q querier, table []string) ([]string, error) {
	name := backticks.quoted(table)
	// NULL for the connection's own. No empty text in these statements: there is a mode
	// in which it is NULL.
	var schema any
	if len(table) > 1 {
		schema = table[0]
	}
	const where = ` WHERE table_schema = COALESCE(?, DATABASE()) AND table_name = ?`
	// What a text compares as is part of its kind here.
	found, err := columns(ctx, q, `SELECT column_name,
	CONCAT_WS(' collate ', IF(column_type LIKE '%unsigned%', CONCAT(data_type, ' unsigned'), data_type), collation_name),
	is_nullable = 'YES', COALESCE(character_maximum_length, datetime_precision, 0) FROM information_schema.columns`+where, schema, table[len(table)-1])
	if err != nil {
		return nil, err
	}
	var (
		engine string
		faults []string
	)
	if err := q.QueryRowContext(ctx, `SELECT COALESCE(engine, 'none') FROM information_schema.tables`+where,
		schema, table[len(table)-1]).Scan(&engine); err != nil {
		return nil, err
	}
	if !strings.EqualFold(engine, "InnoDB") {
		faults = append(faults, fmt.Sprintf("its engine is %s, which has no transactions; ALTER TABLE %s ENGINE = InnoDB", engine, name))
	}
	faults = append(faults, misfits(found, name,
		wanted{
			"scope", "varbinary(1024) and not null",
			func(c column) bool { return c.kind == "varbinary" && !c.nullable && c.length >= 1024 },
			"ALTER TABLE %s MODIFY scope VARBINARY(1024) NOT NULL",
		},
		wanted{
			"token", "bigint and not null", func(c column) bool { return c.kind == "bigint" && !c.nullable },
			"ALTER TABLE %s MODIFY token BIGINT NOT NULL",
		},
		wanted{
			"holder", "varchar(128) with a binary collation, and not null",
			func(c column) bool {
				return !c.nullable && c.length >= 128 && strings.HasPrefix(c.kind, "var") &&
					(c.kind == "varbinary" || strings.HasSuffix(c.kind, "_bin"))
			},
			"ALTER TABLE %s MODIFY holder VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL",
		},
		wanted{
			"written_at", "datetime(6) and not null", func(c column) bool { return c.kind == "datetime" && !c.nullable && c.length == 6 },
			"ALTER TABLE %s MODIFY written_at DATETIME(6) NOT NULL",
		},
	)...)
	// Without a unique key the mark would be another row each time, and every token
	// pass; and ON DUPLICATE KEY goes by any unique key there is.
	var unique, scopes int
	if err := q.QueryRowContext(ctx, `SELECT COUNT(*), COUNT(CASE WHEN LOWER(column_name) = 'scope' AND sub_part IS NULL THEN 1 END)
FROM information_schema.statistics`+where+` AND non_unique = 0`, schema, table[len(table)-1]).Scan(&unique, &scopes); err != nil {
		return nil, err
	}
	if unique != 1 || scopes != 1 {
		faults = append(faults, "its only unique key must be on scope alone; move the table away and call Migrate")
	}
	return faults, nil
}
