package integration

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/integration/harness"
)

// A naive library joins prefix and name: "a" waits for "a/b", "../a" is some
// other lock, and what is not UTF-8 becomes something else on the way.
func TestFault25NamesAreIndependent(t *testing.T) {
	names := []string{
		"a", "a/b", "ab", "a//b", "a/", "/a", "/", ".", "..", "../a", "a/../b",
		"a%2Fb", "a%2fb", "%", "a b", "a+b", "a?b#c",
		"a\x00b", "\x00", "a\nb", "\xff\xfe", "a\xc3", "é", "e\u0301", "锁",
		strings.Repeat("n", 1024), strings.Repeat("\xff", 1024), strings.Repeat("n", 1023) + "/",
	}
	b := newBench(t)
	l := b.locker(b.client())
	other := b.locker(b.client(), fencelock.WithLabel("the other"))

	// All held at once, by one Locker and its one lease.
	held := map[string]*fencelock.Lock{}
	for _, name := range names {
		k, err := l.TryAcquire(t.Context(), name)
		require.NoError(t, err, "%q", name)
		assert.Equal(t, name, k.Name())
		assert.Equal(t, name, k.Token().Name())
		held[name] = k
	}
	require.Len(t, harness.Keys(t, b.clean, keyPrefix), len(names))
	for _, name := range names {
		_, err := other.TryAcquire(t.Context(), name)
		var taken *fencelock.HeldError
		require.ErrorAs(t, err, &taken, "%q", name)
		assert.True(t, taken.Holder.Token.Equal(held[name].Token()), "%q is held by %v", name, taken.Holder.Token)

		queue, err := other.Inspect(t.Context(), name)
		require.NoError(t, err)
		require.NotNil(t, queue.Holder)
		assert.True(t, queue.Holder.Token.Equal(held[name].Token()))
		assert.Empty(t, queue.Waiters)
	}
	// Each is freed by its own release and by no other.
	for i, name := range names {
		b.release(held[name])
		b.release(b.acquire(other, name))
		require.Len(t, harness.Keys(t, b.clean, keyPrefix), len(names)-i-1)
	}
}

// What escaping leaves as it is must be, letter for letter, what etcd's own
// locks use, or the two would not exclude each other.
func TestFault25KeysAreWhereOthersLookForThem(t *testing.T) {
	b := newBench(t)
	for _, test := range []struct{ prefix, name, queue string }{
		{"fencelock/", "jobs", "fencelock/jobs/"},
		{"locks/team a/", "jobs-1.5_x~", "locks/team a/jobs-1.5_x~/"},
		{"/", "jobs", "/jobs/"},
		{"fencelock/", "a/b", "fencelock/a%2Fb/"},
	} {
		l := b.locker(b.client(), fencelock.WithPrefix(test.prefix))
		k := b.acquire(l, test.name)
		keys := harness.Keys(t, b.clean, test.queue)
		require.Len(t, keys, 1)
		assert.NotContains(t, strings.TrimPrefix(keys[0], test.queue), "/")
		b.release(k)
		assert.Empty(t, harness.Keys(t, b.clean, test.queue))
	}
}

// A naive library waits for ever behind a key that no lease will ever remove.
func TestFault25ForeignKeyWithoutALease(t *testing.T) {
	b := newBench(t)
	for _, foreign := range []string{"fencelock/a/stray", "fencelock/a/b/c", "fencelock/a/"} {
		t.Run(foreign, func(t *testing.T) {
			l := b.locker(b.client())
			_, err := b.clean.Put(t.Context(), foreign, "whatever")
			require.NoError(t, err)

			ctx, cancel := context.WithTimeout(t.Context(), soon)
			defer cancel()
			for call, do := range map[string]func() error{
				"Acquire":    func() error { _, err := l.Acquire(ctx, "a"); return err },
				"TryAcquire": func() error { _, err := l.TryAcquire(ctx, "a"); return err },
				"MaxWait(0)": func() error { _, err := l.Acquire(ctx, "a", fencelock.MaxWait(0)); return err },
				"Do": func() error {
					return l.Do(ctx, "a", func(context.Context, fencelock.Token) error { t.Error("fn ran"); return nil })
				},
				"Lead": func() error {
					return l.Lead(ctx, "a", func(context.Context, fencelock.Token) error { t.Error("fn ran"); return nil })
				},
			} {
				err := do()
				require.ErrorIs(t, err, fencelock.ErrForeignKey, call)
				require.ErrorIs(t, err, fencelock.ErrNotAcquired, call)
				assert.ErrorContains(t, err, fmt.Sprintf("%q", foreign), call)
				assert.ErrorContains(t, err, "etcdctl del", call)
			}
			require.NoError(t, ctx.Err())
			b.awaitQueue("a", 1)
			b.release(b.acquire(l, "a/b")) // another name is none of its business

			_, err = b.clean.Delete(t.Context(), foreign)
			require.NoError(t, err)
			b.release(b.acquire(l, "a"))
		})
	}
}

// The same with the key put there in the middle of a wait: those ahead of it
// are granted, those behind it are told.
func TestFault25ForeignKeyInTheMiddleOfTheQueue(t *testing.T) {
	b := newBench(t)
	l := b.locker(b.client())
	other := b.locker(b.client())
	holder := b.acquire(other, "a")
	ahead := b.acquireLater(l, "a")
	b.awaitQueue("a", 2)
	_, err := b.clean.Put(t.Context(), "fencelock/a/stray", "whatever")
	require.NoError(t, err)
	behind := b.acquireLater(l, "a")

	told := harness.Receive(t, behind, soon, "end of the wait behind the key")
	require.ErrorIs(t, told.err, fencelock.ErrForeignKey)
	assert.ErrorContains(t, told.err, `"fencelock/a/stray"`)
	b.awaitQueue("a", 3) // holder, waiter, stray
	b.stillWaits(ahead)
	b.release(holder)
	b.release(b.granted(ahead))

	_, err = b.clean.Delete(t.Context(), "fencelock/a/stray")
	require.NoError(t, err)
	b.release(b.acquire(l, "a"))
}

// A foreign key with a lease is somebody who holds the lock, and goes when its
// lease does.
func TestFault25ForeignKeyWithALease(t *testing.T) {
	b := newBench(t)
	l := b.locker(b.client())
	lease, err := b.clean.Grant(t.Context(), 1)
	require.NoError(t, err)
	_, err = b.clean.Put(t.Context(), "fencelock/a/whoever it is", "not JSON", clientv3.WithLease(lease.ID))
	require.NoError(t, err)

	_, err = l.TryAcquire(t.Context(), "a")
	var taken *fencelock.HeldError
	require.ErrorAs(t, err, &taken)
	assert.Empty(t, taken.Holder.Label)
	assert.Equal(t, "whoever_it_is", taken.Holder.Token.Holder())

	began := time.Now()
	k := b.acquire(l, "a")
	assert.Less(t, time.Since(began), 5*time.Second)
	assert.Positive(t, k.Token().Compare(taken.Holder.Token))
	b.release(k)
}
