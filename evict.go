package fencelock

import (
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Evict takes the lock name away from the acquisition that holder names, so that the
// next in the queue is granted it: an operator's way out when a holder hangs and goes
// on renewing. The evicted holder's context ends within a second of it, with reason
// [LostDeleted]; if it does not stop then, its tokens are refused at every fence that
// the next holder has been to. Its process, its lease and its other locks are left
// alone, and it may queue again.
//
// holder is from [Locker.Inspect], [Locker.List], a [*HeldError] or [ParseToken]. Who
// holds the lock is read, and the key is deleted in one Txn if it is that token's: a
// holder that came meanwhile is never hit. The key of another kind of client, and
// one without a lease that blocks the queue, can be evicted too.
//
// It returns nil if etcd confirmed it. Otherwise the error is
//
//   - [ErrInvalidOption], [ErrInvalidName], [ErrNoToken] for a zero holder, [ErrScope]
//     for another lock's, or [ErrClosed]: nothing was sent.
//   - a [*HeldError] that names the holder, if that is not the one given; so it is for
//     a token of a waiter's. [ErrNotHeld], if nobody has the lock. In both nobody was
//     evicted, with one exception, of which the text speaks: if the one given had the
//     lock when it was read, and not any more a moment later, that can be this call's
//     doing, since etcd's client can send a request again whose answer it did not get.
//   - [ErrUnconfirmed], if the deletion got no clear answer: the holder may be evicted,
//     or may yet be. Repeat it with the same token; that cannot hit another holder.
//   - else what etcd said to the reading or the deleting, or the context's error:
//     nobody was evicted.
func (l *Locker) Evict(ctx context.Context, name string, holder Token) error {
	if err := checkName(name); err != nil {
		return err
	}
	switch {
	case holder.IsZero():
		return ErrNoToken
	case holder.name != name:
		return fmt.Errorf("%w: %s, to be evicted from lock %s", ErrScope, quote(holder.name), quote(name))
	}
	doing := fmt.Sprintf("evicting token %s from lock %q", holder, name)
	if err := l.canRead(ctx, doing); err != nil {
		return err
	}
	queue := queuePrefix(l.cfg.prefix, name)
	resp, err := l.client.Get(ctx, queue, clientv3.WithFirstCreate()...)
	if err != nil {
		return fmt.Errorf("fencelock: %s: nobody was evicted: %w", doing, deniedAt("reading", err, queue))
	}
	if err := checkHolder(name, queue, holder, resp, "nobody was evicted"); err != nil {
		return err
	}
	// A key at the head of its queue stays there for as long as it exists, because
	// later ones have larger creation revisions. So this compare says that it still
	// is the holder's.
	key := string(resp.Kvs[0].Key)
	txn, err := l.client.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(key), "=", holder.rev)).
		Then(clientv3.OpDelete(key)).
		Else(clientv3.OpGet(queue, clientv3.WithFirstCreate()...)).
		Commit()
	switch {
	case err == nil && txn.Succeeded:
		return nil
	case err == nil:
		// It was there a moment ago. "Nobody was evicted" would be a guess: clientv3
		// sends a Txn again that was answered with the status Canceled or
		// DeadlineExceeded, as by a proxy that gives up, and does not tell; the
		// first may have been applied (client/v3 3.7.3, retry_interceptor.go).
		return checkHolder(name, queue, holder, (*clientv3.GetResponse)(txn.Responses[0].GetResponseRange()),
			"it was the holder's a moment ago, which gave the lock back, lost it, or was evicted by this call without an answer")
	case refused(err):
		return fmt.Errorf("fencelock: %s: nobody was evicted: %w", doing, deniedAt("deleting", err, queue))
	}
	return fmt.Errorf("%w: %s: it may have happened, or yet happen; look who holds the lock, and repeat it, "+
		"which cannot hit another holder: %w", ErrUnconfirmed, doing, err)
}

// checkHolder returns nil if the head of the queue that was read is the holder's, and
// else an error that says what that means for whom the token names.
func checkHolder(name, queue string, holder Token, head *clientv3.GetResponse, means string) error {
	if len(head.Kvs) == 0 {
		return fmt.Errorf("%w: lock %q; token %s: %s", ErrNotHeld, name, holder, means)
	}
	claim := claimOf(name, queue, head.Kvs[0])
	if !claim.Token.Equal(holder) {
		return fmt.Errorf("fencelock: token %s is not the holder's: %s: %w",
			holder, means, &HeldError{Name: name, Holder: claim})
	}
	return nil
}
