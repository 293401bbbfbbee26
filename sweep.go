package fencelock

import (
	"context"
	"strconv"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock/internal/clock"
)

// sweepIfDue looks for orphans on the lease once a TTL, while it is renewed: keys
// that etcd has and the Locker does not know. A restore of etcd brings them back, of
// locks that were released since the snapshot; renewing the lease would keep
// them for ever, and nobody could have those locks again, the Locker itself no
// more than others. l.mu must be held.
//
// Nothing tells a client of a restore: cluster id, raft term and, with a bump, the
// order of revisions can all be as before. So this is not done on suspicion.
func (le *lease) sweepIfDue() {
	if le.adopted || clock.Since(le.swept) < le.ttl() {
		return // on a session's lease others have keys too
	}
	le.swept = clock.Now()
	le.l.spawnLocked(func() {
		ctx, cancel := context.WithTimeout(le.l.ctx, attemptBound)
		defer cancel()
		le.sweep(ctx)
	})
}

// sweep is one look. What fails is done by the next.
func (le *lease) sweep(ctx context.Context) {
	resp, err := le.l.client.TimeToLive(ctx, le.id, clientv3.WithAttachedKeys())
	if err != nil {
		return
	}
	for _, key := range le.unknown(resp.Keys) {
		// The slot may be in use by now. Whoever takes it does so before sending
		// the key, so if that is what was found, it is known.
		still := func() bool { return len(le.unknown([][]byte{[]byte(key)})) > 0 }
		if _, err := le.removeOrphan(ctx, key, still); err != nil {
			return
		}
	}
}

// removeOrphan deletes a key on a lease of the Locker's own, as it is now, unless
// still says, when it was read, that it is no orphan. It reports whether it was and is
// gone.
//
// By creation revision, as every deletion: this one can arrive late too.
func (le *lease) removeOrphan(ctx context.Context, key string, still func() bool) (gone bool, err error) {
	l := le.l
	// Nobody but the Locker puts such keys on its lease.
	if le.adopted || !strings.HasPrefix(key, l.cfg.prefix) ||
		!strings.Contains(key, "/"+strconv.FormatInt(int64(le.id), 16)+"-") {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, attemptBound)
	defer cancel()
	resp, err := l.client.Get(ctx, key)
	if err != nil {
		return false, answerless(ctx, err, "reading an orphan")
	}
	if len(resp.Kvs) == 0 || resp.Kvs[0].Lease != int64(le.id) || !still() {
		return false, nil
	}
	rev := resp.Kvs[0].CreateRevision
	deleted, err := l.client.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(key), "=", rev)).
		Then(clientv3.OpDelete(key)).
		Commit()
	if err != nil {
		return false, answerless(ctx, err, "deleting an orphan")
	}
	if deleted.Succeeded {
		l.cfg.log.Warn("fencelock: deleted a key that was this Locker's and that it had given back; if etcd was restored "+
			"from a snapshot without --bump-revision, fencing tokens have gone backwards", "key", key, "revision", rev)
	}
	return true, nil
}

// unknown returns those of the keys that no acquisition has the slot of, unless
// the lease is over, with all its keys.
func (le *lease) unknown(keys [][]byte) (unknown []string) {
	le.l.mu.Lock()
	defer le.l.mu.Unlock()
	if le.state != leaseLive && le.state != leaseRetired {
		return nil
	}
	known := make(map[string]struct{}, len(le.entries))
	for e := range le.entries {
		known[e.key] = struct{}{}
	}
	for _, k := range keys {
		if _, ok := known[string(k)]; !ok {
			unknown = append(unknown, string(k))
		}
	}
	return unknown
}
