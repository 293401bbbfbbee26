package harness

import (
	"context"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Deletion is one key that a watch saw disappear.
type Deletion struct {
	Key            string
	CreateRevision int64 // of the key that is gone
	Revision       int64 // of the deletion
	// At is when the watch delivered it, by both clocks: no earlier than it
	// happened, and on an idle machine about a millisecond later.
	At time.Time
}

// Deletions records the deletions under a prefix.
type Deletions struct {
	t testing.TB

	mu      sync.Mutex
	seen    []Deletion
	err     error         // why the watch ended
	changed chan struct{} // closed at the next deletion, or at the end
}

// WatchDeletions starts to record the deletions under prefix: every one after
// its return. Give it a client of its own way to etcd, which no test spoils.
func WatchDeletions(t testing.TB, client *clientv3.Client, prefix string) *Deletions {
	t.Helper()
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(context.Background()))
	d := &Deletions{t: t, changed: make(chan struct{})}
	watch := client.Watch(ctx, prefix, clientv3.WithPrefix(), clientv3.WithPrevKV(),
		clientv3.WithFilterPut(), clientv3.WithCreatedNotify())
	select {
	case created, ok := <-watch:
		if !ok || created.Err() != nil {
			cancel()
			t.Fatalf("harness: watching %q: %v", prefix, created.Err())
		}
	case <-time.After(readWithin):
		cancel()
		t.Fatalf("harness: watching %q: not confirmed within %v", prefix, readWithin)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for resp := range watch {
			d.record(resp, time.Now())
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return d
}

func (d *Deletions) record(resp clientv3.WatchResponse, at time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.err = resp.Err()
	for _, e := range resp.Events {
		gone := Deletion{Key: string(e.Kv.Key), Revision: e.Kv.ModRevision, At: at}
		if e.PrevKv != nil {
			gone.CreateRevision = e.PrevKv.CreateRevision
		}
		d.seen = append(d.seen, gone)
	}
	close(d.changed)
	d.changed = make(chan struct{})
}

// All returns the deletions so far.
func (d *Deletions) All() []Deletion {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]Deletion(nil), d.seen...)
}

// Expect returns the first deletion of the key that was created at that
// revision, which is its token's; it waits for it, and ends the test without
// it.
func (d *Deletions) Expect(createRevision int64, within time.Duration) Deletion {
	d.t.Helper()
	late := time.After(within)
	for {
		d.mu.Lock()
		seen, err, changed := d.seen, d.err, d.changed
		d.mu.Unlock()
		for _, gone := range seen {
			if gone.CreateRevision == createRevision {
				return gone
			}
		}
		if err != nil {
			d.t.Fatalf("harness: the watch for deletions ended: %v", err)
		}
		select {
		case <-changed:
		case <-late:
			d.t.Fatalf("harness: the key created at revision %d was not deleted within %v", createRevision, within)
		}
	}
}
