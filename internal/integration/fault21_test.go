package integration

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/integration/harness"
	"github.com/fencelock/fencelock/internal/integration/resource"
)

// restorable is the bench with an etcd whose data can be set back.
type restorable struct {
	corner
	member *harness.Member
}

func newRestorable(t *testing.T) restorable {
	t.Helper()
	cluster := harness.StartCluster(t, harness.ClusterConfig{})
	b := &bench{t: t, addr: cluster.Members[0].Addr()}
	b.clean = b.client()
	return restorable{corner{b}, cluster.Members[0]}
}

// revision returns etcd's latest.
func (r restorable) revision() int64 {
	r.t.Helper()
	resp, err := r.clean.Get(r.t.Context(), keyPrefix)
	require.NoError(r.t, err)
	return resp.Header.Revision
}

// advance writes something else until etcd's revision is at least that.
func (r restorable) advance(to int64) {
	r.t.Helper()
	for r.revision() < to {
		_, err := r.clean.Put(r.t.Context(), "something else", "")
		require.NoError(r.t, err)
	}
}

// write is a callback that claims, reads and writes a register, and notes its
// token.
func write(r *resource.Client, register, value string, noted *fencelock.Token) func(context.Context, fencelock.Token) error {
	return func(ctx context.Context, token fencelock.Token) error {
		*noted = token
		if _, err := r.Claim(ctx, register, token); err != nil {
			return fmt.Errorf("claiming: %w", err)
		}
		return r.Write(ctx, register, token, value)
	}
}

// done is one who does its work, and is gone.
func (r restorable) done(value string, register *resource.Client, name string, noted *fencelock.Token) {
	r.t.Helper()
	l := r.openLocker(r.client())
	require.NoError(r.t, l.Do(r.t.Context(), name, write(register, name, value, noted)))
	require.NoError(r.t, l.Close())
}

// TestFault21TokensGoBackwards restores a snapshot as people do who do not know of
// --bump-revision: the revisions that were the last tokens come again. A naive
// library hands them out, and a resource that compares numbers only takes a
// number that it has seen as the same holder's.
func TestFault21TokensGoBackwards(t *testing.T) {
	harness.Parallel(t)
	for kind, server := range fencedResources(t) {
		t.Run(kind, func(t *testing.T) {
			b := newRestorable(t)
			r := server.Client(t)
			register := t.Name()
			saved := saveSnapshot(t, b.member)
			b.advance(20)
			var mark fencelock.Token
			b.done("before", r, register, &mark)
			restoreSnapshot(t, b.member, saved, 0)

			l := b.openLocker(b.client())
			refused := func() *fencelock.StaleError {
				t.Helper()
				var token fencelock.Token
				err := l.Do(t.Context(), register, write(r, register, "never", &token))
				require.ErrorIs(t, err, fencelock.ErrTokenRegression)
				require.ErrorIs(t, err, fencelock.ErrStale)
				var stale *fencelock.StaleError
				require.ErrorAs(t, err, &stale)
				require.True(t, stale.Presented.Equal(token))
				require.True(t, stale.Highest.Equal(mark))
				require.ErrorContains(t, err, token.String())
				require.ErrorContains(t, err, mark.String())
				require.ErrorContains(t, err, "--bump-revision")
				return stale
			}
			stale := refused()
			require.Less(t, stale.Presented.Revision(), mark.Revision())

			// The number that the register has seen, and another holder.
			b.advance(mark.Revision() - 1)
			stale = refused()
			require.Equal(t, stale.Presented.Revision(), mark.Revision())
			require.NotEqual(t, stale.Presented.Holder(), mark.Holder())

			// What an operator is told to do helps: then all is well again.
			var token fencelock.Token
			require.NoError(t, l.Do(t.Context(), register, write(r, register, "after", &token)))
			require.Positive(t, token.Compare(mark))
			require.ErrorIs(t, r.Write(t.Context(), register, mark, "late"), fencelock.ErrStale)
			history, err := r.History(t.Context(), register)
			require.NoError(t, err)
			require.Empty(t, resource.Stale(history))
			value, err := r.Read(t.Context(), register)
			require.NoError(t, err)
			require.Equal(t, "after", value)
			require.NoError(t, l.Close())
			harness.NothingLeft(t, b.clean, keyPrefix)
		})
	}
}

// TestFault21Bumped restores the snapshot as it should be: the revisions go on
// above all that were ever handed out.
func TestFault21Bumped(t *testing.T) {
	harness.Parallel(t)
	for kind, server := range fencedResources(t) {
		t.Run(kind, func(t *testing.T) {
			b := newRestorable(t)
			r := server.Client(t)
			register := t.Name()
			saved := saveSnapshot(t, b.member)
			b.advance(20)
			var before, after fencelock.Token
			b.done("before", r, register, &before)
			restoreSnapshot(t, b.member, saved, bump)

			l := b.openLocker(b.client())
			require.NoError(t, l.Do(t.Context(), register, write(r, register, "after", &after)))
			require.Positive(t, after.Compare(before))
			require.ErrorIs(t, r.Write(t.Context(), register, before, "late"), fencelock.ErrStale)
			require.NoError(t, l.Do(t.Context(), register, write(r, register, "later", &after)))
			history, err := r.History(t.Context(), register)
			require.NoError(t, err)
			require.Empty(t, resource.Stale(history))
			require.NoError(t, l.Close())
			harness.NothingLeft(t, b.clean, keyPrefix)
		})
	}
}

var restores = map[string]uint64{"without a bump": 0, "bumped": bump}

// TestFault21LiveClientsInTheSnapshot restores a snapshot that has the keys of a
// holder and of a waiter which are there all the time. The waiter's watch goes on
// from a revision that is to come only, or is compacted. A naive library's
// waiter sleeps up to then, or takes the error for the end of its wait.
func TestFault21LiveClientsInTheSnapshot(t *testing.T) {
	harness.Parallel(t)
	atOnce(t, restores, func(t *testing.T, bump uint64) {
		const ttl = 6 * time.Second
		b := newRestorable(t)
		holder, waiter := newParty(t, ttl, b.addr), newParty(t, ttl, b.addr)
		h := holder.acquire(t, "job")
		granted := waiter.queueUpToReading(t, b.clean, "job", 1)
		saved := saveSnapshot(t, b.member)
		// What the watch hears of now is the future soon.
		passing := newParty(t, ttl, b.addr)
		for range 5 {
			_, err := passing.Acquire(t.Context(), "job", fencelock.MaxWait(time.Millisecond))
			require.ErrorIs(t, err, fencelock.ErrHeld)
		}
		require.NoError(t, passing.Close())

		restoreSnapshot(t, b.member, saved, bump)
		renewed := len(reported[fencelock.RenewedInfo](holder.told))
		awaitReports[fencelock.RenewedInfo](t, holder.told, renewed+1, eventually)
		require.Empty(t, granted, "a grant while the record names another")
		b.stillHeld(h.Lock)
		requireHeldThroughout(t, holder, h)
		released := time.Now()
		next := harness.Receive(t, granted, eventually, "grant to the waiter")
		require.NoError(t, next.err)
		require.Less(t, next.at.Sub(released), ttl/3+2*time.Second)
		t.Logf("handed over in %v", next.at.Sub(released))
		require.Positive(t, next.lock.Token().Compare(h.Token()))
		b.stillHeld(next.lock)
		require.NoError(t, next.lock.Release(t.Context()))
		require.Empty(t, reported[fencelock.LostInfo](waiter.told))
		require.NoError(t, holder.Close())
		require.NoError(t, waiter.Close())
		harness.NothingLeft(t, b.clean, keyPrefix)
	})
}

// TestFault21LiveClientsNotInTheSnapshot restores a snapshot from before the holder
// and the waiter came. Their keys and leases never were. A naive library's waiter
// waits for the end of a key that nobody will see the end of.
func TestFault21LiveClientsNotInTheSnapshot(t *testing.T) {
	harness.NoLeaks(t)
	atOnce(t, restores, func(t *testing.T, bump uint64) {
		const ttl = 6 * time.Second
		b := newRestorable(t)
		const name = "job"
		r := resource.Start(t, "").Client(t)
		saved := saveSnapshot(t, b.member)
		b.advance(20)
		link := harness.NewProxy(t, b.addr)
		holder, waiter, newcomer := newParty(t, ttl, link.Addr()), newParty(t, ttl, link.Addr()), newParty(t, calmTTL, b.addr)
		h := holder.acquire(t, name)
		require.NoError(t, write(r, name, "holder's", new(fencelock.Token))(t.Context(), h.Token()))
		granted := waiter.queueUpToReading(t, b.clean, name, 1)

		// The waiter must not be the first to come back: it would queue again, and
		// rightly be granted what the newcomer is here for.
		link.Refuse()
		link.Cut()
		restoreSnapshot(t, b.member, saved, bump)
		n := newcomer.acquire(t, name)
		link.Heal()
		holder.reconnect(t)
		waiter.reconnect(t)
		restored := time.Now()
		told := h.ended(t, eventually)
		holder.requireToldByDeadline(t, h)
		t.Logf("told %v after it reached the restored etcd", told.Sub(restored))
		require.Less(t, told.Sub(restored), ttl/3+late)
		// Which of the two it finds first, that the lease is gone or the key.
		var loss *fencelock.LostError
		require.ErrorAs(t, h.Err(), &loss)
		require.Contains(t, []fencelock.Reason{fencelock.LostRevoked, fencelock.LostDeleted}, loss.Reason)
		holder.requireLossReported(t, h, loss.Reason)
		holder.requireLostRelease(t, h)

		// The record does not know them, and the newcomer has it.
		b.stillHeld(n.Lock)
		_, err := r.Claim(t.Context(), name, n.Token())
		if bump == 0 {
			require.ErrorIs(t, err, fencelock.ErrStale)
		} else {
			require.NoError(t, err)
			require.ErrorIs(t, r.Write(t.Context(), name, h.Token(), "late"), fencelock.ErrStale)
		}
		until(t, "waiter in the queue again", func() bool { return len(harness.Keys(t, b.clean, queueOf(name))) == 2 })
		require.Empty(t, granted, "a grant while the record names another")
		released := time.Now()
		require.NoError(t, n.Release(t.Context()))
		next := harness.Receive(t, granted, eventually, "grant to the waiter")
		require.NoError(t, next.err)
		require.Less(t, next.at.Sub(released), ttl/3+2*time.Second)
		t.Logf("handed over in %v", next.at.Sub(released))
		require.Positive(t, next.lock.Token().Compare(n.Token()))
		b.stillHeld(next.lock)
		require.NoError(t, next.lock.Release(t.Context()))
		for _, p := range []*party{holder, waiter, newcomer} {
			require.NoError(t, p.Close())
		}
		harness.NothingLeft(t, b.clean, keyPrefix)
	})
}

// TestFault21ReleasedLocksComeBack restores a snapshot from when locks were held
// and waited for that were given back long since, by Lockers that live on, and with
// them their leases. A naive library renews the lease, and with it the keys of which
// it knows nothing any more: nobody is granted those locks again, it itself no
// more than others.
func TestFault21ReleasedLocksComeBack(t *testing.T) {
	harness.Parallel(t)
	atOnce(t, restores, func(t *testing.T, bump uint64) {
		const ttl = 6 * time.Second
		b := newRestorable(t)
		p, other := newParty(t, ttl, b.addr), newParty(t, ttl, b.addr)
		kept := p.acquire(t, "kept")
		one, two := p.acquire(t, "one"), p.acquire(t, "two")
		waited := p.queue(t, b.clean, "two", 1)
		saved := saveSnapshot(t, b.member)
		require.NoError(t, one.Release(t.Context()))
		require.NoError(t, two.Release(t.Context()))
		require.NoError(t, harness.Receive(t, waited, eventually, "grant to the waiter").lock.Release(t.Context()))

		restoreSnapshot(t, b.member, saved, bump)
		b.awaitQueue("one", 1)
		b.awaitQueue("two", 2)
		for _, next := range []struct {
			who  *party
			name string
			by   string
		}{
			{p, "one", "the one who had it"}, {other, "two", "another"},
			{other, "one", "another"}, {p, "two", "the one who had it"},
		} {
			began := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), ttl+ttl/3+time.Second)
			k, err := next.who.Acquire(ctx, next.name)
			cancel()
			require.NoError(t, err, "%s acquires %s", next.by, next.name)
			t.Logf("%s had %s in %v", next.by, next.name, time.Since(began))
			require.NoError(t, k.Release(t.Context()))
		}
		require.Len(t, warnings(p.told, "deleted a key"), 3)
		requireHeldThroughout(t, p, kept)
		require.NoError(t, p.Close())
		require.NoError(t, other.Close())
		harness.NothingLeft(t, b.clean, keyPrefix)
	})
}
