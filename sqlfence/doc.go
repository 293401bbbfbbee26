// Package sqlfence is the fence at a SQL database: it checks a fencing token
// and applies the effect in one transaction, through database/sql. PostgreSQL,
// MySQL, MariaDB and SQLite are supported, with any driver.
//
//	fence, err := sqlfence.New(db, sqlfence.PostgreSQL)
//	…
//	err = fence.Tx(ctx, token, func(tx *sql.Tx) error {
//		_, err := tx.ExecContext(ctx, "UPDATE account SET …")
//		return err
//	})
//
// A table of its own, which [Fence.Migrate] creates, holds one mark for each
// lock: the highest token seen. The first statement of every fenced transaction
// is the check, and raises the mark. A token below the mark, or equal to it but
// of another holder, is refused with a [*fencelock.StaleError], and nothing is
// applied. Deleting the protected data never forgets the mark.
//
// Marks are kept by the lock's name alone, which the token brings along. [WithScope]
// binds a fence to the one lock that guards its data. Locks of one name in two etcd
// clusters, or under two prefixes, must not share a table of marks.
//
// # What a transaction may read
//
// That first statement writes a new version of the mark's row also when the
// token is equal. So fenced transactions of one lock follow each other, and what
// one reads contains everything its predecessors committed, under every
// isolation level. (With a mere row lock a REPEATABLE READ transaction can wait
// for its predecessor and then read from a snapshot older than its commit.)
//
// Reads outside of a fenced transaction have no such promise. Call
// [Fence.Advance] before the first of them, with the token that will write.
//
// # What is not promised
//
// A mark is as durable as the database makes a commit. With PostgreSQL's
// synchronous_commit or fsync off, SQLite's synchronous off (or NORMAL in WAL
// mode, at a power cut), or after a replica was promoted that lacks the last
// commits, the highest marks can be forgotten together with the effects, and a
// superseded token pass until its successor comes back.
//
// The fence orders holders, not one holder's own transactions: a late copy of
// its first passes after its second. Writers that do not go through the fence
// are not seen at all. All of them must name the same table: in PostgreSQL an
// unqualified name is looked up in the connection's search_path, and in MySQL in its
// database, so give [WithTable] a schema where that differs between writers. In both a
// session can put a temporary table of that name in front (in PostgreSQL not of a
// name with a schema): let nobody run statements of his own on a fence's connections.
// In SQLite keep marks and data in one file: a commit over several attached ones is
// not atomic in a crash in WAL mode.
//
// # What a callback must not do
//
// It must return the error of every statement that failed, and run none that commits
// by itself. After some failures the database has undone the transaction and goes on
// without one, so that the statements that follow are applied at once, and not
// fenced: in SQLite after an interrupt, on a full disk or by OR ROLLBACK, in MySQL
// after a deadlock. MySQL commits the transaction at every statement that changes the
// schema, and some others. [Fence.Tx] finds that out at the end, and returns
// [ErrTransactionEnded]; but not if the callback goes on and returns the very error that
// ended the transaction later: return it at once. In PostgreSQL only the callback itself can end its
// transaction, by sending COMMIT or ROLLBACK as a text, and that is not found out.
//
// # Rights, and a mark that is too high
//
// Who writes through a fence needs SELECT, INSERT and UPDATE on the table of marks.
// Nobody needs DELETE, and nobody else should have any of these: a token is no
// credential, and whoever presents the largest number locks all others out. Such a mark
// is lowered by hand, with the lock held by nobody who writes:
//
//	UPDATE fencelock_marks SET token = <etcd's revision now> WHERE scope = '<the lock>'
//
// # Waiting
//
// A fenced transaction waits for the one before it on the same lock, and on
// SQLite for every other writer of the file, until its context ends. What the
// database itself bounds, as PostgreSQL's lock_timeout does, ends the wait
// earlier with its error. So the callback must not use the fence of its own
// database again: it would wait for itself.
//
// # SQLite
//
// WAL mode suits a fence best. With a rollback journal SQLite refuses a commit
// while anybody reads, so set a busy_timeout there; without one such a commit
// costs another run of the callback. A driver that does not interrupt the wait of
// busy_timeout when the context ends delays the return by as much. An in-memory
// database is one for each connection: use it with SetMaxOpenConns(1).
//
// # MySQL and MariaDB
//
// Two more statements than elsewhere find out whether the transaction ended under its
// callback, and one whether the token passed, since MySQL has no RETURNING. No
// decision rests on a number of rows, so it does not matter whether the driver counts
// those found or those changed. Drivers give up no wait of their own for a context
// between statements: set their time-out for reads (readTimeout in the DSN) where the
// network can fall silent. Tables of the callback that are not InnoDB's take no part
// in the transaction.
//
// # A token in the row
//
// Who keeps the token in the protected row itself needs no table of marks; see
// [CheckRow] for the statement, and for what it does not protect. For PostgreSQL there
// is a trigger that refuses writes by transactions in which no token was checked, in
// docs/postgres-trigger.sql of this module.
package sqlfence
