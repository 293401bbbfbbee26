package integration

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.etcd.io/etcd/client/v3/namespace"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/integration/harness"
)

// listed collects a listing, and the error it ended with.
func listed(ctx context.Context, l *fencelock.Locker) (queues []fencelock.Queue, err error) {
	for q, e := range l.List(ctx) {
		if e != nil {
			return queues, e
		}
		queues = append(queues, q)
	}
	return queues, nil
}

// An operator asks what is locked at all. A naive listing splits the lock of a name
// with a slash, shows waiters as locks, or takes a neighbour's keys for its own.
func TestList(t *testing.T) {
	b := newBench(t)
	l := b.locker(b.client())
	queues, err := listed(t.Context(), l)
	require.NoError(t, err)
	assert.Empty(t, queues)

	names := []string{"a", "a/b", "ab", "a b", "ü", "\xff\x00\x1b[2J", "%41", ".."}
	for _, name := range names {
		k := b.acquire(l, name)
		defer b.release(k)
	}
	other := b.openLocker(b.client(), fencelock.WithLabel("waits"))
	waits := b.acquireLater(other, "a")
	b.awaitQueue("a", 2)
	session := b.session(b.client(), 60)
	m := concurrency.NewMutex(session, "fencelock/mutex")
	require.NoError(t, m.Lock(t.Context()))
	for _, key := range []string{"fencelock/loose", "fencelock/%zz/1", "fencelock/x y/1", "fencelock//1", "fencelock0"} {
		_, err := b.clean.Put(t.Context(), key, "")
		require.NoError(t, err)
	}

	queues, err = listed(t.Context(), l)
	require.NoError(t, err)
	var got []string
	for _, q := range queues {
		got = append(got, q.Name)
		inspected, err := l.Inspect(t.Context(), q.Name)
		require.NoError(t, err)
		assert.True(t, q.Holder.Token.Equal(inspected.Holder.Token), q.Name)
		assert.Equal(t, len(inspected.Waiters), len(q.Waiters), q.Name)
		assert.Positive(t, q.Holder.Remaining, q.Name)
		if q.Name == "a" {
			require.Len(t, q.Waiters, 1)
			assert.Equal(t, "waits", q.Waiters[0].Label)
		}
	}
	slices.Sort(got)
	want := append(names, "mutex")
	slices.Sort(want)
	assert.Equal(t, want, got)

	require.NoError(t, other.Close())
	require.ErrorIs(t, harness.Receive(t, waits, soon, "end of the wait").err, fencelock.ErrClosed)
	require.NoError(t, m.Unlock(t.Context()))
	require.NoError(t, session.Close())
	_, err = b.clean.Delete(t.Context(), "fencelock0")
	require.NoError(t, err)
	for _, key := range []string{"fencelock/loose", "fencelock/%zz/1", "fencelock/x y/1", "fencelock//1"} {
		_, err := b.clean.Delete(t.Context(), key)
		require.NoError(t, err)
	}
}

// Through a namespaced client too, where every key the client sees is without its
// namespace, and the pages follow each other all the same.
func TestListOverPages(t *testing.T) {
	b := newBench(t)
	client := b.client()
	client.KV = namespace.NewKV(client.KV, "team/")
	client.Lease = namespace.NewLease(client.Lease, "team/")
	client.Watcher = namespace.NewWatcher(client.Watcher, "team/")
	l := b.locker(client)
	const locks = 1000
	for i := range locks {
		_, err := b.clean.Put(t.Context(), fmt.Sprintf("team/fencelock/n%04d/1", i), "")
		require.NoError(t, err)
	}
	_, err := b.clean.Put(t.Context(), "fencelock/not-ours/1", "")
	require.NoError(t, err)

	seen := 0
	for q, err := range l.List(t.Context()) {
		require.NoError(t, err)
		if seen == 0 { // all of it is of one revision
			_, err := b.clean.Delete(t.Context(), "team/", clientv3.WithPrefix())
			require.NoError(t, err)
		}
		assert.Equal(t, fmt.Sprintf("n%04d", seen), q.Name)
		seen++
	}
	assert.Equal(t, locks, seen)

	_, err = b.clean.Delete(t.Context(), "fencelock/not-ours/1")
	require.NoError(t, err)
}

func TestListCompactedMeanwhile(t *testing.T) {
	b := newBench(t)
	l := b.locker(b.client())
	const locks = 600
	var rev int64
	for i := range locks {
		resp, err := b.clean.Put(t.Context(), fmt.Sprintf("fencelock/n%04d/1", i), "")
		require.NoError(t, err)
		rev = resp.Header.Revision
	}
	seen := 0
	var failed error
	for _, err := range l.List(t.Context()) {
		if err != nil {
			require.NoError(t, failed, "an error is the last")
			failed = err
			continue
		}
		if seen == 0 {
			resp, err := b.clean.Put(t.Context(), "elsewhere", "")
			require.NoError(t, err)
			require.Greater(t, resp.Header.Revision, rev)
			_, err = b.clean.Compact(t.Context(), resp.Header.Revision)
			require.NoError(t, err)
		}
		seen++
	}
	require.ErrorIs(t, failed, rpctypes.ErrCompacted)
	assert.Less(t, seen, locks)
	_, err := b.clean.Delete(t.Context(), keyPrefix, clientv3.WithPrefix())
	require.NoError(t, err)
}
