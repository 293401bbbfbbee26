package integration

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/integration/harness"
)

var errWork = errors.New("what the callback says")

// used is a callback's last word after it used its token.
func used(token fencelock.Token, err error) error {
	_ = token.Revision()
	return err
}

// A naive library wraps the callback's error in words of its own, or asks etcd
// more than it has to: an uncontended cycle is two requests.
func TestDoReturnsWhatTheCallbackReturned(t *testing.T) {
	b := newBench(t)
	j := newJournal()
	client := b.wired()
	l := b.locker(client.Client, reportTo(j)...)
	require.NoError(t, l.Do(t.Context(), "x", func(_ context.Context, token fencelock.Token) error { return used(token, nil) }))
	require.NoError(t, l.DoAdvisory(t.Context(), "x", func(context.Context) error { return nil }))
	err := l.Do(t.Context(), "x", func(_ context.Context, token fencelock.Token) error { return used(token, errWork) })
	assert.Equal(t, errWork, err, "as it is")
	err = l.DoAdvisory(t.Context(), "x", func(context.Context) error { return errWork })
	assert.Equal(t, errWork, err)

	// Two requests each, and the lease.
	assert.Equal(t, 8, client.kv.Calls(harness.OpTxn))
	assert.Equal(t, 9, client.requests())

	acquired, released := reported[fencelock.AcquiredInfo](j), reported[fencelock.ReleasedInfo](j)
	require.Len(t, acquired, 4)
	require.Len(t, released, 4)
	for i := range acquired {
		assert.True(t, acquired[i].Token.Equal(released[i].Token))
		assert.Equal(t, i%2 == 1, acquired[i].Advisory)
		assert.False(t, acquired[i].Waited)
		assert.Equal(t, calmTTL, acquired[i].TTL)
		assert.True(t, released[i].Confirmed)
	}
	assert.Empty(t, warnings(j, ""))
}

// A naive library throws one of the two errors away: what the callback knows of
// its half-done work, or that it was done without the lock.
func TestDoJoinsTheLossWithTheCallbacksError(t *testing.T) {
	b := newBench(t)
	l := b.locker(b.client())
	for name, do := range map[string]func(fn func(context.Context) error) error{
		"Do": func(fn func(context.Context) error) error {
			return l.Do(t.Context(), "x", func(ctx context.Context, token fencelock.Token) error { return used(token, fn(ctx)) })
		},
		"DoAdvisory": func(fn func(context.Context) error) error { return l.DoAdvisory(t.Context(), "x", fn) },
	} {
		t.Run(name, func(t *testing.T) {
			err := do(func(ctx context.Context) error {
				_, err := b.clean.Delete(t.Context(), harness.Keys(t, b.clean, keyPrefix)[0])
				require.NoError(t, err)
				<-ctx.Done()
				return errWork
			})
			require.ErrorIs(t, err, errWork)
			require.ErrorIs(t, err, fencelock.ErrLost)
			var lost *fencelock.LostError
			require.ErrorAs(t, err, &lost)
			assert.Equal(t, fencelock.LostDeleted, lost.Reason)
		})
	}
}

// A callback likes to return the cause of its context. A naive library then says
// the same loss twice, and errors.As finds the one that does not know when the
// callback returned.
func TestDoSaysALossOnce(t *testing.T) {
	b := newBench(t)
	l := b.locker(b.client())
	for name, wrap := range map[string]func(error) error{
		"the cause":         func(err error) error { return err },
		"the cause wrapped": func(err error) error { return fmt.Errorf("sweeping: %w", err) },
	} {
		t.Run(name, func(t *testing.T) {
			err := l.Do(t.Context(), "x", func(ctx context.Context, token fencelock.Token) error {
				_, err := b.clean.Delete(t.Context(), harness.Keys(t, b.clean, keyPrefix)[0])
				require.NoError(t, err)
				<-ctx.Done()
				return used(token, wrap(context.Cause(ctx)))
			})
			var lost *fencelock.LostError
			require.ErrorAs(t, err, &lost)
			assert.False(t, lost.Returned.IsZero(), "the one that knows when the callback returned")
			if name == "the cause" {
				assert.Same(t, lost, err)
			} else {
				assert.ErrorContains(t, err, "sweeping")
			}
		})
	}
}

// A stale token of a holder that lost the lock is the fence doing its work, not
// a regression of tokens.
func TestDoStaleAfterALossIsNoRegression(t *testing.T) {
	b := newBench(t)
	l := b.locker(b.client())
	other := b.locker(b.client())
	var fence fencelock.Fence
	err := l.Do(t.Context(), "x", func(ctx context.Context, token fencelock.Token) error {
		require.NoError(t, fence.Advance(token))
		_, err := b.clean.Delete(t.Context(), harness.Keys(t, b.clean, keyPrefix)[0])
		require.NoError(t, err)
		require.NoError(t, other.Do(t.Context(), "x", func(_ context.Context, next fencelock.Token) error {
			return fence.Advance(next)
		}))
		return fence.Do(token, func() error { t.Error("a stale effect was applied"); return nil })
	})
	require.ErrorIs(t, err, fencelock.ErrStale)
	require.ErrorIs(t, err, fencelock.ErrLost)
	assert.NotErrorIs(t, err, fencelock.ErrTokenRegression)
}

// A naive library says that all went well when it does not know, or gives up on
// a key that a shared lease will keep alive for ever.
func TestDoJoinsUnconfirmedWithTheCallbacksError(t *testing.T) {
	b := newBench(t)
	j := newJournal()
	client := b.wired()
	l := b.locker(client.Client, reportTo(j)...)
	neighbour := b.acquire(l, "neighbour")
	reset := errors.New("connection reset")
	for name, test := range map[string]struct {
		fate   harness.Fate // of the first attempt to release
		result error
	}{
		"executed, the answer lost": {harness.LoseReply(reset), errWork},
		"and the callback is happy": {harness.LoseReply(reset), nil},
	} {
		t.Run(name, func(t *testing.T) {
			client.kv.SetHook(firstRelease(test.fate))
			err := l.Do(t.Context(), "x", func(_ context.Context, token fencelock.Token) error { return used(token, test.result) })
			client.kv.SetHook(nil)
			require.ErrorIs(t, err, fencelock.ErrUnconfirmed)
			if test.result != nil {
				require.ErrorIs(t, err, test.result)
			}
			assert.NotErrorIs(t, err, fencelock.ErrLost)
			b.awaitQueue("x", 0)
		})
	}
	released := reported[fencelock.ReleasedInfo](j)
	require.Len(t, released, 2)
	for _, info := range released {
		assert.False(t, info.Confirmed)
		require.ErrorIs(t, info.Err, fencelock.ErrUnconfirmed)
	}
	assert.Len(t, warnings(j, "release not confirmed"), 2)

	// A request that was never sent is sent again, within the call, and that
	// answer is clear: the key was there.
	client.kv.SetHook(firstRelease(harness.LoseRequest(reset)))
	require.NoError(t, l.Do(t.Context(), "x", func(_ context.Context, token fencelock.Token) error { return used(token, nil) }))

	// If nothing is answered at all the keeper goes on after the call, while
	// the neighbour keeps the lease alive.
	client.kv.SetHook(func(c harness.Call) harness.Fate {
		if c.Op == harness.OpTxn && c.Deletes() {
			return harness.LoseRequest(reset)
		}
		return harness.Pass()
	})
	k := b.acquire(l, "x")
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, k.Release(ctx), fencelock.ErrUnconfirmed)
	b.awaitQueue("x", 1)
	client.kv.SetHook(nil)
	b.awaitQueue("x", 0)
	require.NoError(t, neighbour.Err())
	b.release(neighbour)
}

// Tokens that go backwards are the one thing the library cannot rule out by
// itself; a naive one reports "stale" to a holder that held throughout, and
// nobody looks for the restore that caused it.
func TestDoTokenRegression(t *testing.T) {
	b := newBench(t)
	l := b.locker(b.client())
	higher, err := fencelock.ParseToken("x", "9000000000.another")
	require.NoError(t, err)
	var fence fencelock.Fence
	require.NoError(t, fence.Advance(higher))
	var token fencelock.Token
	err = l.Do(t.Context(), "x", func(_ context.Context, tok fencelock.Token) error {
		token = tok
		err := fence.Do(tok, func() error { t.Error("a stale effect was applied"); return nil })
		return errors.Join(errWork, err)
	})
	require.ErrorIs(t, err, fencelock.ErrTokenRegression)
	require.ErrorIs(t, err, fencelock.ErrStale)
	require.ErrorIs(t, err, errWork)
	var stale *fencelock.StaleError
	require.ErrorAs(t, err, &stale)
	assert.True(t, stale.Presented.Equal(token))
	assert.True(t, stale.Highest.Equal(higher))
	assert.ErrorContains(t, err, token.String())
	assert.ErrorContains(t, err, higher.String())
	assert.ErrorContains(t, err, "--bump-revision")

	// The same number from another holder is one too.
	sameNumber, err := fencelock.ParseToken("x", "9000000000.yet-another")
	require.NoError(t, err)
	require.ErrorIs(t, fence.Advance(sameNumber), fencelock.ErrStale)

	// Somebody else's stale token is not about this lock's tokens.
	err = l.Do(t.Context(), "x", func(_ context.Context, tok fencelock.Token) error {
		return used(tok, fence.Advance(sameNumber))
	})
	require.ErrorIs(t, err, fencelock.ErrStale)
	assert.NotErrorIs(t, err, fencelock.ErrTokenRegression)

	// And an advisory lock has none.
	err = l.DoAdvisory(t.Context(), "x", func(context.Context) error { return fence.Advance(sameNumber) })
	require.ErrorIs(t, err, fencelock.ErrStale)
	assert.NotErrorIs(t, err, fencelock.ErrTokenRegression)
}

// A lock for correctness whose token goes nowhere protects nothing, and nobody
// notices. The warning comes once a name: one in each run of a loop would be
// filtered away.
func TestDoTokenUnused(t *testing.T) {
	b := newBench(t)
	j := newJournal()
	l := b.locker(b.client(), reportTo(j)...)
	unused := func(context.Context, fencelock.Token) error { return nil }
	for range 3 {
		require.NoError(t, l.Do(t.Context(), "x", unused))
		require.NoError(t, l.Do(t.Context(), "y", unused))
	}
	assert.Len(t, reported[fencelock.TokenUnusedInfo](j), 6, "the hook, each time")
	lines := warnings(j, "never used its fencing token")
	require.Len(t, lines, 2)
	assert.ElementsMatch(t, []string{"x", "y"}, []string{attribute(lines[0], "lock"), attribute(lines[1], "lock")})

	err := l.Do(t.Context(), "z", unused, fencelock.RequireTokenUse())
	require.ErrorIs(t, err, fencelock.ErrTokenUnused)
	assert.ErrorContains(t, err, `"z"`)
	assert.Empty(t, harness.Keys(t, b.clean, keyPrefix), "it was released")
	assert.Len(t, warnings(j, "never used its fencing token"), 2, "an error needs no warning")

	// A callback that failed may have had no reason to.
	require.ErrorIs(t, l.Do(t.Context(), "z", func(context.Context, fencelock.Token) error { return errWork },
		fencelock.RequireTokenUse()), errWork)
	require.NoError(t, l.DoAdvisory(t.Context(), "z", func(context.Context) error { return nil }))

	// What is use, and what is not.
	var fence fencelock.Fence
	for name, test := range map[string]struct {
		use  func(fencelock.Token)
		used bool
	}{
		"String":      {func(token fencelock.Token) { _ = token.String() }, false},
		"LogValue":    {func(token fencelock.Token) { _ = token.LogValue() }, false},
		"Compare":     {func(token fencelock.Token) { token.Compare(token) }, false},
		"Equal":       {func(token fencelock.Token) { token.Equal(token) }, false},
		"Name":        {func(token fencelock.Token) { _ = token.Name() }, false},
		"Holder":      {func(token fencelock.Token) { _ = token.Holder() }, false},
		"Revision":    {func(token fencelock.Token) { token.Revision() }, true},
		"Value":       {func(token fencelock.Token) { _, _ = token.Value() }, true},
		"MarshalText": {func(token fencelock.Token) { _, _ = token.MarshalText() }, true},
		"IsOwner":     {func(token fencelock.Token) { token.IsOwner() }, true},
		"a fence":     {func(token fencelock.Token) { assert.NoError(t, fence.Advance(token)) }, true},
		"a copy":      {func(token fencelock.Token) { c := token; c.Revision() }, true},
	} {
		err := l.Do(t.Context(), "z", func(_ context.Context, token fencelock.Token) error {
			test.use(token)
			return nil
		}, fencelock.RequireTokenUse())
		if test.used {
			assert.NoError(t, err, name)
		} else {
			assert.ErrorIs(t, err, fencelock.ErrTokenUnused, name)
		}
	}
}

// IsOwner in the Txn that has the effect is the fence for the same etcd.
func TestDoIsOwnerIsTrueOnlyWhileHeld(t *testing.T) {
	b := newBench(t)
	client := b.client()
	l := b.locker(client)
	owns := func(token fencelock.Token) bool {
		resp, err := client.Txn(t.Context()).If(token.IsOwner()).Commit()
		require.NoError(t, err)
		return resp.Succeeded
	}
	var token fencelock.Token
	require.NoError(t, l.Do(t.Context(), "x", func(_ context.Context, tok fencelock.Token) error {
		token = tok
		assert.True(t, owns(tok))
		return nil
	}))
	assert.False(t, owns(token))
	assert.False(t, owns(fencelock.Token{}))
	parsed, err := fencelock.ParseToken("x", token.String())
	require.NoError(t, err)
	require.NoError(t, l.Do(t.Context(), "x", func(_ context.Context, next fencelock.Token) error {
		assert.False(t, owns(token), "of an earlier acquisition, on the same key")
		assert.False(t, owns(parsed))
		assert.True(t, owns(next))
		return nil
	}))
}
