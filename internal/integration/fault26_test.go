package integration

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/namespace"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/integration/harness"
)

const space = "tenant/"

// namespaced are the ways in which a client is put into a namespace, as etcd's
// documentation shows it, and in which half of that is forgotten.
var namespaced = map[string]func(*clientv3.Client){
	"KV, Lease and Watcher": func(c *clientv3.Client) {
		c.KV = namespace.NewKV(c.KV, space)
		c.Lease = namespace.NewLease(c.Lease, space)
		c.Watcher = namespace.NewWatcher(c.Watcher, space)
	},
	"KV and Watcher": func(c *clientv3.Client) {
		c.KV = namespace.NewKV(c.KV, space)
		c.Watcher = namespace.NewWatcher(c.Watcher, space)
	},
	// The watch hears of nothing, and there is no error in that.
	"only KV": func(c *clientv3.Client) { c.KV = namespace.NewKV(c.KV, space) },
}

// TestFault26Namespaced takes the client's namespace seriously. A naive library
// builds an etcd client of its own from the same endpoints, compares keys it got
// with those it asked for, or, if only the KV is in the namespace, has a waiter
// that sleeps for ever.
func TestFault26Namespaced(t *testing.T) {
	harness.Parallel(t)
	const ttl = 3 * time.Second
	b := newBench(t)
	for how, enter := range namespaced {
		t.Run(how, func(t *testing.T) {
			b := b.corner(t)
			t.Cleanup(func() { harness.NothingLeft(t, b.clean, space) })
			inside := func(opts ...fencelock.Option) (*clientv3.Client, *fencelock.Locker) {
				client := b.client()
				enter(client)
				return client, b.locker(client, append(opts, fencelock.WithTTL(ttl))...)
			}
			j := newJournal()
			client, l := inside(reportTo(j)...)
			_, other := inside()

			// Every key is in the namespace, and so no lock outside is this one.
			k := b.acquire(l, "job")
			outside := b.locker(b.client())
			apart := b.acquire(outside, "job")
			require.Len(t, harness.Keys(t, b.clean, space+queueOf("job")), 1)

			// What the token protects in the same etcd.
			put := func(value string) bool {
				resp, err := client.Txn(t.Context()).If(k.Token().IsOwner()).Then(clientv3.OpPut("value", value)).Commit()
				require.NoError(t, err)
				return resp.Succeeded
			}
			require.True(t, put("mine"))
			stored, err := b.clean.Get(t.Context(), space+"value")
			require.NoError(t, err)
			require.Len(t, stored.Kvs, 1)

			// A waiter, and one behind it.
			first := b.acquireLater(other, "job")
			b.until("the first waiter is in the queue", func() bool { return len(harness.Keys(t, b.clean, space)) == 3 })
			second := b.acquireLater(l, "job")
			b.until("the second waiter is in the queue", func() bool { return len(harness.Keys(t, b.clean, space)) == 4 })
			queue, err := l.Inspect(t.Context(), "job")
			require.NoError(t, err)
			require.True(t, queue.Holder.Token.Equal(k.Token()))
			require.Len(t, queue.Waiters, 2)
			require.Positive(t, queue.Holder.Remaining)
			_, err = other.TryAcquire(t.Context(), "job")
			require.ErrorIs(t, err, fencelock.ErrHeld)
			b.stillWaits(first)
			b.stillWaits(second)

			released := time.Now()
			b.release(k)
			require.False(t, put("not mine any more"))
			next := b.granted(first)
			t.Logf("granted %v after the release", time.Since(released))
			require.Less(t, time.Since(released), ttl/3+2*time.Second)
			b.stillWaits(second)

			// An operator's deletion is felt, by the watch or by the next check.
			key := harness.Keys(t, b.clean, space+queueOf("job"))[0]
			_, err = b.clean.Delete(t.Context(), key)
			require.NoError(t, err)
			deleted := time.Now()
			harness.Receive(t, next.Context().Done(), soon, "end of the evicted hold's context")
			t.Logf("told %v after the deletion", time.Since(deleted))
			require.Less(t, time.Since(deleted), ttl/3+2*time.Second)
			require.ErrorIs(t, next.Release(t.Context()), fencelock.ErrLost)
			last := b.granted(second)
			require.Positive(t, last.Token().Compare(next.Token()))
			b.release(last) // nil: the record named it up to here
			require.NoError(t, l.Do(t.Context(), "job", func(ctx context.Context, token fencelock.Token) error {
				_, err := client.Txn(ctx).If(token.IsOwner()).Then(clientv3.OpDelete("value")).Commit()
				return err
			}))
			require.Empty(t, reported[fencelock.LostInfo](j))
			b.stillHeld(apart)
			b.release(apart)
		})
	}
}
