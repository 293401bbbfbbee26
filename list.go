package fencelock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"net/url"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// listPage is how many keys a List reads at a time. A value of ours is well below a
// kilobyte; one that something else wrote can have etcd's 1.5 MiB.
const listPage = 256

// List returns what etcd's record says of every lock under the Locker's prefix that
// is held or waited for, in the order of the keys, which is that of the escaped
// names. Nothing is sent before the sequence is ranged over, and each range over it
// is a listing of its own.
//
// All of a listing is of one revision, so no lock is missing or twice because others
// came and went meanwhile; Remaining alone is as of when it was read. It reads 256 keys
// at a time, and asks once in each such page for the time left of every lease in it.
// It keeps one page and the queue that it is about to yield in memory, so what it
// takes grows with the longest queue and not with the number of locks. As for
// [Locker.Inspect], the result is for people and dashboards.
//
// A key without a lease stands in its queue as [Locker.Inspect] shows it, with
// Remaining zero. Keys that are in no lock's queue are passed over: one that is not
// below a name, or whose name is not what [url.PathEscape] makes of a valid one, so
// that no Locker could ever contend for it.
//
// An error is the last thing yielded, with a zero Queue; the queues before it are
// true of their revision. It is [ErrInvalidOption], [ErrClosed], or wraps what etcd
// said or the context's error. Should etcd compact the listing's revision away while
// the caller is at it, which takes a listing that runs for longer than the history
// that etcd keeps, it wraps etcd's ErrCompacted: list again, and be quicker about
// each queue.
func (l *Locker) List(ctx context.Context) iter.Seq2[Queue, error] {
	return func(yield func(Queue, error) bool) {
		ls := listing{l: l, ctx: ctx, yield: yield}
		if err := ls.run(); err != nil && !errors.Is(err, errListEnough) {
			yield(Queue{}, err)
		}
	}
}

// errListEnough ends a listing whose caller wants no more.
var errListEnough = errors.New("no more is asked for")

// listing is one range over a List.
type listing struct {
	l     *Locker
	ctx   context.Context
	yield func(Queue, error) bool

	segment string // of the queue being gathered: its name, escaped
	claims  []Claim
}

func (ls *listing) run() error {
	prefix := ls.l.cfg.prefix
	from, end := prefix, clientv3.GetPrefixRangeEnd(prefix)
	var rev int64 // 0: the newest, of the first page
	for {
		if err := ls.l.canRead(ls.ctx, "listing locks"); err != nil {
			return err
		}
		resp, err := ls.l.client.Get(ls.ctx, from, clientv3.WithRange(end), clientv3.WithLimit(listPage), clientv3.WithRev(rev))
		if errors.Is(err, rpctypes.ErrCompacted) {
			return fmt.Errorf("fencelock: listing locks: etcd compacted revision %d away meanwhile; list again: %w", rev, err)
		}
		if err != nil {
			return fmt.Errorf("fencelock: listing locks: %w", deniedAt("reading", err, prefix))
		}
		rev = cmp.Or(rev, resp.Header.Revision)
		if err := ls.page(resp); err != nil {
			return err
		}
		if !resp.More {
			return ls.flush()
		}
		from = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
	}
}

// page takes over the keys of one answer. Those of a queue follow each other, as
// they have its name in front; a queue can go on in the next page.
func (ls *listing) page(resp *clientv3.GetResponse) error {
	remaining := ls.l.remaining(ls.ctx, resp)
	for _, kv := range resp.Kvs {
		segment, ok := ls.segmentOf(kv)
		if !ok {
			continue
		}
		if segment != ls.segment {
			if err := ls.flush(); err != nil {
				return err
			}
			ls.segment = segment
		}
		name, err := url.PathUnescape(segment)
		if err != nil || checkName(name) != nil || url.PathEscape(name) != segment {
			continue
		}
		c := claimOf(name, queuePrefix(ls.l.cfg.prefix, name), kv)
		c.Remaining = remaining[kv.Lease]
		ls.claims = append(ls.claims, c)
	}
	return nil
}

// segmentOf is the path segment of a key that stands for its lock's name.
func (ls *listing) segmentOf(kv *mvccpb.KeyValue) (string, bool) {
	segment, _, ok := strings.Cut(strings.TrimPrefix(string(kv.Key), ls.l.cfg.prefix), "/")
	return segment, ok
}

// flush yields the queue that is complete.
func (ls *listing) flush() error {
	if len(ls.claims) == 0 {
		return nil
	}
	if err := ls.l.canRead(ls.ctx, "listing locks"); err != nil {
		return err
	}
	// They came in the order of their keys, which is that of lease ids.
	slices.SortFunc(ls.claims, func(a, b Claim) int { return a.Token.Compare(b.Token) })
	q := Queue{Name: ls.claims[0].Token.name, Holder: &ls.claims[0]}
	if len(ls.claims) > 1 {
		q.Waiters = ls.claims[1:]
	}
	ls.claims = nil // the caller's now
	if !ls.yield(q, nil) {
		return errListEnough
	}
	return nil
}
