package sqlfence

import (
	"fmt"
	"slices"
)

// Dialect names a kind of database. The zero Dialect is none.
type Dialect int

const (
	// PostgreSQL is PostgreSQL 9.5 or later.
	PostgreSQL Dialect = iota + 1
	// SQLite is SQLite 3.37 or later. Any number of processes can share the
	// file, on a file system whose locks work.
	SQLite
)

// String returns the database's name.
func (d Dialect) String() string {
	switch d {
	case PostgreSQL:
		return "PostgreSQL"
	case SQLite:
		return "SQLite"
	}
	return fmt.Sprintf("Dialect(%d)", int(d))
}

// dialect is what the databases differ in. Errors are told apart without their
// drivers' types, because importing a driver chooses it for the user.
type dialect struct {
	create string // makes the table of marks if it does not exist; %s is its name
	read   string // selects token and holder of one scope
	// raise writes the mark for scope, token and holder, and returns a row if
	// and only if the token was not refused. It writes a new version of the row
	// in every case it passes; see the package's doc for why.
	raise string

	// transient: nothing was applied, and the same can succeed when tried again.
	transient func(error) bool
	// rolledBack: the error of a commit, if not transient, still proves that
	// nothing was applied.
	rolledBack func(error) bool
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
	}
	return dialect{}, false
}

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
