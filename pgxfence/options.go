package pgxfence

import (
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/fencelock/fencelock"
)

const (
	defaultTable = "fencelock_marks" // sqlfence's

	// maxIdentifier is PostgreSQL's limit. It cuts a longer name silently, so
	// that two tables became one.
	maxIdentifier = 63
)

// Option configures a [Fence]; see [New].
type Option func(*Fence) error

// WithTable sets the name of the table of marks, "fencelock_marks" by default:
// one identifier, or two joined by a dot for a table in a schema. Each has 1 to
// 63 lower-case letters, digits and underscores and does not start with a digit.
// Whoever writes what a lock protects must use the same table.
func WithTable(name string) Option {
	return func(f *Fence) error {
		parts := strings.Split(name, ".")
		for _, part := range parts {
			if len(parts) > 2 || !isIdentifier(part) {
				return fmt.Errorf("%w: WithTable(%.128q) is not an identifier, or two joined by a dot, "+
					"of 1 to %d lower-case letters, digits and underscores", fencelock.ErrInvalidOption, name, maxIdentifier)
			}
		}
		f.table = pgx.Identifier(parts).Sanitize()
		return nil
	}
}

func isIdentifier(s string) bool {
	if s == "" || len(s) > maxIdentifier || '0' <= s[0] && s[0] <= '9' {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '_'
	})
}

// WithScope binds the fence to the lock of that name: a token of any other lock is
// refused with [fencelock.ErrScope], before a request is sent. Without it a
// fence keeps a mark for each lock whose token it is given, and cannot tell that a
// token is of a lock that does not guard the data. A bad name is
// [fencelock.ErrInvalidName].
func WithScope(name string) Option {
	return func(f *Fence) error {
		if err := checkName(name); err != nil {
			return err
		}
		f.scope = name
		return nil
	}
}

// WithHooks sets what is called when a token was refused; none by default. Only
// TokenRejected is called, after the refused transaction was rolled back.
func WithHooks(hooks fencelock.Hooks) Option {
	return func(f *Fence) error {
		f.hooks = hooks
		return nil
	}
}

// WithTxOptions sets how transactions are begun, by default with the database's
// default isolation level. Every level keeps the fence's promise; the stricter ones
// only make the callback run again more often. ReadOnly is an error: raising the
// mark is a write.
func WithTxOptions(opts pgx.TxOptions) Option {
	return func(f *Fence) error {
		if opts.AccessMode == pgx.ReadOnly {
			return fmt.Errorf("%w: WithTxOptions with pgx.ReadOnly; raising the mark is a write", fencelock.ErrInvalidOption)
		}
		f.txOptions = opts
		return nil
	}
}
