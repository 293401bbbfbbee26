package sqlfence

import (
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/fencelock/fencelock"
)

const (
	defaultTable = "fencelock_marks"

	// maxIdentifier is PostgreSQL's limit, and below that of the others.
	// PostgreSQL cuts a longer name silently, so that two tables became one.
	maxIdentifier = 63
)

// Option configures a [Fence]; see [New].
type Option func(*Fence) error

// WithTable sets the name of the table of marks, "fencelock_marks" by default:
// one identifier, or two joined by a dot for a table in a schema; in SQLite the schema
// is main if none is named. Each has 1 to
// 63 lower-case letters, digits and underscores and does not start with a digit.
//
// A lock has one mark for each table. Whoever writes what a lock protects must
// use the same one.
func WithTable(name string) Option {
	return func(f *Fence) error {
		parts := strings.Split(name, ".")
		if len(parts) > 2 {
			return badTable(name)
		}
		for _, part := range parts {
			if !isIdentifier(part) {
				return badTable(name)
			}
		}
		f.names = parts
		if len(parts) == 1 && len(f.dialect.names) == 2 {
			f.names = []string{f.dialect.names[0], parts[0]}
		}
		return nil
	}
}

func badTable(name string) error {
	const most = 2*maxIdentifier + 1
	if len(name) > most {
		name = name[:most] + "…"
	}
	return fmt.Errorf("%w: WithTable(%q) is not an identifier, or two joined by a dot, "+
		"of 1 to %d lower-case letters, digits and underscores", fencelock.ErrInvalidOption, name, maxIdentifier)
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
// refused with [fencelock.ErrScope], before a request is sent. Without it a fence
// keeps a mark for each lock whose token it is given, and cannot tell that a token is
// of a lock that does not guard the data. A bad name is [fencelock.ErrInvalidName].
func WithScope(name string) Option {
	return func(f *Fence) error {
		if err := checkName(name); err != nil {
			return err
		}
		f.scope = name
		return nil
	}
}

// checkName finds what the root package says of a name.
func checkName(name string) error {
	// An empty text is never a token; the name is looked at first.
	if _, err := fencelock.ParseToken(name, ""); errors.Is(err, fencelock.ErrInvalidName) {
		return err
	}
	return nil
}

// WithHooks sets what is called when a token was refused; none by default. Only
// TokenRejected is called, after the refused transaction was rolled back.
func WithHooks(hooks fencelock.Hooks) Option {
	return func(f *Fence) error {
		f.hooks = hooks
		return nil
	}
}

// WithTxOptions sets how transactions are begun, by default with nil, which is
// the database's default isolation level. Every level keeps the fence's promise;
// the stricter ones only make the callback run again more often. ReadOnly is an
// error: raising the mark is a write.
func WithTxOptions(opts *sql.TxOptions) Option {
	return func(f *Fence) error {
		if opts == nil {
			f.txOptions = nil
			return nil
		}
		if opts.ReadOnly {
			return fmt.Errorf("%w: WithTxOptions with ReadOnly; raising the mark is a write", fencelock.ErrInvalidOption)
		}
		own := *opts
		f.txOptions = &own
		return nil
	}
}
