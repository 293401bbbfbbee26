package integration

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/integration/harness"
)

// An operator deletes the key of a stuck lock. Its lease lives and is renewed,
// so a library that looks at nothing but its lease never hears of it: the old
// holder and the next one both hold, for as long as they like.
func TestFault08KeyDeleted(t *testing.T) {
	harness.Parallel(t)
	b := newBench(t)

	// held returns a Locker that holds a lock, of which nothing is watched yet.
	held := func(b corner) (*fencelock.Locker, *fencelock.Lock, *journal, wired) {
		j := newJournal()
		w := b.wired()
		l := b.locker(w.Client, append(reportTo(j), fencelock.WithTTL(longTTL))...)
		return l, b.acquire(l, "job"), j, w
	}
	remove := func(b corner) {
		b.t.Helper()
		key, _, _ := b.record("job")
		resp, err := b.clean.Delete(b.t.Context(), key)
		require.NoError(b.t, err)
		require.EqualValues(b.t, 1, resp.Deleted)
	}

	t.Run("while it is watched", func(t *testing.T) {
		b := b.corner(t)
		l, k, j, w := held(b)
		kept := b.acquire(l, "kept")
		waiting := b.acquireLater(b.locker(b.client()), "job")
		b.awaitQueue("job", 2)
		b.awaitReads(w, 2)
		told := b.toldInTime(k, j, fencelock.LostDeleted)
		remove(b)
		told()
		next := b.granted(waiting)
		require.Positive(t, next.Token().Compare(k.Token()))
		b.returned(k)
		b.stillHeld(next)
		b.release(next)
		// One lock's key is that lock's loss: the lease and the others live.
		b.stillHeld(kept)
		again := b.acquire(l, "job")
		_, lease, _ := b.record("job")
		_, keptLease, _ := b.record("kept")
		require.Equal(t, keptLease, lease)
		b.release(again)
		b.release(kept)
	})

	t.Run("between the grant and the first watch", func(t *testing.T) {
		b := b.corner(t)
		_, k, j, w := held(b)
		told := b.toldInTime(k, j, fencelock.LostDeleted)
		remove(b)
		require.Zero(t, w.watches.Load(), "it is watched already")
		told()
		b.returned(k)
	})

	t.Run("between the watch and its read", func(t *testing.T) {
		b := b.corner(t)
		_, k, j, w := held(b)
		read := harness.NewHeld()
		w.kv.SetHook(harness.Nth(harness.OpGet, 1, harness.Hold(read)))
		harness.Receive(t, read.Arrived(), soon, "read of the key")
		told := b.toldInTime(k, j, fencelock.LostDeleted)
		remove(b)
		read.Release()
		told()
		b.returned(k)
	})

	t.Run("between the read and its answer", func(t *testing.T) {
		b := b.corner(t)
		_, k, j, w := held(b)
		read := harness.NewHeld()
		w.kv.SetHook(harness.Nth(harness.OpGet, 1, harness.HoldReply(read)))
		require.NoError(t, harness.Receive(t, read.Answered(), soon, "answer to the read of the key"))
		told := b.toldInTime(k, j, fencelock.LostDeleted)
		remove(b)
		read.Release()
		told()
		b.returned(k)
	})

	// The holder hears through the view that the same Locker's waiter opened.
	t.Run("while another of the same process waits", func(t *testing.T) {
		b := b.corner(t)
		l, k, j, w := held(b)
		waiting := b.acquireLater(l, "job")
		b.awaitQueue("job", 2)
		// Its own watch is due half a second after the grant, in which it only
		// joins the view, and no request tells. One that is granted later does
		// make a request, and later.
		later := b.acquire(l, "later")
		b.awaitReads(w, 2)
		told := b.toldInTime(k, j, fencelock.LostDeleted)
		remove(b)
		told()
		next := b.granted(waiting)
		require.Positive(t, next.Token().Compare(k.Token()))
		b.returned(k)
		b.release(next)
		b.release(later)
	})

	// Whoever looks at the key's name, value or lease sees no difference.
	t.Run("and put again as it was", func(t *testing.T) {
		b := b.corner(t)
		_, k, j, w := held(b)
		b.awaitReads(w, 1)
		key, lease, _ := b.record("job")
		was, err := b.clean.Get(t.Context(), key)
		require.NoError(t, err)
		told := b.toldInTime(k, j, fencelock.LostDeleted)
		remove(b)
		_, err = b.clean.Put(t.Context(), key, string(was.Kvs[0].Value), clientv3.WithLease(lease))
		require.NoError(t, err)
		told()
		b.returned(k)
		_, _, created := b.record("job")
		require.Greater(t, created, k.Token().Revision(), "not ours, not to be deleted")
	})

	t.Run("and released unnoticed", func(t *testing.T) {
		b := b.corner(t)
		j := newJournal()
		l := b.locker(b.client(), append(reportTo(j), fencelock.WithTTL(longTTL))...)
		err := l.Do(t.Context(), "job", func(_ context.Context, token fencelock.Token) error {
			_ = token.Revision()
			remove(b)
			return nil
		})
		var loss *fencelock.LostError
		require.ErrorAs(t, err, &loss)
		require.Equal(t, fencelock.LostDeleted, loss.Reason)
		require.Len(t, awaitReports[fencelock.LostInfo](t, j, 1, soon), 1)
	})
}
