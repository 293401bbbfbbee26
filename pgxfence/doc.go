// Package pgxfence is the fence at PostgreSQL for programs that use pgx without
// database/sql: it checks a fencing token and applies the effect in one
// transaction of a [github.com/jackc/pgx/v5/pgxpool.Pool].
//
//	fence, err := pgxfence.New(pool)
//	…
//	err = fence.Tx(ctx, token, func(tx pgx.Tx) error {
//		_, err := tx.Exec(ctx, "UPDATE account SET …")
//		return err
//	})
//
// It keeps the same marks in the same table as package sqlfence does with its
// dialect PostgreSQL, so programs that use the one and the other can share a
// database. What that package's documentation says of the mark, of reads, of
// durability and of waiting holds here word for word:
//
//   - The first statement of every fenced transaction is the check, and writes a
//     new version of the mark's row, also for an equal token. So what the
//     transaction reads contains everything its predecessors committed, at every
//     isolation level.
//   - Reads outside of a fenced transaction have no such promise. Call
//     [Fence.Advance] before the first of them.
//   - The fence orders holders, not one holder's own transactions, and does not see
//     writers that do not go through it.
//   - A fenced transaction waits for the one before it on the same lock until its
//     context ends; the callback must not use the fence again.
//   - Marks are kept by the lock's name alone. Locks of one name in two etcd
//     clusters, or under two prefixes, must not share a table of marks.
package pgxfence
