// Package fencetest checks resources that are fenced with tokens of package
// fencelock, in their own tests.
//
// A fence is a few lines, and most of those that are written by hand pass every test
// their author thought of: they check and then write, keep the mark in the row they
// guard, compare numbers as float64, or forget the mark in a restart. [Run] takes a
// resource as a few functions, a [Resource], and runs it through the rules that a
// fence keeps:
//
//	func TestOrders(t *testing.T) {
//		fencetest.Run(t, func(t *testing.T) fencetest.Resource {
//			orders := newOrders(t) // fresh and empty, closed by t.Cleanup
//			return fencetest.Resource{
//				Write: orders.Put,
//				Read:  orders.Get,
//				…
//			}
//		})
//	}
//
// The rule all others come from: refuse if there is no token, if it is below the
// highest seen, or if it equals the highest and is of another holder; else it becomes
// the highest, and the effect is applied, both in one step, and both equally durable.
//
// # The rules
//
// Each is a subtest of this name, and what follows is what goes wrong without it.
//
//	NewerPasses         the first holder owns the resource for ever
//	StaleRefused        a late holder overwrites what its successor did
//	SameHolderPasses    a holder writes once, and its retry is called stale
//	OtherHolderRefused  two owners of one number pass, after etcd was restored
//	NoTokenRefused      who forgets the token is the one that always passes
//	RefusalNotSticky    a refused request lowers the mark, or locks the holder out
//	ScopeCoversAllKeys  a late holder passes where nobody has written since
//	ScopesIndependent   a lock's rightful holder is refused for that of another
//	ScopeNames          "A" and "a", "a" and "a " or two long names are one lock
//	HolderText          two holders that a collation or a column's length makes one
//	ExactNumbers        neighbours are equal past 2^53, or turn round past 2^31 or at 10
//	RetryPasses         a write cut off in the middle cannot be done again
//	UnknownOutcome      a lost answer is taken for a lost lock
//	ContextEnded        an error says that nothing was done, and it was
//	UpdateFenced        one kind of statement forgets the fence
//	UpdateFails         a holder that stops in the middle has written all the same
//	UpdateReadsInside   what an update read is not what it writes over
//	AdvanceFenced       a late holder's Advance locks its successor out
//	AdvanceBeforeRead   a late write lands between the new holder's read and write
//	DeleteFenced        a late holder deletes what its successor wrote
//	MarkSurvivesDelete  deleting the data deletes the mark
//	MarkSurvivesReopen  a restart lets the late holder in
//	MarkSurvivesExpire  a holder need only be late enough
//	AtomicCheck         a holder stalled between check and effect writes over its successor
//
// A rule whose function the resource does not have is skipped, and says what is not
// proved.
//
// All but AtomicCheck take as long as their calls; the most are some hundreds, in
// ScopeNames and ExactNumbers. AtomicCheck takes two to five seconds where a call takes
// less than a millisecond. It has two races of a second each, which slow calls lengthen
// to some five seconds each, and a pause of 20 calls and 20 ms at each place where it
// stops a call and the successor rightly has to wait. Those are a few dozen in memory,
// and up to two hundred where a call asks its context often, as behind database/sql. So
// a store in memory whose calls take 10 ms each, one after the other, needs 20 seconds,
// and a database whose calls take 2 ms needs 5 to 15.
//
// # What it does not prove
//
// A test that passes shows that nothing was found. Most rules say yes or no; what
// AtomicCheck finds by racing it finds by chance. The chance is overwhelming for a fence
// in memory or behind a connection, on two processors or more. It is small for one whose
// calls the resource's own functions put one after the other, so do not serialize them.
// What only the insert of a new key does wrong is raced for where the resource has
// Delete; without it, it is found if the fence asks its context between the two steps.
//
//   - Durability is what Reopen makes of it. No kit can cut the power: whether the store
//     flushes before it acknowledges, and what a failover loses, is for you to find out.
//   - One process drives the resource. If several will, or it has replicas, have the
//     factory open several handles, as several processes would, and hand the calls to
//     them in turn: a mark that each keeps for itself is found then.
//   - Only what goes through the Resource's functions is looked at. A statement that
//     goes past the fence is not seen.
//   - A fence orders holders, and not one holder's own messages; nothing here asks for
//     more.
//
// # The other side
//
// For the tests of code that takes a lock, [NewLocker] makes a [Locker] that needs no
// etcd.
package fencetest
