package sqlfence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/hook"
)

// Fence applies effects to one database and refuses stale tokens. It keeps the
// rule of every fence: a token below the highest seen of its lock, or equal to
// it but of another holder, is refused; any other becomes the highest, in one
// transaction with the effect.
//
// It is made by [New]. Its methods can be called from any goroutine.
type Fence struct {
	db        *sql.DB
	dialect   dialect
	names     []string // of the table, and of its schema before it
	table     string   // as it stands in a statement
	scope     string   // the only lock, empty for any
	txOptions *sql.TxOptions
	hooks     fencelock.Hooks

	create, read, readLocked, raise string // the dialect's statements, with the table's name

	looked atomic.Bool // at the table's columns, and they are good
}

// New returns a fence for db, which it does not close. The table of marks need not
// exist yet. If it does, and db can be reached within 5 s, New looks at its columns,
// and returns an error that is [ErrBadTable] if they cannot hold marks; if not, the
// first call that uses the table does. A nil db, an unknown dialect and a bad option
// are errors that wrap [fencelock.ErrInvalidOption], found before a request is sent.
func New(db *sql.DB, dialect Dialect, opts ...Option) (*Fence, error) {
	if db == nil {
		return nil, fmt.Errorf("%w: sqlfence.New of a nil *sql.DB", fencelock.ErrInvalidOption)
	}
	d, ok := dialect.dialect()
	if !ok {
		return nil, fmt.Errorf("%w: unknown dialect %v; use sqlfence.PostgreSQL, sqlfence.MySQL or sqlfence.SQLite",
			fencelock.ErrInvalidOption, dialect)
	}
	f := &Fence{db: db, dialect: d, names: d.names}
	for _, opt := range opts {
		if opt == nil {
			return nil, fmt.Errorf("%w: a nil option", fencelock.ErrInvalidOption)
		}
		if err := opt(f); err != nil {
			return nil, err
		}
	}
	f.table = d.quote.quoted(f.names)
	f.create = fmt.Sprintf(d.create, f.table)
	f.read = fmt.Sprintf(d.read, f.table)
	f.readLocked = f.read
	if d.readLocked != "" {
		f.readLocked = fmt.Sprintf(d.readLocked, f.table)
	}
	f.raise = fmt.Sprintf(d.raise, f.table)

	ctx, cancel := context.WithTimeout(context.Background(), lookBound)
	defer cancel()
	if err := f.look(ctx, db); errors.Is(err, ErrBadTable) {
		return nil, err
	}
	return f, nil
}

// DDL returns the statement that creates the table of marks if it does not
// exist, for those who run their own migrations.
func (f *Fence) DDL() string { return f.create }

// Migrate creates the table of marks if it does not exist, by running
// [Fence.DDL]. It can be called at every start and from many processes at once,
// by a user with the right to create tables; PostgreSQL asks for that right also
// where the table exists. A table that exists and cannot hold marks is an error that
// is [ErrBadTable]; it is left as it is.
func (f *Fence) Migrate(ctx context.Context) error {
	if ctx == nil {
		return errNilContext()
	}
	return f.repeat(ctx, func() (bool, error) {
		_, err := f.db.ExecContext(ctx, f.create)
		if f.dialect.raced(err) {
			// The winner has committed by now.
			_, err = f.db.ExecContext(ctx, f.create)
		}
		if err != nil {
			return false, fmt.Errorf("sqlfence: cannot create the table of marks: %w", because(ctx, err))
		}
		return false, f.look(ctx, f.db)
	})
}

// Tx runs fn in a transaction in which token was checked and became the mark,
// and commits it. Everything fn reads through tx contains what earlier holders
// committed, and nothing of theirs is committed after it. fn must work with tx
// only, leave committing and rolling back to Tx, and not use this fence.
//
// fn may run more than once, up to eight times: a serialization failure, a
// deadlock or a busy database is tried again with the same token, in a new
// transaction; what the run before did in the database is undone, what it did
// elsewhere is not. The wait for the mark is bounded by ctx alone. Tx returns:
//
//   - nil: effect and mark are committed;
//   - [fencelock.ErrNoToken], [fencelock.ErrScope]: the token is zero, or not of
//     the lock of [WithScope]; no request was sent;
//   - a [*fencelock.StaleError]: the token was refused; fn did not run;
//   - what fn returned: all of it is rolled back, also the mark, which is as
//     high as before. [Fence.Advance] raises it for good;
//   - [ErrUnknownOutcome]: the commit got no clear answer;
//   - [ErrTransactionEnded], joined with what fn returned: the transaction was over
//     before, and fn had gone on;
//   - [ErrNoTable], [ErrBadTable], [fencelock.ErrInvalidOption] for a nil fn, ctx's error and
//     cause, or what the database said: nothing was applied.
//
// If fn panics or calls [runtime.Goexit] the transaction is rolled back.
func (f *Fence) Tx(ctx context.Context, token fencelock.Token, fn func(tx *sql.Tx) error) error {
	if ctx == nil {
		return errNilContext()
	}
	if fn == nil {
		return fmt.Errorf("%w: the callback is nil", fencelock.ErrInvalidOption)
	}
	if err := f.admit(token); err != nil {
		return err
	}
	refused := false
	err := f.repeat(ctx, func() (ran bool, err error) {
		ran, err = f.attempt(ctx, token, fn)
		// fn can return another fence's refusal; that one is not ours to report.
		refused = !ran && errors.Is(err, fencelock.ErrStale)
		return ran, err
	})
	if refused {
		f.rejected(token, err)
	}
	return err
}

// Advance raises the mark to token without an effect: from its return on
// nothing of an earlier holder is committed. Call it before the first read that
// is not made in [Fence.Tx]. It returns what Tx returns.
func (f *Fence) Advance(ctx context.Context, token fencelock.Token) error {
	return f.Tx(ctx, token, func(*sql.Tx) error { return nil })
}

// Highest returns the mark of the lock called name: the highest token that
// passed and was committed, or the zero Token if there is none. It is for people
// and tests. What it returns can be outdated at once, so it is no check.
func (f *Fence) Highest(ctx context.Context, name string) (fencelock.Token, error) {
	if ctx == nil {
		return fencelock.Token{}, errNilContext()
	}
	if err := checkName(name); err != nil {
		return fencelock.Token{}, err
	}
	var highest fencelock.Token
	err := f.repeat(ctx, func() (ran bool, err error) {
		if err := f.look(ctx, f.db); err != nil {
			return false, err
		}
		highest, err = f.mark(ctx, f.db, f.read, name)
		return false, err
	})
	return highest, err
}

// Check refuses a stale token, and makes any other the mark, in a transaction that
// the caller began on the fence's database, and will commit or roll back. It is for
// code that cannot run in the callback of [Fence.Tx], and leaves to the caller what
// Tx does by itself: to repeat a serialization failure, and to tell a commit that
// was refused from one whose outcome is not known.
//
// Call it before anything else in the transaction. At REPEATABLE READ and
// SERIALIZABLE the first statement fixes what a transaction sees, so reads before
// Check are not protected: what they return can be older than an effect of the
// predecessor. A savepoint that is rolled back after a Check inside it takes the
// mark back, so the rest of the transaction is not fenced; call Check before any
// savepoint. Check returns:
//
//   - nil: the token is the mark, once the caller has committed;
//   - [fencelock.ErrNoToken], [fencelock.ErrScope]: as [Fence.Tx] does;
//   - a [*fencelock.StaleError]: the token was refused;
//   - [ErrNoTable], [ErrBadTable], [fencelock.ErrInvalidOption] for a nil tx, ctx's
//     error and cause, or what the database said.
//
// After an error the caller must roll back. The hook for a refused token is called
// while the transaction is open.
func (f *Fence) Check(ctx context.Context, tx *sql.Tx, token fencelock.Token) error {
	if ctx == nil {
		return errNilContext()
	}
	if tx == nil {
		return fmt.Errorf("%w: the transaction is nil", fencelock.ErrInvalidOption)
	}
	if err := f.admit(token); err != nil {
		return err
	}
	err := f.check(ctx, tx, token)
	if errors.Is(err, fencelock.ErrStale) {
		f.rejected(token, err)
	}
	if err == nil {
		// After the check, whose place is first, and in the transaction: there may be
		// no other connection.
		err = f.look(ctx, tx)
	}
	return err
}

// admit refuses what needs no database.
func (f *Fence) admit(token fencelock.Token) error {
	var err error
	switch {
	case token.IsZero():
		err = fencelock.ErrNoToken
	case f.scope != "" && token.Name() != f.scope:
		err = fmt.Errorf("%w: %q, this fence guards %q", fencelock.ErrScope, token.Name(), f.scope)
	default:
		return nil
	}
	f.rejected(token, err)
	return err
}

// attempt is one transaction of Tx. ran reports whether it came to fn.
func (f *Fence) attempt(ctx context.Context, token fencelock.Token, fn func(*sql.Tx) error) (ran bool, err error) {
	if err := f.look(ctx, f.db); err != nil {
		return false, err
	}
	tx, err := f.db.BeginTx(ctx, f.txOptions)
	if err != nil {
		return false, fmt.Errorf("sqlfence: cannot begin a transaction: %w", because(ctx, err))
	}
	// Deferred and without recover, so that Goexit is covered and a panic keeps
	// its stack. After a commit it does nothing. If it fails the connection is
	// gone, and the database rolls back by itself.
	defer func() { _ = tx.Rollback() }()

	if err := f.check(ctx, tx, token); err != nil {
		return false, err
	}
	if f.dialect.savepoints {
		if _, err := tx.ExecContext(ctx, "SAVEPOINT "+savepoint); err != nil {
			return false, fmt.Errorf("sqlfence: cannot set a savepoint: %w", because(ctx, err))
		}
	}
	if err := fn(tx); err != nil {
		return true, f.failed(ctx, tx, err)
	}
	return true, f.commit(ctx, tx)
}

// failed rolls back what the callback did, and returns its error; with
// [ErrTransactionEnded] in front if there was nothing to roll back any more, and the
// error does not explain it: then the callback had gone on, and what it did is applied.
// Such a run must not be repeated.
func (f *Fence) failed(ctx context.Context, tx *sql.Tx, err error) error {
	if f.dialect.ends(err) {
		return err // it came back at once, as far as can be told
	}
	var over error
	if f.dialect.savepoints {
		_, over = tx.ExecContext(ctx, "ROLLBACK TO SAVEPOINT "+savepoint)
	} else {
		over = tx.Rollback()
	}
	if over != nil && f.dialect.ended(over) {
		return fmt.Errorf("%w: %w", ErrTransactionEnded, err)
	}
	return err
}

// savepoint is there until the transaction ends.
const savepoint = "fencelock_tx"

// check refuses a stale token, and makes any other the mark. It must be the
// transaction's first statement.
func (f *Fence) check(ctx context.Context, tx *sql.Tx, token fencelock.Token) error {
	name := token.Name()
	if f.dialect.returns {
		var (
			revision int64
			holder   string
		)
		err := tx.QueryRowContext(ctx, f.raise, []byte(name), token.Revision(), token.Holder()).Scan(&revision, &holder)
		switch {
		case err == nil && revision == token.Revision() && holder == token.Holder():
			return nil
		case err == nil:
			return f.notWritten(name, fmt.Sprintf("%d.%s", revision, holder))
		case !errors.Is(err, sql.ErrNoRows):
			return f.markError(ctx, name, err)
		}
	} else if _, err := tx.ExecContext(ctx, f.raise, []byte(name), token.Revision(), token.Holder()); err != nil {
		return f.markError(ctx, name, err)
	}
	highest, err := f.mark(ctx, tx, f.readLocked, name)
	switch {
	case err != nil:
		return err
	case !f.dialect.returns && highest.Equal(token):
		return nil
	case highest.Compare(token) < 0 || highest.Equal(token):
		return f.notWritten(name, highest.String())
	}
	return &fencelock.StaleError{Scope: name, Presented: token, Highest: highest}
}

// notWritten is the error where the database took the mark and has another one.
func (f *Fence) notWritten(name, mark string) error {
	return fmt.Errorf("sqlfence: the mark of lock %q was not written, it is %s; "+
		"look for a trigger, a rule or row-level security on table %s", name, mark, f.table)
}

// commit commits tx, and tells a refusal from an outcome that is not known.
func (f *Fence) commit(ctx context.Context, tx *sql.Tx) error {
	// Asked here, because Commit's error for an ended context does not say
	// whether anything was sent.
	if err := ended(ctx); err != nil {
		return fmt.Errorf("sqlfence: nothing was applied: the context ended before the commit: %w", err)
	}
	if f.dialect.savepoints {
		_, err := tx.ExecContext(ctx, "RELEASE SAVEPOINT "+savepoint)
		switch {
		case err == nil:
		case f.dialect.ended(err):
			return fmt.Errorf("%w: %w", ErrTransactionEnded, err)
		case errors.Is(err, sql.ErrTxDone) && ctx.Err() == nil:
			return endedByCallback(err)
		default:
			return fmt.Errorf("sqlfence: nothing was applied: the transaction cannot be committed: %w", because(ctx, err))
		}
	}
	var err error
	if f.dialect.commit != "" {
		if _, err = tx.ExecContext(ctx, f.dialect.commit); err == nil {
			_ = tx.Commit() // of nothing: it gives the connection back
			return nil
		}
	} else {
		err = tx.Commit()
	}
	switch {
	case err == nil:
		return nil
	case f.dialect.ended(err):
		return fmt.Errorf("%w: %w", ErrTransactionEnded, err)
	case f.dialect.transient(err), f.dialect.rolledBack(err):
		return fmt.Errorf("sqlfence: nothing was applied: the commit was refused: %w", err)
	case errors.Is(err, sql.ErrTxDone) && ctx.Err() == nil:
		return endedByCallback(err)
	}
	return fmt.Errorf("%w: %w", ErrUnknownOutcome, because(ctx, err))
}

func endedByCallback(err error) error {
	return fmt.Errorf("%w: the callback ended the transaction itself, which it must leave to Tx: %w", ErrUnknownOutcome, err)
}

// mark reads the mark of the lock called name with query, the zero Token if it has
// none.
func (f *Fence) mark(ctx context.Context, q querier, query, name string) (fencelock.Token, error) {
	var (
		revision int64
		holder   string
	)
	err := q.QueryRowContext(ctx, query, []byte(name)).Scan(&revision, &holder)
	if errors.Is(err, sql.ErrNoRows) {
		return fencelock.Token{}, nil
	}
	if err != nil {
		return fencelock.Token{}, f.markError(ctx, name, err)
	}
	token, err := fencelock.ParseToken(name, strconv.FormatInt(revision, 10)+"."+holder)
	if err != nil {
		return fencelock.Token{}, fmt.Errorf("sqlfence: the mark of lock %q in table %s is damaged: %w", name, f.table, err)
	}
	return token, nil
}

func (f *Fence) markError(ctx context.Context, name string, err error) error {
	if f.dialect.missingTable(err) {
		return fmt.Errorf("%w (%s): %w", ErrNoTable, f.table, err)
	}
	return fmt.Errorf("sqlfence: cannot check the mark of lock %q: %w", name, because(ctx, err))
}

// rejected calls the hook.
func (f *Fence) rejected(token fencelock.Token, err error) {
	hook.Call(nil, f.hooks.TokenRejected, fencelock.TokenRejectedInfo{Token: token, Err: err})
}

func errNilContext() error {
	return fmt.Errorf("%w: the context is nil", fencelock.ErrInvalidOption)
}
