// Package fencelock provides distributed locks over etcd that can be used for
// correctness: each grant carries a fencing token, and the resource refuses
// what comes from a holder that was superseded.
//
// # What a lock in etcd is
//
// etcd's record names at most one holder at a time. That is a statement about a
// record, not about the world: a holder can be paused, cut off, or late, and act
// after it lost the lock. With the token checked at the resource, at most one
// actor can successfully affect the resource.
//
// So the package does three things. The grant: an atomic, first-in-first-out
// acquire on an etcd lease, and a token that strictly rises from grant to grant.
// The watchdog: the holder's context is cancelled before etcd could give the
// lock to another, counted from when the last answered renewal was sent, on a
// clock that counts suspended time. The fence: parts that check the token where
// the effect lands.
//
// # Correctness or efficiency
//
// Ask what happens if two callbacks run at once, and say so with the call:
//
//   - Corruption, a double spend, a lost update: [Locker.Do]. The callback gets a
//     context and a [Token], and must have the token checked at the resource. A
//     token that goes nowhere is warned about; see [RequireTokenUse].
//   - Wasted work with the same result: [Locker.DoAdvisory]. The callback gets a
//     context only.
//
// Both of one name exclude each other. [Locker.Lead] is Do for work that never
// ends; [Locker.Acquire] and [Locker.TryAcquire] are for where a callback does
// not fit.
//
// # At the resource
//
// Every fence keeps one rule, atomically with the effect: refuse if there is no
// token, if it is below the highest seen, or if it equals the highest with
// another holder; else it becomes the highest, and the effect is applied.
// [Token.IsOwner] is the fence for a Txn in the same etcd, [Fence] for memory,
// and package sqlfence for a database. A token is a SQL argument as it is, and
// travels as text with [Token.MarshalText] and [ParseToken].
//
// A holder that reads before it writes must raise the mark before its first
// read, or a late write of its predecessor can land in between and be
// overwritten: Advance does that. A fence orders holders, not one holder's own
// messages: do not send the next effect while a copy of the last may still be
// under way.
//
// # What is not promised
//
//   - That a holder which ignores its context stops.
//   - That an effect nobody fences is exclusive: an e-mail, a call to a third
//     party.
//   - That tokens stay ordered if etcd is restored from a snapshot without
//     --bump-revision; see [ErrTokenRegression].
//   - That the context ends before the next grant if somebody else deletes the
//     lock's key, revokes the lease or closes an adopted session (it ends soon
//     after), if a hypervisor stops every clock of the machine, or if a deposed
//     leader of etcd revokes a live lease: servers older than 3.4.31 and 3.5.13 do
//     that, and even 3.7.3 can in the moment in which the process of a leader is
//     continued that had been stopped until another was elected.
//
// In all of these but the second the fence still holds.
//
// # Clocks
//
// No clock is compared with another machine's. What is assumed is that this
// machine measures the length of a TTL as etcd's leader does, within the margin
// ([WithMargin]), and that its clock does not stand still. Elapsed time is the
// larger of Go's monotonic clock and CLOCK_BOOTTIME, which goes on in a suspend,
// on Linux, and of monotonic and wall clock elsewhere.
//
// # Locks share a lease
//
// A [Locker] has one lease, and its locks are lost together when it is: by
// expiry, by a revoke, or because etcd withdrew the permission for one name's
// keys. Work that must not share that fate gets a Locker of its own. Nested locks
// of several names should be taken in sorted order; losing the outer one ends
// the inner one's context.
//
// # Moving over from etcd's own locks
//
// The keys are laid out as those of concurrency.Mutex, etcdctl lock and the
// v3lock service are: <prefix><name>/<lease>…, ordered by creation revision. For
// a name that [net/url.PathEscape] leaves unchanged they and fencelock exclude
// each other on one queue, so a fleet can be moved over one process at a time:
// give the Mutex the prefix and name joined.
package fencelock
