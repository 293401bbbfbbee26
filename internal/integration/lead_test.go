package integration

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/integration/harness"
)

// term is one run of Lead's callback.
type term struct {
	ctx    context.Context
	token  fencelock.Token
	finish chan<- error // what the callback is to return
}

// lead calls Lead with a callback that does as the test says, and delivers each
// of its terms, and its result.
func lead(t *testing.T, ctx context.Context, l *fencelock.Locker, opts ...fencelock.LockOption) (<-chan term, <-chan error) {
	terms := make(chan term)
	return terms, inBackground(t, func() error {
		return l.Lead(ctx, "x", func(ctx context.Context, token fencelock.Token) error {
			finish := make(chan error, 1)
			select {
			case terms <- term{ctx, token, finish}:
			case <-t.Context().Done():
				return t.Context().Err()
			}
			select {
			case err := <-finish:
				return used(token, err)
			case <-t.Context().Done():
				return t.Context().Err()
			}
		}, opts...)
	})
}

// deleteKeyOf deletes the key of an acquisition, as an operator would.
func (b *bench) deleteKeyOf(token fencelock.Token) {
	b.t.Helper()
	resp, err := b.clean.Get(b.t.Context(), keyPrefix, clientv3.WithPrefix(),
		clientv3.WithMinCreateRev(token.Revision()), clientv3.WithMaxCreateRev(token.Revision()))
	require.NoError(b.t, err)
	require.Len(b.t, resp.Kvs, 1)
	_, err = b.clean.Delete(b.t.Context(), string(resp.Kvs[0].Key))
	require.NoError(b.t, err)
}

// A naive leader loop starts the next term while the last one's work goes on,
// in the same process: two leaders that even share their memory.
func TestLeadAcquiresAgainOnlyWhenTheCallbackHasReturned(t *testing.T) {
	b := newBench(t)
	j := newJournal()
	l := b.locker(b.client(), reportTo(j)...)
	other := b.locker(b.client())
	terms, result := lead(t, t.Context(), l)

	first := harness.Receive(t, terms, soon, "first term")
	b.deleteKeyOf(first.token)
	harness.Receive(t, first.ctx.Done(), soon, "end of the first term's context")

	// The work of the first term goes on. Another may lead meanwhile, and no
	// second term is begun, nor even queued for.
	between := b.acquire(other, "x")
	assert.Len(t, harness.Keys(t, b.clean, keyPrefix), 1)
	assert.Len(t, reported[fencelock.AcquiredInfo](j), 1)
	first.finish <- nil // as if nothing had happened
	b.awaitQueue("x", 2)
	select {
	case <-terms:
		t.Fatal("a term was begun while another holds the lock")
	default:
	}
	b.release(between)

	second := harness.Receive(t, terms, soon, "second term")
	assert.Equal(t, 1, between.Token().Compare(first.token))
	assert.Equal(t, 1, second.token.Compare(between.Token()))
	require.NoError(t, second.ctx.Err())
	// A callback that says what it thinks of its loss is no reason to end.
	b.deleteKeyOf(second.token)
	harness.Receive(t, second.ctx.Done(), soon, "end of the second term's context")
	second.finish <- errWork

	third := harness.Receive(t, terms, soon, "third term")
	assert.Equal(t, 1, third.token.Compare(second.token))
	third.finish <- nil
	require.NoError(t, harness.Receive(t, result, soon, "end of Lead"))
	assert.Len(t, awaitReports[fencelock.LostInfo](t, j, 2, soon), 2)
}

// A naive leader loop takes an end of the work for a failure, and begins again.
func TestLeadReturnsTheCallbacksResult(t *testing.T) {
	b := newBench(t)
	client := b.wired()
	l := b.locker(client.Client)
	for name, want := range map[string]error{"nil": nil, "an error": errWork} {
		t.Run(name, func(t *testing.T) {
			terms, result := lead(t, t.Context(), l)
			harness.Receive(t, terms, soon, "term").finish <- want
			assert.Equal(t, want, harness.Receive(t, result, soon, "end of Lead"))
		})
	}
	t.Run("unconfirmed", func(t *testing.T) {
		client.kv.SetHook(firstRelease(harness.LoseReply(errors.New("connection reset"))))
		terms, result := lead(t, t.Context(), l)
		harness.Receive(t, terms, soon, "term").finish <- nil
		require.ErrorIs(t, harness.Receive(t, result, soon, "end of Lead"), fencelock.ErrUnconfirmed)
	})
	t.Run("token unused", func(t *testing.T) {
		err := l.Lead(t.Context(), "x", func(context.Context, fencelock.Token) error { return nil }, fencelock.RequireTokenUse())
		require.ErrorIs(t, err, fencelock.ErrTokenUnused)
	})
	assert.Empty(t, harness.Keys(t, b.clean, keyPrefix))
}

// A naive leader loop looks at its context only between two terms, or between
// two attempts.
func TestLeadEndsWithItsContext(t *testing.T) {
	harness.Parallel(t)
	b := newBench(t)
	l := b.locker(b.client())
	other := b.locker(b.client())
	stop := errors.New("the caller has enough")

	t.Run("while it waits", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		k := b.acquire(other, "x")
		_, result := lead(t, ctx, l)
		b.awaitQueue("x", 2)
		cancel(stop)
		err := harness.Receive(t, result, soon, "end of Lead")
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, stop)
		require.ErrorIs(t, err, fencelock.ErrNotAcquired)
		b.awaitQueue("x", 1)
		b.release(k)
	})
	t.Run("while the callback runs", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		terms, result := lead(t, ctx, l)
		leading := harness.Receive(t, terms, soon, "term")
		cancel(stop)
		harness.Receive(t, leading.ctx.Done(), soon, "end of the term's context")
		require.ErrorIs(t, context.Cause(leading.ctx), stop)
		// It still leads until its callback returns.
		_, err := other.TryAcquire(t.Context(), "x")
		require.ErrorIs(t, err, fencelock.ErrHeld)
		leading.finish <- leading.ctx.Err()
		require.ErrorIs(t, harness.Receive(t, result, soon, "end of Lead"), context.Canceled)
		assert.Empty(t, harness.Keys(t, b.clean, keyPrefix))
	})
	t.Run("and the lock is lost", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		terms, result := lead(t, ctx, l)
		leading := harness.Receive(t, terms, soon, "term")
		b.deleteKeyOf(leading.token)
		harness.Receive(t, leading.ctx.Done(), soon, "end of the term's context")
		cancel(stop)
		leading.finish <- errWork
		err := harness.Receive(t, result, soon, "end of Lead")
		require.ErrorIs(t, err, fencelock.ErrLost)
		require.ErrorIs(t, err, errWork)
	})
	t.Run("while etcd cannot be reached", func(t *testing.T) {
		proxy := harness.NewProxy(t, b.addr)
		proxy.Refuse()
		away := b.locker(harness.NewClient(t, proxy.Addr()))
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		_, result := lead(t, ctx, away)
		err := harness.Receive(t, result, soon, "end of Lead")
		deadline, _ := ctx.Deadline()
		assert.Less(t, time.Since(deadline), 200*time.Millisecond)
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

// A naive leader loop ends with the first error, and the service has no leader
// until somebody looks.
func TestLeadTriesAgainAfterErrorsOfEtcds(t *testing.T) {
	b := newBench(t)
	j := newJournal()
	client := b.wired()
	l := b.locker(client.Client, reportTo(j)...)
	client.lease.SetHook(func(c harness.Call) harness.Fate {
		if c.Op == harness.OpGrant && c.N <= 2 {
			return harness.LoseRequest(errors.New("no route to host"))
		}
		return harness.Pass()
	})
	terms, result := lead(t, t.Context(), l)
	harness.Receive(t, terms, soon, "term").finish <- nil
	require.NoError(t, harness.Receive(t, result, soon, "end of Lead"))
	failed := reported[fencelock.NotAcquiredInfo](j)
	require.Len(t, failed, 2)
	assert.ErrorContains(t, failed[0].Err, "no route to host")

	// With MaxWait somebody else's long term is no end either.
	other := b.locker(b.client())
	k := b.acquire(other, "x")
	terms, result = lead(t, t.Context(), l, fencelock.MaxWait(20*time.Millisecond))
	awaitReports[fencelock.NotAcquiredInfo](t, j, 4, soon)
	b.release(k)
	harness.Receive(t, terms, soon, "term").finish <- nil
	require.NoError(t, harness.Receive(t, result, soon, "end of Lead"))
}

// A naive leader loop repeats for ever what cannot succeed.
func TestLeadReturnsWhatNoRepetitionCanMend(t *testing.T) {
	never := func(context.Context, fencelock.Token) error { return errors.New("the callback ran") }
	for name, test := range map[string]struct {
		call func(b *bench, l *fencelock.Locker) error
		want error
	}{
		"a nil callback": {func(b *bench, l *fencelock.Locker) error { return l.Lead(b.t.Context(), "x", nil) }, fencelock.ErrInvalidOption},
		"a bad option": {func(b *bench, l *fencelock.Locker) error {
			return l.Lead(b.t.Context(), "x", never, fencelock.MaxWait(-1))
		}, fencelock.ErrInvalidOption},
		"a bad name": {func(b *bench, l *fencelock.Locker) error { return l.Lead(b.t.Context(), "", never) }, fencelock.ErrInvalidName},
		"reentrant": {func(b *bench, l *fencelock.Locker) error {
			k := b.acquire(l, "x")
			defer b.release(k)
			return l.Lead(k.Context(), "x", never)
		}, fencelock.ErrReentrant},
		"a key that blocks the queue": {func(b *bench, l *fencelock.Locker) error {
			_, err := b.clean.Put(b.t.Context(), "fencelock/x/stray", "")
			require.NoError(b.t, err)
			err = l.Lead(b.t.Context(), "x", never)
			_, derr := b.clean.Delete(b.t.Context(), "fencelock/x/stray")
			require.NoError(b.t, derr)
			return err
		}, fencelock.ErrForeignKey},
		"closed": {func(b *bench, l *fencelock.Locker) error {
			require.NoError(b.t, l.Close())
			return l.Lead(b.t.Context(), "x", never)
		}, fencelock.ErrClosed},
		"closed while it waits": {func(b *bench, l *fencelock.Locker) error {
			k := b.acquire(b.locker(b.client()), "x")
			_, result := lead(b.t, b.t.Context(), l)
			b.awaitQueue("x", 2)
			require.NoError(b.t, l.Close())
			err := harness.Receive(b.t, result, soon, "end of Lead")
			b.release(k)
			return err
		}, fencelock.ErrClosed},
		"closed while it leads": {func(b *bench, l *fencelock.Locker) error {
			terms, result := lead(b.t, b.t.Context(), l)
			leading := harness.Receive(b.t, terms, soon, "term")
			closed := inBackground(b.t, l.Close)
			harness.Receive(b.t, leading.ctx.Done(), soon, "end of the term's context")
			leading.finish <- nil
			require.NoError(b.t, harness.Receive(b.t, closed, soon, "end of Close"))
			return harness.Receive(b.t, result, soon, "end of Lead")
		}, fencelock.ErrLost},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			err := test.call(b, b.locker(b.client()))
			require.ErrorIs(t, err, test.want)
		})
	}
}
