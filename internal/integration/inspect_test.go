package integration

import (
	"context"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/integration/harness"
)

// An operator asks who has the lock, since when, who is next, and how long it
// would take without a sign of life. A naive answer is in the order of keys,
// which is that of lease ids, and not of the queue.
func TestInspect(t *testing.T) {
	b := newBench(t)
	l := b.locker(b.client())

	queue, err := l.Inspect(t.Context(), "x")
	require.NoError(t, err)
	assert.Equal(t, fencelock.Queue{Name: "x"}, queue, "nobody")

	began := time.Now()
	labels := []string{"first", "second", "third", "fourth"}
	var waiting []<-chan attempt
	var held *fencelock.Lock
	for i, label := range labels {
		other := b.locker(b.client(), fencelock.WithLabel(label), fencelock.WithTTL(time.Duration(20+10*i)*time.Second))
		if i == 0 {
			held = b.acquire(other, "x")
			continue
		}
		waiting = append(waiting, b.acquireLater(other, "x"))
		b.awaitQueue("x", i+1)
	}
	// One that is not of this library, at the end.
	session := b.session(b.client(), 60)
	m := concurrency.NewMutex(session, "fencelock/x")
	locked := inBackground(t, func() error { return m.Lock(t.Context()) })
	b.awaitQueue("x", len(labels)+1)
	// Neighbours of the name are none of its queue.
	for _, name := range []string{"x/y", "xy"} {
		k := b.acquire(l, name)
		defer b.release(k)
	}

	queue, err = l.Inspect(t.Context(), "x")
	require.NoError(t, err)
	assert.Equal(t, "x", queue.Name)
	require.NotNil(t, queue.Holder)
	assert.True(t, queue.Holder.Token.Equal(held.Token()))
	require.Len(t, queue.Waiters, len(labels))
	host, err := os.Hostname()
	require.NoError(t, err)
	claims := append([]fencelock.Claim{*queue.Holder}, queue.Waiters...)
	for i, claim := range claims {
		if i > 0 {
			assert.Equal(t, 1, claim.Token.Compare(claims[i-1].Token), "in the order of the queue")
		}
		assert.Equal(t, "x", claim.Token.Name())
		if i == len(labels) {
			assert.Empty(t, claim.Label)
			assert.Empty(t, claim.Host)
			assert.Zero(t, claim.PID)
			assert.Zero(t, claim.Since)
			assert.Equal(t, strconv.FormatInt(int64(session.Lease()), 16), claim.Token.Holder())
		} else {
			assert.Equal(t, labels[i], claim.Label)
			assert.Equal(t, host, claim.Host)
			assert.Equal(t, os.Getpid(), claim.PID)
			assert.WithinRange(t, claim.Since, began, time.Now())
		}
		ttl := min(time.Duration(20+10*i)*time.Second, 60*time.Second)
		assert.LessOrEqual(t, claim.Remaining, ttl)
		assert.Greater(t, claim.Remaining, ttl/3)
	}

	// What a waiter is said to get is what it gets; and a claim is not a proof.
	b.release(held)
	for i, w := range waiting {
		k := b.granted(w)
		assert.True(t, k.Token().Equal(queue.Waiters[i].Token))
		resp, err := b.clean.Txn(t.Context()).If(queue.Waiters[i].Token.IsOwner()).Commit()
		require.NoError(t, err)
		assert.False(t, resp.Succeeded)
		b.release(k)
	}
	require.NoError(t, harness.Receive(t, locked, soon, "lock of the Mutex"))
	require.NoError(t, m.Unlock(t.Context()))
	queue, err = l.Inspect(t.Context(), "x")
	require.NoError(t, err)
	assert.Equal(t, fencelock.Queue{Name: "x"}, queue)
	require.NoError(t, session.Close())
}

// The default label tells a person where to look.
func TestInspectDefaultLabel(t *testing.T) {
	b := newBench(t)
	l := b.locker(b.client())
	k := b.acquire(l, "x")
	queue, err := l.Inspect(t.Context(), "x")
	require.NoError(t, err)
	host, err := os.Hostname()
	require.NoError(t, err)
	assert.Contains(t, queue.Holder.Label, host)
	assert.Contains(t, queue.Holder.Label, strconv.Itoa(os.Getpid()))
	b.release(k)
}

// Inspect takes no part: it leaves no key and no lease, and counts as no use of
// a token.
func TestInspectLeavesNothing(t *testing.T) {
	b := newBench(t)
	client := b.wired()
	j := newJournal()
	l := b.locker(client.Client, reportTo(j)...)
	_, err := l.Inspect(t.Context(), "x")
	require.NoError(t, err)
	assert.Empty(t, harness.Leases(t, b.clean))
	assert.Equal(t, 1, client.requests())

	require.NoError(t, l.Do(t.Context(), "x", func(ctx context.Context, token fencelock.Token) error {
		before := client.kv.Calls(harness.OpGet) + client.lease.Calls(harness.OpTimeToLive)
		queue, err := l.Inspect(ctx, "x")
		require.NoError(t, err)
		assert.True(t, queue.Holder.Token.Equal(token))
		// One read, and one request for each lease.
		assert.Equal(t, before+2, client.kv.Calls(harness.OpGet)+client.lease.Calls(harness.OpTimeToLive))
		return nil
	}))
	assert.Len(t, reported[fencelock.TokenUnusedInfo](j), 1)
}

// A naive call without a bound of its own hangs on a server that does not
// answer.
func TestInspectEndsWithItsContext(t *testing.T) {
	b := newBench(t)
	proxy := harness.NewProxy(t, b.addr)
	l := b.locker(harness.NewClient(t, proxy.Addr()))
	b.release(b.acquire(l, "x")) // connected
	proxy.Blackhole()
	t.Cleanup(proxy.Heal)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err := l.Inspect(ctx, "x")
	deadline, _ := ctx.Deadline()
	assert.Less(t, time.Since(deadline), 200*time.Millisecond)
	require.ErrorIs(t, err, context.DeadlineExceeded)
}
