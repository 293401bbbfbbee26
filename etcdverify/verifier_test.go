package etcdverify

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// etcd answers reads as the test says. What a real one does is tested in
// internal/integration.
type etcd struct {
	clientv3.KV
	get func(ctx context.Context, key string) (revision int64, err error)

	mu    sync.Mutex
	reads int
}

func (e *etcd) Get(ctx context.Context, key string, _ ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	e.mu.Lock()
	e.reads++
	e.mu.Unlock()
	revision, err := e.get(ctx, key)
	if err != nil {
		return nil, err
	}
	return &clientv3.GetResponse{Header: &etcdserverpb.ResponseHeader{Revision: revision}}, nil
}

func verifier(t *testing.T, e *etcd, opts ...Option) *Verifier {
	t.Helper()
	v, err := New(&clientv3.Client{KV: e}, opts...)
	require.NoError(t, err)
	return v
}

func token(t *testing.T, revision int64) fencelock.Token {
	t.Helper()
	token, err := fencelock.ParseToken("s", fmt.Sprintf("%d.h", revision))
	require.NoError(t, err)
	return token
}

func TestVerify(t *testing.T) {
	revision := int64(100)
	e := &etcd{get: func(_ context.Context, key string) (int64, error) {
		assert.Equal(t, "fencelock/", key)
		return revision, nil
	}}
	v := verifier(t, e)
	require.ErrorIs(t, v.Verify(t.Context(), fencelock.Token{}), fencelock.ErrNoToken)
	require.Zero(t, e.reads)
	require.NoError(t, v.Verify(t.Context(), token(t, 100)), "the current revision is one that was reached")
	require.NoError(t, v.Verify(t.Context(), token(t, 1)))
	require.NoError(t, v.Verify(t.Context(), token(t, 100)))
	require.Equal(t, 1, e.reads, "what etcd has reached once is not asked again")

	for _, forged := range []int64{101, math.MaxInt64} {
		require.ErrorIs(t, v.Verify(t.Context(), token(t, forged)), fencelock.ErrInvalidToken)
	}
	require.Equal(t, 3, e.reads)
	revision = 101
	require.NoError(t, v.Verify(t.Context(), token(t, 101)), "what was forged can be issued later")
	revision = 50 // etcd was restored
	require.ErrorIs(t, v.Verify(t.Context(), token(t, 102)), fencelock.ErrInvalidToken)
	require.NoError(t, v.Verify(t.Context(), token(t, 101)))
}

func TestWithKey(t *testing.T) {
	e := &etcd{get: func(_ context.Context, key string) (int64, error) {
		assert.Equal(t, "locks/", key)
		return 1, nil
	}}
	require.NoError(t, verifier(t, e, WithKey("locks/")).Verify(t.Context(), token(t, 1)))
}

func TestNoAnswer(t *testing.T) {
	down := errors.New("no leader")
	e := &etcd{get: func(context.Context, string) (int64, error) { return 0, down }}
	err := verifier(t, e).Verify(t.Context(), token(t, 1))
	require.ErrorIs(t, err, down)
	require.NotErrorIs(t, err, fencelock.ErrInvalidToken)
	require.NotErrorIs(t, err, fencelock.ErrStale)
}

// TestSilence: a caller waits as long as its context says, and for 5 s at most;
// the read ends then too.
func TestSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &etcd{get: func(ctx context.Context, _ string) (int64, error) {
			<-ctx.Done()
			return 0, ctx.Err()
		}}
		v := verifier(t, e)
		start := time.Now()
		lost := errors.New("the lock was lost")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, lost)
		defer cancel()
		err := v.Verify(ctx, token(t, 1))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, lost)
		require.Equal(t, time.Second, time.Since(start))
		// The next one cannot use that read, which may be from before its token.
		require.ErrorIs(t, v.Verify(t.Context(), token(t, 1)), context.DeadlineExceeded)
		require.Equal(t, 10*time.Second, time.Since(start))
		require.Equal(t, 2, e.reads)
	})
}

// TestReadsAreShared: however many ask at once, one read is under way, and who
// asks during it is answered by the next.
func TestReadsAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan int64)
		underWay := 0
		e := &etcd{}
		e.get = func(context.Context, string) (int64, error) {
			e.mu.Lock()
			underWay++
			assert.Equal(t, 1, underWay)
			e.mu.Unlock()
			revision := <-answer
			e.mu.Lock()
			underWay--
			e.mu.Unlock()
			return revision, nil
		}
		v := verifier(t, e)
		first := make(chan error, 1)
		go func() { first <- v.Verify(t.Context(), token(t, 100)) }()
		synctest.Wait()
		// Its token is issued while the first read is under way, and that read does
		// not see it.
		later := make(chan error, 20)
		for range cap(later) {
			go func() { later <- v.Verify(t.Context(), token(t, 101)) }()
		}
		synctest.Wait()
		require.Equal(t, 1, e.reads)
		answer <- 100
		require.NoError(t, <-first)
		answer <- 101
		for range cap(later) {
			require.NoError(t, <-later)
		}
		require.Equal(t, 2, e.reads)
	})
}

// TestFlood: made-up tokens, however many and however long etcd is silent, cost etcd
// one read at a time, and those with an honest token that was seen nothing.
func TestFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		silent := false
		e := &etcd{get: func(ctx context.Context, _ string) (int64, error) {
			if silent {
				<-ctx.Done()
				return 0, ctx.Err()
			}
			return 100, nil
		}}
		v := verifier(t, e)
		require.NoError(t, v.Verify(t.Context(), token(t, 100)))
		silent = true
		const forgers = 1000
		start := time.Now()
		results := make(chan error, forgers)
		for n := range forgers {
			go func() {
				time.Sleep(time.Duration(n) * time.Millisecond) // one after the other, of the bubble's clock
				results <- v.Verify(t.Context(), token(t, math.MaxInt64-int64(n)))
			}()
		}
		time.Sleep(forgers * time.Millisecond)
		synctest.Wait()
		e.mu.Lock()
		require.Equal(t, 2, e.reads, "one is under way")
		e.mu.Unlock()
		before := time.Now()
		require.NoError(t, v.Verify(t.Context(), token(t, 99)))
		require.Equal(t, before, time.Now(), "at once")
		for range forgers {
			err := <-results
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.NotErrorIs(t, err, fencelock.ErrInvalidToken, "nothing is known of it")
		}
		require.Equal(t, 3, e.reads, "the second answered all that came during the first")
		require.Equal(t, 10*time.Second, time.Since(start))

		silent = false
		require.NoError(t, v.Verify(t.Context(), token(t, 100)))
		require.ErrorIs(t, v.Verify(t.Context(), token(t, 101)), fencelock.ErrInvalidToken, "it has recovered")
	})
}

func TestBadOptions(t *testing.T) {
	client := &clientv3.Client{}
	for name, f := range map[string]func() error{
		"nil client": func() error { _, err := New(nil); return err },
		"nil option": func() error { _, err := New(client, nil); return err },
		"empty key":  func() error { _, err := New(client, WithKey("")); return err },
		"nil context": func() error {
			v, err := New(client)
			require.NoError(t, err)
			var none context.Context
			return v.Verify(none, token(t, 1))
		},
	} {
		require.ErrorIs(t, f(), fencelock.ErrInvalidOption, name)
	}
}
