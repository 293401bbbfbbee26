package integration

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/integration/harness"
)

// corner is the bench for one subtest, at whose end nothing may be left either.
type corner struct{ *bench }

func (b *bench) corner(t *testing.T) corner {
	t.Helper()
	c := corner{&bench{t: t, addr: b.addr, clean: b.clean}}
	t.Cleanup(func() { harness.NothingLeft(t, c.clean, keyPrefix) })
	return c
}

// newCorner is a corner with a server of its own, for subtests that run at once.
func newCorner(t *testing.T, cfg harness.ClusterConfig) (corner, *harness.Cluster) {
	t.Helper()
	cluster := harness.StartCluster(t, cfg)
	b := &bench{t: t, addr: cluster.Members[0].Addr()}
	b.clean = b.client()
	return b.corner(t), cluster
}

// told waits until the holder of k knows that its lock is lost, and checks that
// it and its operator were told in every way there is: by the context and its
// cause, by Err, by the hook and by one warning.
func (b corner) told(k *fencelock.Lock, j *journal, reasons ...fencelock.Reason) *fencelock.LostError {
	b.t.Helper()
	harness.Receive(b.t, k.Context().Done(), soon, "end of the held context")
	var loss *fencelock.LostError
	require.ErrorAs(b.t, context.Cause(k.Context()), &loss)
	require.ErrorIs(b.t, k.Err(), fencelock.ErrLost)
	require.Contains(b.t, reasons, loss.Reason, loss)
	require.Equal(b.t, k.Name(), loss.Name)
	require.True(b.t, k.Token().Equal(loss.Token))
	require.False(b.t, loss.LastConfirmed.IsZero())
	require.False(b.t, loss.LastConfirmed.After(loss.LostAt))
	require.True(b.t, loss.Returned.IsZero(), "nobody has returned")

	// A loss may be told of several locks at once, and the hook comes after
	// the context.
	b.until("a hook told of the loss", func() bool { return len(lossReports(j, k)) > 0 })
	reports := lossReports(j, k)
	require.Len(b.t, reports, 1)
	require.Equal(b.t, loss.Reason, reports[0].Err.Reason)
	require.True(b.t, reports[0].Running)
	warnings := 0
	for _, r := range reported[slog.Record](j) {
		if r.Level == slog.LevelWarn && attribute(r, "lock") == k.Name() && attribute(r, "token") == k.Token().String() {
			require.Equal(b.t, string(loss.Reason), attribute(r, "reason"))
			warnings++
		}
	}
	require.Equal(b.t, 1, warnings, "warnings")
	return loss
}

// tellWithin is how long a holder may not know that somebody took its lock away.
const tellWithin = time.Second

// toldInTime is told for a lock that somebody is about to take away, and begins
// to count now. Half of the time goes by before a lock is watched at all, so
// the other half is all that a busy machine has; what it adds is measured, by
// doing what the library does.
func (b corner) toldInTime(k *fencelock.Lock, j *journal, reasons ...fencelock.Reason) func() {
	b.t.Helper()
	const unwatched = tellWithin / 2
	began := time.Now()
	late := inBackground(b.t, func() time.Duration {
		<-time.After(unwatched)
		for range 2 { // a watch and a read
			_, _ = b.clean.Get(b.t.Context(), keyPrefix)
		}
		return time.Since(began) - unwatched
	})
	return func() {
		b.t.Helper()
		loss := b.told(k, j, reasons...)
		bound := tellWithin + harness.Receive(b.t, late, soon, "measure of the machine")
		require.Less(b.t, loss.LostAt.Sub(began), bound)
	}
}

func lossReports(j *journal, k *fencelock.Lock) (found []fencelock.LostInfo) {
	for _, i := range reported[fencelock.LostInfo](j) {
		if i.Err.Token.Equal(k.Token()) {
			found = append(found, i)
		}
	}
	return found
}

// returned releases a lost lock, and checks that the release says so, the
// second time too.
func (b corner) returned(k *fencelock.Lock) {
	b.t.Helper()
	for range 2 {
		var loss *fencelock.LostError
		require.ErrorAs(b.t, k.Release(context.Background()), &loss)
		require.True(b.t, k.Token().Equal(loss.Token))
		require.False(b.t, loss.Returned.IsZero())
	}
}

// othersIn checks that nobody keeps another out of the lock for longer, and
// releases it.
func (b corner) othersIn(other *fencelock.Locker, name string, within time.Duration) *fencelock.Lock {
	b.t.Helper()
	for late := time.Now().Add(soon); ; {
		ctx, cancel := context.WithTimeout(context.Background(), within)
		k, err := other.Acquire(ctx, name)
		cancel()
		var failure *fencelock.AcquireError
		if errors.As(err, &failure) && failure.Phase != fencelock.PhaseWait && time.Now().Before(late) {
			continue // it did not get into the queue in time: the machine is too busy
		}
		require.NoError(b.t, err, "others are not in within %v", within)
		b.release(k)
		return k
	}
}

// record returns the key that heads the queue of a name, as etcd has it.
func (b corner) record(name string) (key string, lease clientv3.LeaseID, created int64) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	resp, err := b.clean.Get(ctx, keyPrefix+name+"/", clientv3.WithFirstCreate()...)
	require.NoError(b.t, err)
	require.NotEmpty(b.t, resp.Kvs, "nobody is in the queue of %q", name)
	return string(resp.Kvs[0].Key), clientv3.LeaseID(resp.Kvs[0].Lease), resp.Kvs[0].CreateRevision
}

// stillHeld checks that k is held by its own word and by etcd's record.
func (b corner) stillHeld(k *fencelock.Lock) {
	b.t.Helper()
	_, _, created := b.record(k.Name())
	require.Equal(b.t, k.Token().Revision(), created, "the record names another")
	require.NoError(b.t, k.Err())
}

// waitFor is acquireLater with a context.
func (b corner) waitFor(ctx context.Context, l *fencelock.Locker, name string, opts ...fencelock.LockOption) <-chan attempt {
	return inBackground(b.t, func() attempt {
		k, err := l.Acquire(ctx, name, opts...)
		return attempt{k, err}
	})
}

// awaitReads waits until etcd has answered that many reads: a view of a key or
// a queue makes one when its watch is confirmed.
func (b corner) awaitReads(w wired, n int) {
	b.t.Helper()
	b.until("a watch was opened and confirmed", func() bool { return w.kv.Answered(harness.OpGet) >= n })
}

// until waits for something that no event tells of. Unlike require.Eventually
// it asks on the test's own goroutine, which a question may end.
func (b corner) until(what string, happened func() bool) {
	b.t.Helper()
	for late := time.Now().Add(soon); !happened(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(late) {
			b.t.Fatalf("not within %v: %s", soon, what)
		}
	}
}

// once gives the first call that matches its fate, and lets all others pass.
func once(match func(harness.Call) bool, fate harness.Fate) harness.Hook {
	var met atomic.Bool
	return func(c harness.Call) harness.Fate {
		if match(c) && met.CompareAndSwap(false, true) {
			return fate
		}
		return harness.Pass()
	}
}

// joins matches the Txn that joins a queue.
func joins(c harness.Call) bool { return c.Op == harness.OpTxn && c.Puts() }

// leaves matches the Txn that releases a lock, or cleans up after one.
func leaves(c harness.Call) bool { return c.Op == harness.OpTxn && c.Deletes() }

// errBroken stands for a connection that broke before the answer came.
var errBroken = errors.New("the connection broke")
