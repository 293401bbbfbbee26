package fencelock

import (
	"context"
	"fmt"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// inspectParallel bounds the requests an Inspect has under way.
const inspectParallel = 8

// Inspect returns what etcd's record says of the lock name: its holder and
// those who wait, in order. It makes one linearizable read of the queue, and
// one request for each lease in it. What it returns can be out of date when it
// is looked at; it is for people and dashboards, never a reason to act as if
// one held the lock.
//
// The error is [ErrInvalidName], [ErrInvalidOption], [ErrClosed], or wraps what
// etcd said or the context's error.
func (l *Locker) Inspect(ctx context.Context, name string) (Queue, error) {
	if err := checkName(name); err != nil {
		return Queue{}, err
	}
	if err := l.canRead(ctx, fmt.Sprintf("inspecting lock %q", name)); err != nil {
		return Queue{}, err
	}
	queue := queuePrefix(l.cfg.prefix, name)
	resp, err := l.client.Get(ctx, queue, clientv3.WithPrefix(),
		clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
	if err != nil {
		return Queue{}, fmt.Errorf("fencelock: inspecting lock %q: %w", name, deniedAt("reading", err, queue))
	}
	remaining := l.remaining(ctx, resp)
	q := Queue{Name: name}
	for i, kv := range resp.Kvs {
		c := claimOf(name, queue, kv)
		c.Remaining = remaining[kv.Lease]
		if i == 0 {
			q.Holder = &c
			continue
		}
		q.Waiters = append(q.Waiters, c)
	}
	return q, nil
}

// canRead returns the error of a call that cannot send anything; doing says in it
// what the call is for.
func (l *Locker) canRead(ctx context.Context, doing string) error {
	switch {
	case ctx == nil:
		return fmt.Errorf("%w: the context is nil", ErrInvalidOption)
	case l.isClosed():
		return ErrClosed
	case ctx.Err() != nil:
		return fmt.Errorf("fencelock: %s: %w", doing, ctx.Err())
	case l.clientClosed():
		return fmt.Errorf("fencelock: %s: %w", doing, errClientClosed)
	}
	return nil
}

// remaining asks for the time left of every lease in the queue. What is not
// answered is left out: the queue itself is worth showing without it.
func (l *Locker) remaining(ctx context.Context, resp *clientv3.GetResponse) map[int64]time.Duration {
	left := map[int64]time.Duration{}
	for _, kv := range resp.Kvs {
		if kv.Lease != 0 {
			left[kv.Lease] = 0
		}
	}
	ids := make(chan int64, len(left))
	for id := range left {
		ids <- id
	}
	close(ids)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range min(inspectParallel, len(left)) {
		wg.Go(func() {
			for id := range ids {
				ttl, err := l.client.TimeToLive(ctx, clientv3.LeaseID(id))
				if err != nil || ttl.TTL < 0 {
					continue
				}
				mu.Lock()
				left[id] = time.Duration(ttl.TTL) * time.Second
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return left
}
