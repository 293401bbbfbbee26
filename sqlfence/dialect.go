package sqlfence

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// Dialect names a kind of database. The zero Dialect is none.
type Dialect int

const (
	// PostgreSQL is PostgreSQL 9.6 or later.
	PostgreSQL Dialect = iota + 1
	// SQLite is SQLite 3.37 or later. Any number of processes can share the
	// file, on a file system whose locks work.
	SQLite
	// MySQL is MySQL 5.7 or MariaDB 10.2 or later, with InnoDB.
	MySQL
)

// String returns the database's name.
func (d Dialect) String() string {
	switch d {
	case PostgreSQL:
		return "PostgreSQL"
	case SQLite:
		return "SQLite"
	case MySQL:
		return "MySQL"
	}
	return fmt.Sprintf("Dialect(%d)", int(d))
}

// dialect is what the databases differ in. Errors are told apart without their
// drivers' types, because importing a driver chooses it for the user.
type dialect struct {
	quote quote
	names []string // of the default table, with its schema where one is sure

	create string // makes the table of marks if it does not exist; %s is its name
	// read selects token and holder of one scope. In a transaction that has run
	// raise it must find what raise found, and not an older version.
	read string
	// readLocked is read for that, where read itself would not do.
	readLocked string
	// raise writes the mark for scope, token and holder if the token is not to be
	// refused. It writes a new version of the row in every case it passes; see the
	// package's doc for why.
	raise string
	// returns: raise returns token and holder if and only if it wrote them. Otherwise the mark
	// is read to find out: what is reported as the number of rows affected depends
	// on the driver and its settings.
	returns bool
	// savepoints: a transaction can end under its callback, and a commit does not
	// tell. Where it does, ended knows its error.
	savepoints bool

	// commit is run as a statement, before what the driver does to commit, if that
	// has no context.
	commit string

	// faults returns what is wrong with the columns of the table of marks, and how
	// each is mended. It returns nothing if there is no such table.
	faults func(ctx context.Context, q querier, table []string) ([]string, error)

	// transient: nothing was applied, and the same can succeed when tried again.
	transient func(error) bool
	// rolledBack: the error of a commit, if not transient, still proves that
	// nothing was applied.
	rolledBack func(error) bool
	// ended: the transaction had ended before the statement with this error.
	ended func(error) bool
	// ends: a statement that fails so can have ended the transaction.
	ends func(error) bool
	// missingTable: the table named in the statement does not exist.
	missingTable func(error) bool
	// raced: create ran beside another create of the same table.
	raced func(error) bool
}

func (d Dialect) dialect() (dialect, bool) {
	switch d {
	case PostgreSQL:
		return postgreSQL, true
	case SQLite:
		return sqlite, true
	case MySQL:
		return mysql, true
	}
	return dialect{}, false
}

// quote is what stands around an identifier, which can be a reserved word.
type quote string

const (
	doubleQuotes quote = `"`
	backticks    quote = "`"
)

// quoted returns a table's name as it stands in a statement. In lower case, as
// [WithTable] wants it, it is the same name quoted or not, so people need no quotes.
func (q quote) quoted(table []string) string {
	return string(q) + strings.Join(table, string(q+"."+q)) + string(q)
}

func never(error) bool { return false }

// leaf reports whether an error without a cause in err's tree is one match
// wants. Only these have the database's own words; what wraps them can carry a
// lock's name, which is anything.
func leaf(err error, match func(error) bool) bool {
	switch e := err.(type) {
	case nil:
		return false
	case interface{ Unwrap() []error }:
		return slices.ContainsFunc(e.Unwrap(), func(err error) bool { return leaf(err, match) })
	case interface{ Unwrap() error }:
		if cause := e.Unwrap(); cause != nil {
			return leaf(cause, match)
		}
	}
	return match(err)
}
