package integration

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/integration/harness"
)

// inWithin is how long others may be kept out by an acquire that has failed,
// once etcd can be reached.
const inWithin = time.Second

// An acquire that etcd committed and never confirmed leaves a key that nobody
// knows of. A naive library goes on renewing the lease that the key is bound to,
// for its other locks, and so keeps everybody out for ever; one that sends the
// request again finds the lock taken, by itself.
func TestFault13AcquireAnswerLost(t *testing.T) {
	b := newBench(t)

	// spoilt returns a Locker that has a lease and holds a lock on it, so that
	// the lease goes on being renewed, and another Locker.
	type spoilt struct {
		corner
		l, other *fencelock.Locker
		w        wired
		j        *journal
		kept     *fencelock.Lock
	}
	open := func(t *testing.T) spoilt {
		b := b.corner(t)
		w, j := b.wired(), newJournal()
		l := b.locker(w.Client, reportTo(j)...)
		return spoilt{b, l, b.locker(b.client()), w, j, b.acquire(l, "kept")}
	}
	// end checks that the other lock on the lease has seen nothing of it.
	end := func(s spoilt) {
		s.t.Helper()
		s.stillHeld(s.kept)
		s.release(s.kept)
		require.Empty(s.t, reported[fencelock.LostInfo](s.j))
	}
	failed := func(s spoilt, err error, result fencelock.Result) {
		s.t.Helper()
		var failure *fencelock.AcquireError
		require.ErrorAs(s.t, err, &failure)
		require.ErrorIs(s.t, err, fencelock.ErrNotAcquired)
		require.Equal(s.t, fencelock.PhaseQueue, failure.Phase)
		require.Equal(s.t, "job", failure.Name)
		hooked := reported[fencelock.NotAcquiredInfo](s.j)
		require.Len(s.t, hooked, 1)
		require.Equal(s.t, result, hooked[0].Result)
		require.Equal(s.t, err, hooked[0].Err)
	}

	calls := map[string]func(*fencelock.Locker, context.Context) error{
		"Acquire": func(l *fencelock.Locker, ctx context.Context) error {
			_, err := l.Acquire(ctx, "job")
			return err
		},
		"TryAcquire": func(l *fencelock.Locker, ctx context.Context) error {
			_, err := l.TryAcquire(ctx, "job")
			return err
		},
		"Do": func(l *fencelock.Locker, ctx context.Context) error {
			return l.Do(ctx, "job", func(context.Context, fencelock.Token) error {
				return errors.New("the callback ran")
			})
		},
	}
	for name, call := range calls {
		t.Run("the connection breaks/"+name, func(t *testing.T) {
			s := open(t)
			s.w.kv.SetHook(once(joins, harness.LoseReply(errBroken)))
			err := call(s.l, t.Context())
			require.ErrorIs(t, err, errBroken)
			failed(s, err, fencelock.ResultOther)
			s.othersIn(s.other, "job", inWithin)
			s.othersIn(s.l, "job", inWithin)
			end(s)
		})
	}

	t.Run("the context ends first", func(t *testing.T) {
		s := open(t)
		answer := harness.NewHeld()
		s.w.kv.SetHook(once(joins, harness.HoldReply(answer)))
		ctx, cancel := context.WithCancelCause(t.Context())
		waiting := s.waitFor(ctx, s.l, "job")
		require.NoError(t, harness.Receive(t, answer.Answered(), soon, "answer that is held"))
		s.awaitQueue("job", 1)
		why := errors.New("no longer wanted")
		cancel(why)
		// It returns now: its answer is held until after that.
		err := harness.Receive(t, waiting, soon, "result of Acquire").err
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, why)
		failed(s, err, fencelock.ResultCanceled)
		answer.Release()
		s.othersIn(s.other, "job", inWithin)
		s.othersIn(s.l, "job", inWithin)
		end(s)
	})

	// Nobody hears anything for as long as the request may take, which is 10 s.
	// Others need not wait for that, as etcd can be reached.
	t.Run("the answer never comes", func(t *testing.T) {
		b := b.corner(t)
		w := b.wired()
		l := b.locker(w.Client)
		other := b.locker(b.client())
		b.release(b.acquire(l, "job"))
		w.kv.SetHook(once(joins, harness.LoseReply(nil)))
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err := l.Acquire(ctx, "job")
		require.ErrorIs(t, err, fencelock.ErrNotAcquired)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		b.othersIn(other, "job", inWithin)
		b.othersIn(l, "job", inWithin)
	})

	t.Run("behind a holder", func(t *testing.T) {
		s := open(t)
		k := s.acquire(s.other, "job")
		s.w.kv.SetHook(once(joins, harness.LoseReply(errBroken)))
		_, err := s.l.Acquire(t.Context(), "job")
		failed(s, err, fencelock.ResultOther)
		s.awaitQueue("job", 1)
		s.stillHeld(k)
		s.release(k)
		s.othersIn(s.l, "job", inWithin)
		end(s)
	})

	// Resent, the first copy's key would be taken for somebody else's.
	t.Run("nothing is sent twice", func(t *testing.T) {
		s := open(t)
		var mu sync.Mutex
		sent := map[string]int{} // by value, which is one acquisition's own
		lose := once(joins, harness.LoseReply(errBroken))
		s.w.kv.SetHook(func(c harness.Call) harness.Fate {
			if joins(c) {
				mu.Lock()
				sent[string(c.Then[0].ValueBytes())]++
				mu.Unlock()
			}
			return lose(c)
		})
		_, err := s.l.Acquire(t.Context(), "job")
		require.ErrorIs(t, err, errBroken)
		for range 3 {
			s.othersIn(s.l, "job", inWithin)
		}
		mu.Lock()
		require.Len(t, sent, 4)
		for value, n := range sent {
			require.Equal(t, 1, n, value)
		}
		mu.Unlock()
		end(s)
	})

	t.Run("the lease's grant", func(t *testing.T) {
		b := b.corner(t)
		w, j := b.wired(), newJournal()
		l := b.locker(w.Client, append(reportTo(j), fencelock.WithTTL(time.Second))...)
		w.lease.SetHook(harness.Nth(harness.OpGrant, 1, harness.LoseReply(errBroken)))
		_, err := l.Acquire(t.Context(), "job")
		var failure *fencelock.AcquireError
		require.ErrorAs(t, err, &failure)
		require.ErrorIs(t, err, errBroken)
		require.Equal(t, fencelock.PhaseLease, failure.Phase)
		b.othersIn(l, "job", inWithin)
	})

	// Acquires that come while a lease is being granted wait for that grant. One
	// that began in an outage fails when the outage may be over.
	t.Run("the lease's grant, and another call waits for it", func(t *testing.T) {
		b := b.corner(t)
		const ttl = time.Second
		w := b.wired()
		l := b.locker(w.Client, fencelock.WithTTL(ttl))
		w.lease.SetHook(harness.Nth(harness.OpGrant, 1, harness.LoseRequest(nil)))
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err := l.Acquire(ctx, "job")
		require.ErrorIs(t, err, fencelock.ErrNotAcquired)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		b.othersIn(l, "job", ttl+inWithin)
		require.Equal(t, 2, w.lease.Calls(harness.OpGrant))
	})

	// The same with a network in place of a wrapper.
	for name, then := range map[string]func(corner, *harness.Proxy){
		"and comes late": func(_ corner, p *harness.Proxy) { p.Heal() },
		"and the connection is cut": func(_ corner, p *harness.Proxy) {
			p.Cut()
			p.Heal()
		},
		"and is lost with the connection": func(b corner, p *harness.Proxy) {
			p.ToClient.Blackhole()
			b.until("the answer is lost", func() bool { return p.ToClient.Lost() > 0 })
			p.Heal()
		},
	} {
		t.Run("the answer is stuck in the network/"+name, func(t *testing.T) {
			b := b.corner(t)
			proxy := harness.NewProxy(t, b.addr)
			l := b.locker(harness.NewClient(t, proxy.Addr()))
			other := b.locker(b.client())
			b.release(b.acquire(l, "job"))

			proxy.ToClient.Stall()
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			_, err := l.Acquire(ctx, "job")
			require.ErrorIs(t, err, fencelock.ErrNotAcquired)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			b.awaitQueue("job", 1)
			then(b, proxy)
			b.othersIn(other, "job", inWithin)
			b.othersIn(l, "job", soon)
		})
	}
}

// A context can end at any moment of an acquire: before anything is sent, while
// the request or its answer is on the way, right before the grant is returned.
func TestFault13ContextEndsAtAnyMoment(t *testing.T) {
	b := newBench(t)
	const calls = 500
	const latest = 5 * time.Millisecond

	t.Run("of an acquire", func(t *testing.T) {
		b := b.corner(t)
		gone := harness.WatchDeletions(t, b.clean, keyPrefix)
		l := b.locker(b.client())
		other := b.locker(b.client())
		b.release(b.acquire(l, "job"))
		granted := map[int64]bool{}
		for i := range calls {
			ctx, cancel := context.WithTimeout(t.Context(), latest*time.Duration(i)/calls)
			k, err := l.Acquire(ctx, "job")
			cancel()
			if err == nil {
				granted[k.Token().Revision()] = true
				b.release(k)
			} else {
				require.ErrorIs(t, err, fencelock.ErrNotAcquired)
				require.ErrorIs(t, err, context.DeadlineExceeded)
			}
			granted[b.othersIn(other, "job", inWithin).Token().Revision()] = true
		}
		last := b.acquire(other, "job")
		b.release(last)
		gone.Expect(last.Token().Revision(), soon)
		orphans := 0
		for _, d := range gone.All() {
			if strings.HasPrefix(d.Key, keyPrefix+"job/") && !granted[d.CreateRevision] && d.CreateRevision < last.Token().Revision() {
				orphans++
			}
		}
		t.Logf("%d of %d acquires were committed and given up", orphans, calls)
	})

	// Every Locker is new, and its first acquire grants the lease too.
	t.Run("of the first acquire", func(t *testing.T) {
		b := b.corner(t)
		client := b.client()
		other := b.locker(b.client())
		const calls = calls / 10
		for i := range calls {
			l := b.openLocker(client)
			ctx, cancel := context.WithTimeout(t.Context(), latest*time.Duration(i)/calls)
			k, err := l.Acquire(ctx, "job")
			cancel()
			if err == nil {
				b.release(k)
			} else {
				require.ErrorIs(t, err, context.DeadlineExceeded)
			}
			b.othersIn(other, "job", inWithin)
			require.NoError(t, l.Close())
		}
	})
}
