package httpfence_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/httpfence"
	"github.com/stretchr/testify/require"
)

// service keeps objects, each guarded by the lock "objects/<id>" and a fence.
type service struct {
	mu      sync.Mutex
	objects map[string]*object
	ran     int // handlers that ran

	rejected []error // what the hook was called with
}

type object struct {
	fence  fencelock.Fence
	value  string
	tokens []fencelock.Token // of the writes, in the order in which they were applied
}

// serve starts a service behind Require, and returns its address.
func (s *service) serve(t *testing.T, opts ...httpfence.Option) (url string) {
	t.Helper()
	scope := func(r *http.Request) (string, error) {
		switch id := r.PathValue("id"); id {
		case "secret":
			return "", errors.New("the database said something private")
		case "long":
			return strings.Repeat("x", 1025), nil
		case "bytes":
			return "objects/\xff", nil
		default:
			return "objects/" + id, nil
		}
	}
	opts = append(opts, httpfence.WithHooks(fencelock.Hooks{TokenRejected: func(info fencelock.TokenRejectedInfo) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.rejected = append(s.rejected, info.Err)
	}}))
	mux := http.NewServeMux()
	mux.Handle("PUT /objects/{id}", httpfence.Require(scope, opts...)(http.HandlerFunc(s.put)))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	t.Cleanup(http.DefaultTransport.(*http.Transport).CloseIdleConnections)
	return server.URL
}

func (s *service) object(id string) *object {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.objects == nil {
		s.objects = map[string]*object{}
	}
	if s.objects[id] == nil {
		s.objects[id] = new(object)
	}
	return s.objects[id]
}

func (s *service) put(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.ran++
	s.mu.Unlock()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, "the request broke off", http.StatusBadRequest)
		return
	}
	token, ok := httpfence.TokenFrom(r.Context())
	if !ok {
		http.Error(w, "no Require before the handler", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Etag", `"of-an-answer-that-is-not-given"`)
	o := s.object(r.PathValue("id"))
	err = o.fence.Do(token, func() error {
		o.value = string(body)
		o.tokens = append(o.tokens, token)
		return nil
	})
	switch {
	case httpfence.Error(w, r, err):
	case err != nil:
		http.Error(w, err.Error(), http.StatusInternalServerError)
	default:
		w.WriteHeader(http.StatusNoContent)
	}
}

func (s *service) value(id string) string {
	return s.object(id).value // no request is under way when a test asks
}

func token(t *testing.T, name, text string) fencelock.Token {
	t.Helper()
	token, err := fencelock.ParseToken(name, text)
	require.NoError(t, err)
	return token
}

var client = &http.Client{Transport: &httpfence.Transport{}}

// put writes an object as a holder does.
func put(ctx context.Context, url, id string, token fencelock.Token, value string) error {
	req, err := http.NewRequestWithContext(httpfence.WithToken(ctx, token), http.MethodPut, url+"/objects/"+id, strings.NewReader(value))
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
	if resp.StatusCode != http.StatusNoContent {
		body, _ := io.ReadAll(resp.Body)
		return errors.New(resp.Status + ": " + string(body))
	}
	return nil
}

// raw sends those header values as they are.
func raw(t *testing.T, url, id string, values []string) (*http.Response, map[string]any) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, url+"/objects/"+id, strings.NewReader("raw"))
	require.NoError(t, err)
	if values != nil {
		req.Header[httpfence.Header] = values
	}
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, "application/problem+json", resp.Header.Get("Content-Type"), "%s", body)
	require.Less(t, len(body), 2048)
	var problem map[string]any
	require.NoError(t, json.Unmarshal(body, &problem))
	require.EqualValues(t, resp.StatusCode, problem["status"])
	require.NotEmpty(t, problem["title"])
	require.Empty(t, resp.Header.Get("Etag"))
	return resp, problem
}
