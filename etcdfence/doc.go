// Package etcdfence is the fence at an etcd: it checks a fencing token and applies
// the effect in one transaction of etcd. It need not be the etcd that the locks are
// in.
//
//	fence, err := etcdfence.New(client)
//	…
//	resp, err := fence.Txn(ctx, token).
//		Then(clientv3.OpPut("config/current", version)).
//		Commit()
//
// A key of its own, "fencelock-marks/" and the lock's name, holds the mark of a
// lock: the highest token seen. A token below it, or equal to it but of another
// holder, is refused with a [*fencelock.StaleError], and nothing is applied. The mark
// has no lease, so it outlives the lock, its holders, and the protected keys.
//
// # Stale, or only different
//
// A transaction's own compares are not the fence's. If the token passes and they
// fail, that is no error: Succeeded is false, Else is applied, and the mark is raised.
//
// # The same etcd as the locks
//
// Where effect and lock are in one etcd, reached through the same (possibly
// namespaced) client, and the holder itself writes, [fencelock.Token.IsOwner]
// suffices, and needs no mark:
//
//	client.Txn(ctx).If(token.IsOwner()).Then(…).Commit()
//
// That is applied only while the record names this holder; the fence also lets a
// holder finish that lost the lock while no newer one has come. Use the fence, and
// not IsOwner, for a token that came from another process, since a parsed token knows
// no key; for an etcd that is not the locks'; and where staleness must be told from
// other compares. The two do not see each other: all who write the same keys must use
// the same one.
//
// # What is not promised
//
// The fence orders holders, not one holder's own transactions: a late copy of its
// first passes after its second. Who writes without the fence is not seen at all, and
// neither is a mark that somebody deleted or put: with authentication on, leave the
// keys under the prefix of the marks to those who write through the fence. They need
// to read and to write them. What no fence wrote there is refused with
// [ErrDamagedMark], if it does not happen to lie, byte by byte, between "0…01" and the
// token.
//
// Marks are kept by the lock's name alone. Locks of one name in two etcd clusters, or
// under two prefixes, must not share the prefix of their marks; see [WithPrefix].
//
// An etcd that is restored from a snapshot forgets the marks since then together with
// the effects, and a superseded token passes until its successor comes back.
//
// Reads outside of a fenced transaction can miss what an earlier holder is still going
// to write. Call [Fence.Advance] before the first of them, with the token that will
// write.
//
// # Operation
//
// A transaction takes one round trip and one commit, as without the fence, and leaves
// one more version of a key of some 80 bytes until the next compaction. While etcd has
// the NOSPACE alarm it takes no fenced transaction, not even one that only deletes.
// A fenced transaction nests others, which etcd has had since version 3.3.
package etcdfence
