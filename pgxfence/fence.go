package pgxfence

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"runtime/debug"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencelock/fencelock"
)

// DB is what a fence needs of a database. [github.com/jackc/pgx/v5/pgxpool.Pool]
// has it, and so has [pgx.Conn], which is for one goroutine at a time.
type DB interface {
	BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error)
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Fence applies effects to one database and refuses stale tokens. It keeps the
// rule of every fence: a token below the highest seen of its lock, or equal to
// it but of another holder, is refused; any other becomes the highest, in one
// transaction with the effect.
//
// It is made by [New]. Its methods can be called from any goroutine if those of
// its DB can.
type Fence struct {
	db        DB
	table     string // as it stands in a statement
	scope     string // the only lock, empty for any
	txOptions pgx.TxOptions
	hooks     fencelock.Hooks

	create, read, raise string

	looked atomic.Bool // at the table's columns, and they are good
}

// New returns a fence for db, which it does not close. The table of marks need not
// exist yet. If it does, and db can be reached within 5 s, New looks at its columns,
// and returns an error that is [ErrBadTable] if they cannot hold marks; if not, the
// first call that uses the table does. A nil db and a bad option are errors that wrap
// [fencelock.ErrInvalidOption], found before a request is sent.
func New(db DB, opts ...Option) (*Fence, error) {
	if db == nil || reflect.ValueOf(db).Kind() == reflect.Pointer && reflect.ValueOf(db).IsNil() {
		return nil, fmt.Errorf("%w: pgxfence.New of a nil database", fencelock.ErrInvalidOption)
	}
	f := &Fence{db: db, table: pgx.Identifier{defaultTable}.Sanitize()}
	for _, opt := range opts {
		if opt == nil {
			return nil, fmt.Errorf("%w: a nil option", fencelock.ErrInvalidOption)
		}
		if err := opt(f); err != nil {
			return nil, err
		}
	}
	f.create = fmt.Sprintf(createMarks, f.table)
	f.read = fmt.Sprintf(readMark, f.table)
	f.raise = fmt.Sprintf(raiseMark, f.table)

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
	_, err := f.db.Exec(ctx, f.create)
	if raced(err) {
		_, err = f.db.Exec(ctx, f.create)
	}
	if err != nil {
		return fmt.Errorf("pgxfence: cannot create the table of marks: %w", because(ctx, err))
	}
	return f.look(ctx, f.db)
}

// Tx runs fn in a transaction in which token was checked and became the mark,
// and commits it. Everything fn reads through tx contains what earlier holders
// committed, and nothing of theirs is committed after it. fn must work with tx
// only, leave committing and rolling back to Tx, and not use this fence.
//
// fn may run more than once, up to eight times: a serialization failure or a
// deadlock is tried again with the same token, in a new transaction; what the run
// before did in the database is undone, what it did elsewhere is not. The wait for
// the mark is bounded by ctx alone. Tx returns:
//
//   - nil: effect and mark are committed;
//   - [fencelock.ErrNoToken], [fencelock.ErrScope]: the token is zero, or not of
//     the lock of [WithScope]; no request was sent;
//   - a [*fencelock.StaleError]: the token was refused; fn did not run;
//   - what fn returned: all of it is rolled back, also the mark, which is as
//     high as before. [Fence.Advance] raises it for good;
//   - [ErrUnknownOutcome]: the commit got no clear answer;
//   - [ErrTransactionEnded], joined with what fn returned: fn had ended the
//     transaction by a statement;
//   - [ErrNoTable], [ErrBadTable], [fencelock.ErrInvalidOption] for a nil fn, ctx's error and
//     cause, or what the database said: nothing was applied.
//
// If fn panics or calls [runtime.Goexit] the transaction is rolled back.
func (f *Fence) Tx(ctx context.Context, token fencelock.Token, fn func(tx pgx.Tx) error) error {
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
	err := repeat(ctx, func() (ran bool, err error) {
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
	return f.Tx(ctx, token, func(pgx.Tx) error { return nil })
}

// Check refuses a stale token, and makes any other the mark, in a transaction the
// caller began and will commit. It returns nil, [fencelock.ErrNoToken],
// [fencelock.ErrScope], a [*fencelock.StaleError], [ErrNoTable], [ErrBadTable] or
// what the database said; after any error the caller must roll back.
//
// Call it before anything else in the transaction. Under REPEATABLE READ and
// SERIALIZABLE the first statement decides what the transaction sees, so reads made
// before Check are not protected by it. A savepoint that is rolled back after a
// Check inside it takes the mark's rise with it: later effects of the transaction
// are then not fenced. Serialization failures are the caller's to repeat.
func (f *Fence) Check(ctx context.Context, tx pgx.Tx, token fencelock.Token) error {
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
	if err := f.look(ctx, f.db); err != nil {
		return fencelock.Token{}, err
	}
	return f.mark(ctx, f.db, name)
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
func (f *Fence) attempt(ctx context.Context, token fencelock.Token, fn func(pgx.Tx) error) (ran bool, err error) {
	if err := f.look(ctx, f.db); err != nil {
		return false, err
	}
	tx, err := f.db.BeginTx(ctx, f.txOptions)
	if err != nil {
		return false, fmt.Errorf("pgxfence: cannot begin a transaction: %w", because(ctx, err))
	}
	// Deferred and without recover, so that Goexit is covered and a panic keeps
	// its stack. After a commit it does nothing. If it fails the connection is
	// gone, and the database rolls back by itself.
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackBound)
		defer cancel()
		_ = tx.Rollback(ctx)
	}()
	if err := f.check(ctx, tx, token); err != nil {
		return false, err
	}
	err = fn(tx)
	// By its methods a Tx is ended for good: what comes after is an error.
	if over(tx) && !errors.Is(tx.Rollback(ctx), pgx.ErrTxClosed) {
		// The callback ended it, by a statement: what came after is applied, and such a
		// run must not be repeated.
		if err == nil {
			return true, ErrTransactionEnded
		}
		return true, fmt.Errorf("%w: %w", ErrTransactionEnded, err)
	}
	if err != nil {
		return true, err
	}
	return true, f.commit(ctx, tx)
}

// over reports whether the server is in no transaction any more, although tx is not
// ended. The server tells with each answer.
func over(tx pgx.Tx) bool {
	conn := tx.Conn()
	return conn != nil && !conn.IsClosed() && conn.PgConn().TxStatus() == 'I'
}

// rollbackBound bounds a rollback, which must be tried when ctx has ended.
const rollbackBound = 5 * time.Second

func (f *Fence) check(ctx context.Context, tx pgx.Tx, token fencelock.Token) error {
	var (
		revision int64
		holder   string
	)
	err := tx.QueryRow(ctx, f.raise, []byte(token.Name()), token.Revision(), token.Holder()).Scan(&revision, &holder)
	switch {
	case err == nil && revision == token.Revision() && holder == token.Holder():
		return nil
	case err == nil:
		return f.notWritten(token.Name(), fmt.Sprintf("%d.%s", revision, holder))
	case !errors.Is(err, pgx.ErrNoRows):
		return f.markError(ctx, token.Name(), err)
	}
	highest, err := f.mark(ctx, tx, token.Name())
	if err != nil {
		return err
	}
	if highest.Compare(token) < 0 || highest.Equal(token) {
		return f.notWritten(token.Name(), highest.String())
	}
	return &fencelock.StaleError{Scope: token.Name(), Presented: token, Highest: highest}
}

// notWritten is the error where the database took the mark and has another one.
func (f *Fence) notWritten(name, mark string) error {
	return fmt.Errorf("pgxfence: the mark of lock %q was not written, it is %s; "+
		"look for a trigger, a rule or row-level security on table %s", name, mark, f.table)
}

// commit commits tx, and tells a refusal from an outcome that is not known.
func (f *Fence) commit(ctx context.Context, tx pgx.Tx) error {
	// Asked here, because the error for an ended context does not say whether
	// anything was sent.
	if err := ended(ctx); err != nil {
		return fmt.Errorf("pgxfence: nothing was applied: the context ended before the commit: %w", err)
	}
	// pgx would not send the commit, and its error would not say so: what
	// pgconn.SafeToRetry says of it is true of a commit whose reply was lost, too.
	if conn := tx.Conn(); conn != nil && conn.PgConn().IsBusy() {
		return errors.New("pgxfence: nothing was applied: the rows of a query are still open; read them to their end, or close them, in the callback")
	}
	err := tx.Commit(ctx)
	switch {
	case err == nil:
		return nil
	case rolledBack(err):
		return fmt.Errorf("pgxfence: nothing was applied: the commit was refused: %w", err)
	case errors.Is(err, pgx.ErrTxClosed):
		return fmt.Errorf("%w: the callback ended the transaction itself, which it must leave to Tx: %w", ErrUnknownOutcome, err)
	}
	return fmt.Errorf("%w: %w", ErrUnknownOutcome, because(ctx, err))
}

func (f *Fence) mark(ctx context.Context, q querier, name string) (fencelock.Token, error) {
	var (
		revision int64
		holder   string
	)
	err := q.QueryRow(ctx, f.read, []byte(name)).Scan(&revision, &holder)
	if errors.Is(err, pgx.ErrNoRows) {
		return fencelock.Token{}, nil
	}
	if err != nil {
		return fencelock.Token{}, f.markError(ctx, name, err)
	}
	token, err := fencelock.ParseToken(name, strconv.FormatInt(revision, 10)+"."+holder)
	if err != nil {
		return fencelock.Token{}, fmt.Errorf("pgxfence: the mark of lock %q in table %s is damaged: %w", name, f.table, err)
	}
	return token, nil
}

func (f *Fence) markError(ctx context.Context, name string, err error) error {
	if state(err) == "42P01" { // undefined_table
		return fmt.Errorf("%w (%s): %w", ErrNoTable, f.table, err)
	}
	return fmt.Errorf("pgxfence: cannot check the mark of lock %q: %w", name, because(ctx, err))
}

// rejected calls the hook. A panic in it is contained: an observer must not
// turn a refusal into something else.
func (f *Fence) rejected(token fencelock.Token, err error) {
	if f.hooks.TokenRejected == nil {
		return
	}
	defer func() {
		if v := recover(); v != nil {
			slog.Warn("pgxfence: panic in a hook", "panic", v, "stack", string(debug.Stack()))
		}
	}()
	f.hooks.TokenRejected(fencelock.TokenRejectedInfo{Token: token, Err: err})
}

const (
	// maxRuns bounds how often one call of Tx runs its callback.
	maxRuns  = 8
	minPause = time.Millisecond
	maxPause = 32 * time.Millisecond
)

// repeat calls try until it succeeds or fails for a reason that trying again
// does not cure. What fails before the callback ran is repeated until ctx ends:
// it is the wait for the mark, which PostgreSQL ends with a serialization failure
// where another committed meanwhile. The callback's own failures can be of its
// making, so they have a bound.
func repeat(ctx context.Context, try func() (ran bool, err error)) error {
	runs := 0
	for pause := minPause; ; pause = min(2*pause, maxPause) {
		ran, err := try()
		if err == nil || !transient(err) || errors.Is(err, ErrTransactionEnded) {
			return err
		}
		if ran {
			runs++
		}
		if runs == maxRuns {
			return fmt.Errorf("pgxfence: nothing was applied in %d runs of the callback: %w", runs, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("pgxfence: nothing was applied: %w, after %w", ended(ctx), err)
		case <-time.After(pause/2 + rand.N(pause/2)):
		}
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

func errNilContext() error {
	return fmt.Errorf("%w: the context is nil", fencelock.ErrInvalidOption)
}
