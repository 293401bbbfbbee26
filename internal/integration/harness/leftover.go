package harness

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// readWithin bounds one look at etcd.
const readWithin = 5 * time.Second

// Keys returns the keys under prefix, in the order in which they were created.
func Keys(t testing.TB, client *clientv3.Client, prefix string) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), readWithin)
	defer cancel()
	resp, err := client.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly(),
		clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
	if err != nil {
		t.Fatalf("harness: reading the keys under %q: %v", prefix, err)
	}
	var keys []string
	for _, kv := range resp.Kvs {
		keys = append(keys, string(kv.Key))
	}
	return keys
}

// Leases returns the ids of all leases of the cluster.
func Leases(t testing.TB, client *clientv3.Client) []clientv3.LeaseID {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), readWithin)
	defer cancel()
	resp, err := client.Leases(ctx)
	if err != nil {
		t.Fatalf("harness: reading the leases: %v", err)
	}
	var ids []clientv3.LeaseID
	for _, l := range resp.Leases {
		ids = append(ids, l.ID)
	}
	return ids
}

// NothingLeft fails the test unless, within 5 s, there is no key under prefix
// and no lease at all. Give it a client that no test has spoilt.
func NothingLeft(t testing.TB, client *clientv3.Client, prefix string) {
	t.Helper()
	NothingLeftWithin(t, client, prefix, 5*time.Second)
}

// NothingLeftWithin is [NothingLeft] with another bound.
func NothingLeftWithin(t testing.TB, client *clientv3.Client, prefix string, within time.Duration) {
	t.Helper()
	limit := time.Now().Add(within)
	for {
		last := time.Now().After(limit)
		if len(Keys(t, client, prefix)) == 0 && len(Leases(t, client)) == 0 {
			return
		}
		if last {
			t.Errorf("harness: left behind after %v:\n%s", within, describe(client, prefix))
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// describe lists keys and leases for somebody who wonders whose they are.
func describe(client *clientv3.Client, prefix string) string {
	ctx, cancel := context.WithTimeout(context.Background(), readWithin)
	defer cancel()
	var b strings.Builder
	keys, err := client.Get(ctx, prefix, clientv3.WithPrefix())
	if err != nil {
		return err.Error()
	}
	for _, kv := range keys.Kvs {
		fmt.Fprintf(&b, "key %q, created at revision %d, lease %x: %s\n", kv.Key, kv.CreateRevision, kv.Lease, kv.Value)
	}
	leases, err := client.Leases(ctx)
	if err != nil {
		return b.String() + err.Error()
	}
	for _, l := range leases.Leases {
		ttl, err := client.TimeToLive(ctx, l.ID, clientv3.WithAttachedKeys())
		if err != nil {
			fmt.Fprintf(&b, "lease %x: %v\n", l.ID, err)
			continue
		}
		fmt.Fprintf(&b, "lease %x, %d of %d s left, keys %q\n", l.ID, ttl.TTL, ttl.GrantedTTL, ttl.Keys)
	}
	return b.String()
}
