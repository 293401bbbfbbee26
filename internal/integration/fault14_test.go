package integration

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/integration/harness"
)

// A release that was not answered is sent again, or arrives late, when the lock
// is somebody else's or this process' own once more, under the same key. A naive
// library deletes the key by its name, and so the new lock.
func TestFault14ReleaseComesLate(t *testing.T) {
	harness.Parallel(t)
	b := newBench(t)

	unconfirmed := func(t *testing.T, err error, j *journal, k *fencelock.Lock) {
		t.Helper()
		require.ErrorIs(t, err, fencelock.ErrUnconfirmed)
		require.NotErrorIs(t, err, fencelock.ErrLost)
		var found []fencelock.ReleasedInfo
		for _, i := range reported[fencelock.ReleasedInfo](j) {
			if i.Token.Equal(k.Token()) {
				found = append(found, i)
			}
		}
		require.Len(t, found, 1)
		require.False(t, found[0].Confirmed)
		require.ErrorIs(t, found[0].Err, fencelock.ErrUnconfirmed)
		warned := warnings(j, "release not confirmed")
		require.Len(t, warned, 1)
		require.Equal(t, k.Token().String(), attribute(warned[0], "token"))
	}
	// sameKey acquires again, on the key that the lock had before.
	sameKey := func(b corner, l *fencelock.Locker, key string) *fencelock.Lock {
		b.t.Helper()
		var k *fencelock.Lock
		b.until("the slot is free again", func() bool {
			k = b.acquire(l, "job")
			now, _, _ := b.record("job")
			if now != key {
				b.release(k)
			}
			return now == key
		})
		return k
	}

	t.Run("answer lost and lock acquired again before the retry", func(t *testing.T) {
		b := b.corner(t)
		w, j := b.wired(), newJournal()
		l := b.locker(w.Client, reportTo(j)...)
		old := b.acquire(l, "job")
		answer := harness.NewHeld() // never let go: lost, and nobody hears of it
		w.kv.SetHook(once(leaves, harness.HoldReply(answer)))
		released := inBackground(t, func() error { return old.Release(t.Context()) })
		require.NoError(t, harness.Receive(t, answer.Answered(), soon, "release"))

		again := b.acquire(l, "job")
		require.Positive(t, again.Token().Compare(old.Token()))
		err := harness.Receive(t, released, soon, "end of the release, with a second attempt")
		unconfirmed(t, err, j, old)
		require.Equal(t, err, old.Release(t.Context()), "it answers what it answered before")
		b.stillHeld(again)
		require.NoError(t, again.Release(t.Context()), "the record named it from grant to release")
	})

	t.Run("answer lost and released again after the lock was acquired again", func(t *testing.T) {
		b := b.corner(t)
		w, j := b.wired(), newJournal()
		l := b.locker(w.Client, reportTo(j)...)
		old := b.acquire(l, "job")
		key, _, _ := b.record("job")
		w.kv.SetHook(once(leaves, harness.LoseReply(errBroken)))
		err := old.Release(t.Context())
		unconfirmed(t, err, j, old)
		again := sameKey(b, l, key)
		require.Equal(t, err, old.Release(t.Context()))
		b.stillHeld(again)
		require.NoError(t, again.Release(t.Context()))
	})

	// held releases a lock whose request stays in the network, and returns when
	// the lock is gone from etcd by a second request.
	type late struct {
		corner
		l, other *fencelock.Locker
		j        *journal
		old      *fencelock.Lock
		key      string
		request  *harness.Held
	}
	hold := func(b corner) late {
		w, j := b.wired(), newJournal()
		l := b.locker(w.Client, reportTo(j)...)
		gone := harness.WatchDeletions(b.t, b.clean, keyPrefix)
		old := b.acquire(l, "job")
		key, _, _ := b.record("job")
		request := harness.NewHeld()
		w.kv.SetHook(once(leaves, harness.Hold(request)))
		ctx, cancel := context.WithTimeout(b.t.Context(), 100*time.Millisecond)
		defer cancel()
		err := old.Release(ctx)
		unconfirmed(b.t, err, j, old)
		require.Len(b.t, request.Arrived(), 1)
		gone.Expect(old.Token().Revision(), soon)
		return late{b, l, b.locker(b.client()), j, old, key, request}
	}
	arrives := func(s late, k *fencelock.Lock) {
		s.t.Helper()
		s.request.Release()
		require.NoError(s.t, harness.Receive(s.t, s.request.Answered(), soon, "answer to the late release"))
		s.stillHeld(k)
		require.NoError(s.t, k.Release(s.t.Context()), "the record named it from grant to release")
		require.Empty(s.t, reported[fencelock.LostInfo](s.j))
	}

	t.Run("request held until another holds", func(t *testing.T) {
		s := hold(b.corner(t))
		arrives(s, s.acquire(s.other, "job"))
	})

	t.Run("request held until the same process holds on the same key", func(t *testing.T) {
		s := hold(b.corner(t))
		arrives(s, sameKey(s.corner, s.l, s.key))
	})

	t.Run("request held, and no other gets through either", func(t *testing.T) {
		b := b.corner(t)
		const ttl = time.Second
		proxy := harness.NewProxy(t, b.addr)
		j := newJournal()
		l := b.locker(harness.NewClient(t, proxy.Addr()), append(reportTo(j), fencelock.WithTTL(ttl))...)
		other := b.locker(b.client())
		gone := harness.WatchDeletions(t, b.clean, keyPrefix)
		old := b.acquire(l, "job")
		waiting := b.acquireLater(other, "job")
		b.awaitQueue("job", 2)

		proxy.ToServer.Stall()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		err := old.Release(ctx)
		if errors.Is(err, fencelock.ErrLost) {
			// A busy machine has taken the whole TTL to get here.
			t.Log("lost before it was released:", err)
		} else {
			unconfirmed(t, err, j, old)
		}
		next := b.granted(waiting) // the lease has expired
		gone.Expect(old.Token().Revision(), soon)
		sent := proxy.ToServer.Delivered()
		proxy.ToServer.Resume()
		b.until("what was held arrives", func() bool { return proxy.ToServer.Delivered() > sent })
		// On one connection what was sent later does not arrive earlier.
		b.release(b.acquire(l, "another"))
		b.stillHeld(next)
		require.NoError(t, next.Release(t.Context()))
	})

	t.Run("inside Do", func(t *testing.T) {
		b := b.corner(t)
		w, j := b.wired(), newJournal()
		l := b.locker(w.Client, reportTo(j)...)
		other := b.locker(b.client())
		broken := errors.New("of the callback")
		w.kv.SetHook(once(leaves, harness.LoseReply(errBroken)))
		err := l.Do(t.Context(), "job", func(context.Context, fencelock.Token) error { return broken })
		require.ErrorIs(t, err, fencelock.ErrUnconfirmed)
		require.ErrorIs(t, err, broken)
		require.ErrorContains(t, err, `"job"`)
		b.othersIn(other, "job", inWithin)
		require.Len(t, warnings(j, "release not confirmed"), 1)
	})
}
