package main

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// witness sees every key of a lock disappear, through a watch at each member:
// the first to tell is the one that counts, since a member can be stopped. It
// sees a deletion no earlier than it happened.
type witness struct {
	ledger *ledger

	mu   sync.Mutex
	seen map[int64]bool // creation revisions
}

func startWitness(t testing.TB, members []*clientv3.Client, l *ledger) {
	t.Helper()
	w := &witness{ledger: l, seen: map[int64]bool{}}
	ctx, cancel := context.WithCancel(context.Background())
	var watches sync.WaitGroup
	for _, client := range members {
		// From a revision on which all agree, nothing is missed.
		began, err := client.Get(ctx, keyPrefix)
		require.NoError(t, err)
		watches.Go(func() { w.watch(ctx, client, began.Header.Revision+1) })
	}
	t.Cleanup(func() {
		cancel()
		watches.Wait()
	})
}

// watch watches until ctx ends, again from where it was after every failure.
func (w *witness) watch(ctx context.Context, client *clientv3.Client, from int64) {
	for ctx.Err() == nil {
		round, cancel := context.WithCancel(ctx)
		for resp := range client.Watch(round, keyPrefix, clientv3.WithPrefix(), clientv3.WithPrevKV(),
			clientv3.WithFilterPut(), clientv3.WithRev(from)) {
			at := w.ledger.clock()
			if resp.CompactRevision > 0 {
				from = resp.CompactRevision
			}
			for _, e := range resp.Events {
				from = e.Kv.ModRevision + 1
				if e.PrevKv != nil { // else it was compacted, and another member tells
					w.saw(at, string(e.Kv.Key), e.PrevKv.CreateRevision)
				}
			}
		}
		cancel()
		sleep(ctx, 50*time.Millisecond)
	}
}

func (w *witness) saw(at time.Duration, key string, created int64) {
	w.mu.Lock()
	known := w.seen[created]
	w.seen[created] = true
	w.mu.Unlock()
	if known {
		return
	}
	lock, slot := splitKey(key)
	w.ledger.add(record{At: at, Kind: deleted, Phase: phase(lock), Revision: created, Lease: leaseOf(slot)})
}

// splitKey splits a key into the lock and what tells it from others in the
// queue.
func splitKey(key string) (lock, slot string) {
	lock, slot, _ = strings.Cut(strings.TrimPrefix(key, keyPrefix), "/")
	return lock, slot
}

// leaseOf returns the lease that a key was made for, in hex. It is the first
// part of the library's slots, and all of the peer's.
func leaseOf(slot string) string {
	lease, _, _ := strings.Cut(slot, "-")
	return lease
}
