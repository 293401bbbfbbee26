package integration

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/etcdverify"
	"github.com/fencelock/fencelock/httpfence"
	"github.com/fencelock/fencelock/internal/integration/harness"
)

// register is a service that keeps one text in memory, guarded by the lock
// "register".
type register struct {
	fence fencelock.Fence
	text  string
}

const registerLock = "register"

func (r *register) serve(t *testing.T, opts ...httpfence.Option) (client *http.Client, url string) {
	t.Helper()
	require := httpfence.Require(func(*http.Request) (string, error) { return registerLock, nil }, opts...)
	server := httptest.NewServer(require(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		token, _ := httpfence.TokenFrom(req.Context())
		text, err := io.ReadAll(req.Body)
		if err == nil {
			err = r.fence.Do(token, func() error {
				r.text = string(text)
				return nil
			})
		}
		if err != nil && !httpfence.Error(w, req, err) {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})))
	t.Cleanup(server.Close)
	base := new(http.Transport)
	t.Cleanup(base.CloseIdleConnections)
	return &http.Client{Transport: &httpfence.Transport{Base: base}}, server.URL
}

func putText(ctx context.Context, client *http.Client, url string, token fencelock.Token, text string) error {
	req, err := http.NewRequestWithContext(httpfence.WithToken(ctx, token), http.MethodPut, url, strings.NewReader(text))
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if err := httpfence.CheckResponse(resp); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	return nil
}

// A service behind HTTP, whose writer is evicted and does not look. A naive one
// answers 200: the request is well formed, and from somebody it knows.
func TestHTTPFence(t *testing.T) {
	b := newBench(t)
	r := new(register)
	verifier, err := etcdverify.New(b.client())
	require.NoError(t, err)
	client, url := r.serve(t, httpfence.WithVerifier(verifier.Verify))
	evicted, other := b.locker(b.client()), b.locker(b.client())

	err = evicted.Do(t.Context(), registerLock, func(ctx context.Context, token fencelock.Token) error {
		late := context.WithoutCancel(ctx)
		require.NoError(t, putText(ctx, client, url, token, "first"))
		b.deleteKeyOf(token)
		require.NoError(t, other.Do(t.Context(), registerLock, func(ctx context.Context, token fencelock.Token) error {
			return putText(ctx, client, url, token, "second")
		}, fencelock.RequireTokenUse()))
		return putText(late, client, url, token, "first, late")
	})
	assert.ErrorIs(t, err, fencelock.ErrStale)
	assert.ErrorIs(t, err, fencelock.ErrLost)
	assert.NotErrorIs(t, err, fencelock.ErrTokenRegression)
	assert.Equal(t, "second", r.text)

	// Made-up tokens, of which the smallest is only just none of etcd's, harm
	// nobody.
	resp, err := b.clean.Get(t.Context(), keyPrefix)
	require.NoError(t, err)
	for _, revision := range []int64{resp.Header.Revision + 1, math.MaxInt64} {
		forged, err := fencelock.ParseToken(registerLock, fmt.Sprintf("%d.forged", revision))
		require.NoError(t, err)
		require.ErrorIs(t, putText(t.Context(), client, url, forged, "forged"), fencelock.ErrInvalidToken)
	}
	require.NoError(t, other.Do(t.Context(), registerLock, func(ctx context.Context, token fencelock.Token) error {
		return putText(ctx, client, url, token, "third")
	}))
	assert.Equal(t, "third", r.text)
}

// A mark above what etcd issues, as a restore without --bump-revision leaves it,
// is found over HTTP too: Do knows its token in the answer.
func TestHTTPFenceTokenRegression(t *testing.T) {
	b := newBench(t)
	r := new(register)
	client, url := r.serve(t)
	mark, err := fencelock.ParseToken(registerLock, "1000000.before-the-restore")
	require.NoError(t, err)
	require.NoError(t, r.fence.Advance(mark))

	err = b.locker(b.client()).Do(t.Context(), registerLock, func(ctx context.Context, token fencelock.Token) error {
		return putText(ctx, client, url, token, "after")
	})
	require.ErrorIs(t, err, fencelock.ErrTokenRegression)
	require.ErrorContains(t, err, mark.String())
}

// While etcd is silent a verifier comes to no result, for as many requests as there
// are, and none of them is applied. What it has seen before goes on, and so does all
// else afterwards.
func TestHTTPFenceVerifierOutage(t *testing.T) {
	harness.Parallel(t)
	harness.NoLeaks(t)
	cluster := harness.StartCluster(t, harness.ClusterConfig{})
	b := &bench{t: t, addr: cluster.Members[0].Addr()}
	verifier, err := etcdverify.New(b.client())
	require.NoError(t, err)
	r := new(register)
	client, url := r.serve(t, httpfence.WithVerifier(verifier.Verify))
	put := func(text string) (int, error) {
		token, err := fencelock.ParseToken(registerLock, text)
		require.NoError(t, err)
		req, err := http.NewRequestWithContext(httpfence.WithToken(t.Context(), token), http.MethodPut, url, strings.NewReader(text))
		require.NoError(t, err)
		resp, err := client.Do(req)
		if err != nil {
			return 0, err
		}
		defer resp.Body.Close()
		return resp.StatusCode, httpfence.CheckResponse(resp)
	}
	status, err := put("1.before")
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, status)

	cluster.Members[0].Pause()
	const forgers = 64
	var running sync.WaitGroup
	for n := range forgers {
		running.Go(func() {
			status, err := put(fmt.Sprintf("%d.forged-%d", math.MaxInt64-int64(n), n))
			assert.ErrorIs(t, err, httpfence.ErrUnverified, "it is neither stale nor bad")
			assert.Equal(t, http.StatusServiceUnavailable, status)
		})
	}
	status, err = put("1.before")
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, status, "of a revision that was seen")
	running.Wait()
	assert.Equal(t, "1.before", r.text)
	cluster.Members[0].Resume()

	for n := range forgers {
		running.Go(func() {
			_, err := put(fmt.Sprintf("%d.forged-%d", math.MaxInt64-int64(n), n))
			assert.ErrorIs(t, err, fencelock.ErrInvalidToken)
		})
	}
	running.Wait()
	require.NoError(t, b.locker(b.client()).Do(t.Context(), registerLock, func(ctx context.Context, token fencelock.Token) error {
		return putText(ctx, client, url, token, "after")
	}))
	assert.Equal(t, "after", r.text)
}
