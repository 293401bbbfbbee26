package pgxfence

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// lookBound bounds the look at the table of marks in [New], which has no context.
const lookBound = 5 * time.Second

// querier is a [DB] or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// look checks once that the table of marks can hold marks. A mark that is cut,
// rounded, compared as a text or absent lets stale tokens pass, and nobody would
// notice. While the table does not exist there is nothing to check.
func (f *Fence) look(ctx context.Context, q querier) error {
	if f.looked.Load() {
		return nil
	}
	found, err := columns(ctx, q, f.table)
	if err != nil {
		return fmt.Errorf("pgxfence: cannot look at table %s: %w", f.table, because(ctx, err))
	}
	if len(found) == 0 {
		return nil // the statement that needs it will say so
	}
	var faults []string
	for _, w := range []struct {
		name, kind string
		ok         func(column) bool
		mend       string
	}{
		{
			"scope", "bytea and not null", func(c column) bool { return c.kind == "bytea" && !c.nullable },
			"move the table away and call Migrate",
		},
		{
			"token", "bigint and not null", func(c column) bool { return c.kind == "bigint" && !c.nullable },
			"ALTER TABLE " + f.table + " ALTER COLUMN token TYPE bigint USING token::bigint, ALTER COLUMN token SET NOT NULL",
		},
		{
			"holder", "text and not null", func(c column) bool { return c.kind == "text" && !c.nullable },
			"ALTER TABLE " + f.table + " ALTER COLUMN holder TYPE text, ALTER COLUMN holder SET NOT NULL",
		},
		{
			"written_at", "timestamp with time zone", func(c column) bool { return c.kind == "timestamp with time zone" },
			"ALTER TABLE " + f.table + " ALTER COLUMN written_at TYPE timestamptz",
		},
	} {
		c, ok := found[w.name]
		switch {
		case !ok:
			faults = append(faults, fmt.Sprintf("column %s is missing; move the table away and call Migrate", w.name))
		case !w.ok(c):
			faults = append(faults, fmt.Sprintf("column %s is %s, and must be %s; %s", w.name, c, w.kind, w.mend))
		}
	}
	var persistence string
	if err := q.QueryRow(ctx, `SELECT relpersistence::text FROM pg_class WHERE oid = to_regclass($1)`, f.table).Scan(&persistence); err != nil {
		return fmt.Errorf("pgxfence: cannot look at table %s: %w", f.table, because(ctx, err))
	}
	switch persistence {
	case "u":
		faults = append(faults, "it is unlogged, so a crash would empty it; ALTER TABLE "+f.table+" SET LOGGED")
	case "t":
		faults = append(faults, "it is a temporary table of the session; name the schema of the right one with WithTable")
	}
	if len(faults) > 0 {
		return fmt.Errorf("%w: %s: %s", ErrBadTable, f.table, strings.Join(faults, "; "))
	}
	f.looked.Store(true)
	return nil
}

// column is one column of a table, as PostgreSQL describes it. A text with a limit
// that any holder fits into counts as one without.
type column struct {
	kind     string
	nullable bool
}

func (c column) String() string {
	if c.nullable {
		return c.kind + " and nullable"
	}
	return c.kind
}

// columns returns none if there is no such table: an error would end the caller's
// transaction.
func columns(ctx context.Context, q querier, table string) (map[string]column, error) {
	rows, err := q.Query(ctx, `SELECT attname::text,
	CASE WHEN atttypid = 'varchar'::regtype AND (atttypmod < 0 OR atttypmod - 4 >= 128) THEN 'text' ELSE format_type(atttypid, atttypmod) END,
	NOT attnotnull
FROM pg_attribute WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped`, table)
	if err != nil {
		return nil, err
	}
	found := make(map[string]column)
	var (
		name string
		c    column
	)
	_, err = pgx.ForEachRow(rows, []any{&name, &c.kind, &c.nullable}, func() error {
		found[name] = c
		return nil
	})
	return found, err
}
