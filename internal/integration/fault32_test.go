package integration

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/integration/harness"
)

// adopting returns a Locker on a session's lease.
func (b *bench) adopting(s *concurrency.Session, opts ...fencelock.Option) *fencelock.Locker {
	b.t.Helper()
	defaults := []fencelock.Option{
		fencelock.WithSession(s), fencelock.WithMargin(200 * time.Millisecond), fencelock.WithLogger(slog.New(slog.DiscardHandler)),
	}
	l, err := fencelock.New(s.Client(), append(defaults, opts...)...)
	require.NoError(b.t, err)
	b.t.Cleanup(func() { _ = l.Close() }) // again, for a test that failed
	return l
}

// A naive library names its key after the lease, as concurrency.Mutex does: the
// second Locker finds that key, takes it for its own, and both hold with equal
// tokens.
func TestFault32TwoLockersOnOneSession(t *testing.T) {
	b := newBench(t)
	session := b.session(b.client(), 20)
	l, other := b.adopting(session), b.adopting(session)

	k := b.acquire(l, "x")
	_, err := other.TryAcquire(t.Context(), "x")
	var taken *fencelock.HeldError
	require.ErrorAs(t, err, &taken)
	assert.True(t, taken.Holder.Token.Equal(k.Token()))
	waiter := b.acquireLater(other, "x")
	again := b.acquireLater(other, "x")
	b.awaitQueue("x", 3)
	b.stillWaits(waiter)
	b.stillWaits(again)
	b.release(k)

	var second *fencelock.Lock
	select {
	case a := <-waiter:
		second, waiter = a.lock, again
		require.NoError(t, a.err)
	case a := <-again:
		second = a.lock
		require.NoError(t, a.err)
	case <-time.After(soon):
		t.Fatal("neither waiter was granted the lock")
	}
	b.stillWaits(waiter)
	b.release(second)
	third := b.granted(waiter)
	assert.Equal(t, 1, second.Token().Compare(k.Token()))
	assert.Equal(t, 1, third.Token().Compare(second.Token()))
	assert.NotEqual(t, k.Token().Holder(), second.Token().Holder())
	assert.NotEqual(t, second.Token().Holder(), third.Token().Holder())
	b.release(third)

	// The lease is the session's: Close leaves it, and takes the keys.
	forgotten := b.acquire(l, "forgotten")
	require.NoError(t, l.Close())
	require.NoError(t, other.Close())
	require.ErrorIs(t, forgotten.Err(), fencelock.ErrLost)
	assert.Empty(t, harness.Keys(t, b.clean, keyPrefix))
	assert.Equal(t, []clientv3.LeaseID{session.Lease()}, harness.Leases(t, b.clean))
	require.NoError(t, session.Close())
}

// A Mutex takes the key that is named as its own would be for its own: what
// fencelock puts on the same session must never have that name.
func TestFault32MutexOnTheSameSessionAndName(t *testing.T) {
	b := newBench(t)
	session := b.session(b.client(), 20)
	l := b.adopting(session)
	m := concurrency.NewMutex(session, "fencelock/x")

	require.NoError(t, m.Lock(t.Context()))
	_, err := l.TryAcquire(t.Context(), "x")
	require.ErrorIs(t, err, fencelock.ErrHeld)
	waiter := b.acquireLater(l, "x")
	b.awaitQueue("x", 2)
	b.stillWaits(waiter)
	require.NoError(t, m.Unlock(t.Context()))
	k := b.granted(waiter)

	require.ErrorIs(t, m.TryLock(t.Context()), concurrency.ErrLocked)
	locked := inBackground(t, func() error { return m.Lock(t.Context()) })
	b.awaitQueue("x", 2)
	select {
	case err := <-locked:
		t.Fatalf("Mutex.Lock returned %v while a fencelock held", err)
	default:
	}
	b.release(k)
	require.NoError(t, harness.Receive(t, locked, soon, "lock of the Mutex"))
	require.NoError(t, m.Unlock(t.Context()))
	require.NoError(t, l.Close())
	require.NoError(t, session.Close())
}

// adopterRole holds lock x on a session of its own until it is killed.
func adopterRole(c *harness.Child) error {
	client, err := clientv3.New(clientv3.Config{Endpoints: c.Args()})
	if err != nil {
		return err
	}
	session, err := concurrency.NewSession(client, concurrency.WithTTL(20))
	if err != nil {
		return err
	}
	l, err := fencelock.New(client, fencelock.WithSession(session))
	if err != nil {
		return err
	}
	k, err := l.Acquire(c.Context(), "x")
	if err != nil {
		return err
	}
	token, err := k.Token().MarshalText()
	if err != nil {
		return err
	}
	c.Emit("held", strconv.FormatInt(int64(session.Lease()), 16), string(token))
	<-c.Context().Done()
	return errors.New("to be killed, not told")
}

// A process is restarted and takes its lease up again, to keep what it had. But
// what it had is another's, whose work nobody knows the end of: a naive library
// takes the key it finds for its own.
func TestFault32RestartedOnTheSameLease(t *testing.T) {
	b := newBench(t)
	process := harness.Start(t, "adopter", b.addr)
	held := process.Expect("held", soon).Fields()
	require.Len(t, held, 2)
	id, err := strconv.ParseInt(held[0], 16, 64)
	require.NoError(t, err)
	token, err := fencelock.ParseToken("x", held[1])
	require.NoError(t, err)
	pid := process.PID()
	process.Kill()

	client := b.client()
	session, err := concurrency.NewSession(client, concurrency.WithLease(clientv3.LeaseID(id)))
	require.NoError(t, err)
	l := b.adopting(session)
	_, err = l.TryAcquire(t.Context(), "x")
	var taken *fencelock.HeldError
	require.ErrorAs(t, err, &taken)
	assert.True(t, taken.Holder.Token.Equal(token))
	assert.Equal(t, pid, taken.Holder.PID)
	b.release(b.acquire(l, "y"))

	// It is for somebody who knows that the dead process is dead to free it.
	waiter := b.acquireLater(l, "x")
	b.awaitQueue("x", 2)
	b.stillWaits(waiter)
	resp, err := b.clean.Get(t.Context(), "fencelock/x/", clientv3.WithFirstCreate()...)
	require.NoError(t, err)
	_, err = b.clean.Delete(t.Context(), string(resp.Kvs[0].Key))
	require.NoError(t, err)
	k := b.granted(waiter)
	assert.Equal(t, 1, k.Token().Compare(token))
	assert.NotEqual(t, token.Holder(), k.Token().Holder())
	b.release(k)
	require.NoError(t, l.Close())
	require.NoError(t, session.Close())
}

// Session.Close is a revoke: nobody can be told before, but soon after. A naive
// library goes on with a lock that it does not have, or quietly on a lease of
// its own.
func TestFault32SessionClosedWhileHolding(t *testing.T) {
	for _, held := range []string{"just now", "for some time"} {
		t.Run(held, func(t *testing.T) {
			b := newBench(t)
			j := newJournal()
			client := b.wired()
			session := b.session(client.Client, 20)
			l := b.adopting(session, reportTo(j)...)
			other := b.locker(b.client())
			k, neighbour := b.acquire(l, "x"), b.acquire(l, "y")
			blocked := b.acquire(other, "z")
			waiter := b.acquireLater(l, "z")
			b.awaitQueue("z", 2)
			if held == "for some time" {
				// The view of z's queue and the watches of x and y: each reads
				// once when it is open.
				require.Eventually(t, func() bool { return client.kv.Answered(harness.OpGet) >= 3 }, soon, 5*time.Millisecond)
			}

			closed := time.Now()
			require.NoError(t, session.Close())
			for _, k := range []*fencelock.Lock{k, neighbour} {
				harness.Receive(t, k.Context().Done(), soon, "end of the held context")
				assert.Less(t, time.Since(closed), time.Second)
				var lost *fencelock.LostError
				require.ErrorAs(t, k.Err(), &lost)
				assert.Contains(t, []fencelock.Reason{fencelock.LostSession, fencelock.LostDeleted}, lost.Reason)
				require.ErrorIs(t, k.Release(t.Context()), fencelock.ErrLost)
			}
			awaitReports[fencelock.LostInfo](t, j, 2, soon) // the holder is told first
			assert.Len(t, warnings(j, "lock lost"), 2)

			err := harness.Receive(t, waiter, soon, "end of the waiter").err
			require.ErrorIs(t, err, fencelock.ErrNotAcquired)
			requireSessionLost(t, err, "z")
			_, err = l.TryAcquire(t.Context(), "x")
			requireSessionLost(t, err, "x")
			err = l.Lead(t.Context(), "x", func(context.Context, fencelock.Token) error { t.Error("fn ran"); return nil })
			requireSessionLost(t, err, "x")
			require.NoError(t, l.Close())
			b.release(blocked)
			b.release(b.acquire(other, "x"))
		})
	}
}

func requireSessionLost(t *testing.T, err error, name string) {
	t.Helper()
	require.ErrorIs(t, err, fencelock.ErrLost)
	require.ErrorIs(t, err, fencelock.ErrNotAcquired)
	var lost *fencelock.LostError
	require.ErrorAs(t, err, &lost)
	assert.Equal(t, fencelock.LostSession, lost.Reason)
	assert.Equal(t, name, lost.Name)
}

// A session that ended before the first use must be reported, not waited for or
// replaced.
func TestFault32SessionGoneBeforeFirstUse(t *testing.T) {
	b := newBench(t)
	for how, end := range map[string]func(*concurrency.Session) error{
		"closed": (*concurrency.Session).Close,
		"revoked by another": func(s *concurrency.Session) error {
			_, err := b.clean.Revoke(t.Context(), s.Lease())
			return err
		},
	} {
		t.Run(how, func(t *testing.T) {
			session := b.session(b.client(), 20)
			l := b.adopting(session)
			require.NoError(t, end(session))
			for range 2 {
				_, err := l.Acquire(t.Context(), "x")
				requireSessionLost(t, err, "x")
				var failed *fencelock.AcquireError
				require.ErrorAs(t, err, &failed)
				assert.Equal(t, fencelock.PhaseLease, failed.Phase)
			}
			require.NoError(t, l.Close())
		})
	}
}

// The session's TTL is known only when etcd has told it, so the margin can be
// checked only then.
func TestFault32MarginNotBelowTheSessionsTTL(t *testing.T) {
	b := newBench(t)
	session := b.session(b.client(), 2)
	for margin, good := range map[time.Duration]bool{
		2 * time.Second:         false,
		3 * time.Second:         false,
		time.Second:             true,
		1500 * time.Millisecond: true,
	} {
		l := b.adopting(session, fencelock.WithMargin(margin))
		k, err := l.Acquire(t.Context(), "x")
		if good {
			require.NoError(t, err)
			b.release(k)
		} else {
			require.ErrorIs(t, err, fencelock.ErrInvalidOption)
			require.ErrorIs(t, err, fencelock.ErrNotAcquired)
			assert.ErrorContains(t, err, margin.String())
			assert.Empty(t, harness.Keys(t, b.clean, keyPrefix))
		}
		require.NoError(t, l.Close())
	}
	require.NoError(t, session.Close())
}
