package fencelock

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// holderOf is the token of the holder as an operator gets it: as text.
func holderOf(t *testing.T, l *Locker, name string) Token {
	t.Helper()
	q, err := l.Inspect(t.Context(), name)
	require.NoError(t, err)
	require.NotNil(t, q.Holder)
	return mustParse(t, name, q.Holder.Token.String())
}

func TestEvict(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		holder, operator := newLocker(t, l), newLocker(t, e.dial(t))
		lock, kept := mustAcquire(t, holder, "a/b"), mustAcquire(t, holder, "kept")
		next := acquireLater(t.Context(), newLocker(t, e.dial(t)), "a/b")
		time.Sleep(time.Second) // its key is watched by now
		require.False(t, next.isDone())
		token := holderOf(t, operator, "a/b")

		start := time.Now()
		require.NoError(t, operator.Evict(t.Context(), "a/b", token))
		got := next.granted(t)
		awaitIn(t, lock.Context().Done())
		assert.Zero(t, time.Since(start), "at once, here where no request takes time")
		lost := requireAs[*LostError](t, context.Cause(lock.Context()))
		assert.Equal(t, LostDeleted, lost.Reason)
		require.NoError(t, kept.Err(), "its other locks are left alone")

		// The token evicts nobody else.
		err := operator.Evict(t.Context(), "a/b", token)
		requireIs(t, err, ErrHeld, ErrNotAcquired)
		assert.True(t, requireAs[*HeldError](t, err).Holder.Token.Equal(got.Token()))
		require.NoError(t, got.Err())
		require.NoError(t, got.Release(t.Context()))
		requireIs(t, lock.Release(t.Context()), ErrLost)

		again := mustAcquire(t, holder, "a/b")
		require.NoError(t, again.Release(t.Context()), "it may queue again")
	})
}

// The keys of a Mutex, and one that blocks its queue, can be taken away too.
func TestEvictForeignKeys(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		operator := newLocker(t, l)
		mustPut(t, l, "fencelock/n/stray")
		require.NoError(t, operator.Evict(t.Context(), "n", holderOf(t, operator, "n")))
		assert.Empty(t, e.keys("fencelock/"))
		lock := mustAcquire(t, operator, "n")
		require.NoError(t, lock.Release(t.Context()))
	})
}

func TestEvictHitsNobodyElse(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		holder, operator := newLocker(t, l, WithLabel("the holder")), newLocker(t, e.dial(t))
		lock := mustAcquire(t, holder, "n")
		next := acquireLater(t.Context(), newLocker(t, e.dial(t)), "n")
		require.False(t, next.isDone())
		q, err := operator.Inspect(t.Context(), "n")
		require.NoError(t, err)

		for what, token := range map[string]Token{
			"a waiter":                        q.Waiters[0].Token,
			"another holder with that number": mustParse(t, "n", fmt.Sprint(lock.Token().Revision())+".other"),
			"one long gone":                   mustParse(t, "n", "1.gone"),
		} {
			err := operator.Evict(t.Context(), "n", token)
			requireIs(t, err, ErrHeld, ErrNotAcquired)
			held := requireAs[*HeldError](t, err)
			assert.Equal(t, "the holder", held.Holder.Label, what)
			assert.True(t, held.Holder.Token.Equal(lock.Token()), what)
			assert.ErrorContains(t, err, "nobody was evicted", what)
		}
		require.NoError(t, lock.Err())
		assert.Len(t, e.keys("fencelock/n/"), 2)
		require.NoError(t, lock.Release(t.Context()))
		require.NoError(t, next.granted(t).Release(t.Context()))
	})
}

// Between the read and the Txn the lock goes to the next holder, or to nobody.
func TestEvictDecidesInTheTxn(t *testing.T) {
	for name, queued := range map[string]bool{"to the next": true, "to nobody": false} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
				link := e.dial(t)
				operator := newLocker(t, link)
				lock := mustAcquire(t, newLocker(t, l), "n")
				token := holderOf(t, operator, "n")
				var next *running
				if queued {
					next = acquireLater(t.Context(), newLocker(t, e.dial(t)), "n")
					require.False(t, next.isDone())
				}
				link.intercept(only(fakeTxn, fault{requestDelay: time.Second}))
				evicting := background(func(r *running) { r.err = operator.Evict(t.Context(), "n", token) })
				synctest.Wait()
				require.Len(t, link.requests(fakeTxn), 1)
				require.NoError(t, lock.Release(t.Context()))
				err := evicting.wait(t).err
				if !queued {
					requireIs(t, err, ErrNotHeld)
					return
				}
				requireIs(t, err, ErrHeld, ErrNotAcquired)
				got := next.granted(t)
				assert.True(t, requireAs[*HeldError](t, err).Holder.Token.Equal(got.Token()))
				require.NoError(t, got.Release(t.Context()), "it was not hit")
			})
		})
	}
}

func TestEvictErrors(t *testing.T) {
	for name, c := range map[string]struct {
		ctx     func(t *testing.T) context.Context
		lock    string
		token   func(Token) Token
		fault   func(string, any) fault
		is      []error
		says    string
		evicted bool
		sent    int // requests
	}{
		"no context":     {ctx: func(*testing.T) context.Context { return nil }, is: []error{ErrInvalidOption}},
		"a bad name":     {lock: string(make([]byte, 1025)), is: []error{ErrInvalidName}},
		"no token":       {token: func(Token) Token { return Token{} }, is: []error{ErrNoToken}},
		"another lock's": {lock: "m", is: []error{ErrScope}, says: `"m"`},
		"an ended context": {
			ctx: func(t *testing.T) context.Context {
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				return ctx
			},
			is: []error{context.Canceled},
		},
		"not held": {
			lock:  "m",
			token: func(Token) Token { return Token{name: "m", rev: 7, holder: "h"} },
			is:    []error{ErrNotHeld}, says: `"m"`, sent: 1,
		},
		"no answer to the read": {
			fault: only(fakeGet, fault{loseReply: true}),
			is:    []error{context.DeadlineExceeded}, says: "nobody was evicted", sent: 1,
		},
		"denied to read": {
			fault: only(fakeGet, fault{err: rpctypes.ErrGRPCPermissionDenied}),
			is:    []error{rpctypes.ErrPermissionDenied}, says: `"fencelock/n/"`, sent: 1,
		},
		"denied to delete": {
			fault: only(fakeTxn, fault{err: rpctypes.ErrGRPCPermissionDenied}),
			is:    []error{rpctypes.ErrPermissionDenied}, says: "nobody was evicted", sent: 2,
		},
		"the reply is lost": {
			fault: only(fakeTxn, fault{loseReply: true}),
			is:    []error{ErrUnconfirmed, context.DeadlineExceeded}, says: "repeat", evicted: true, sent: 2,
		},
		"the request is lost": {
			fault: only(fakeTxn, fault{loseRequest: true}),
			is:    []error{ErrUnconfirmed, context.DeadlineExceeded}, says: "repeat", sent: 2,
		},
		"timed out at the server": {
			fault: only(fakeTxn, fault{errAfter: rpctypes.ErrGRPCTimeout}),
			is:    []error{ErrUnconfirmed, rpctypes.ErrTimeout}, evicted: true, sent: 2,
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
				lock := mustAcquire(t, newLocker(t, e.dial(t)), "n")
				operator := newLocker(t, l)
				ctx, name, token := context.Context(within(t, time.Second)), "n", mustParse(t, "n", lock.Token().String())
				if c.ctx != nil {
					ctx = c.ctx(t)
				}
				if c.lock != "" {
					name = c.lock
				}
				if c.token != nil {
					token = c.token(token)
				}
				l.intercept(c.fault)
				err := operator.Evict(ctx, name, token)
				requireIs(t, err, c.is...)
				assert.ErrorContains(t, err, "fencelock: ")
				assert.ErrorContains(t, err, c.says)
				assert.Less(t, len(err.Error()), 400)
				assert.Len(t, l.requests(), c.sent)
				assert.Len(t, e.keys("fencelock/n/"), map[bool]int{true: 0, false: 1}[c.evicted])
				l.intercept(nil)
			})
		})
	}
}
