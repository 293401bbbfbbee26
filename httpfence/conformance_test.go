package httpfence_test

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/fencetest"
	"github.com/fencelock/fencelock/httpfence"
	"github.com/stretchr/testify/require"
)

// TestConformance runs the kit against a service: what holds at a fence in one process
// holds for its clients, though tokens and refusals travel.
func TestConformance(t *testing.T) {
	fencetest.Run(t, func(t *testing.T) fencetest.Resource {
		server := httptest.NewServer(new(shelf).handler())
		t.Cleanup(server.Close)
		// More connections than it keeps by default, for the rules with many calls.
		base := &http.Transport{MaxIdleConnsPerHost: 64}
		t.Cleanup(base.CloseIdleConnections)
		lossy := &lossy{base: base}
		c := &caller{
			url:    server.URL,
			fenced: &http.Client{Transport: &httpfence.Transport{Base: lossy}},
			plain:  &http.Client{Transport: base},
		}
		return fencetest.Resource{
			Write: c.write, Read: c.read, Advance: c.advance, Delete: c.delete,
			Update: func(ctx context.Context, token fencelock.Token, key string, f func(string, bool) (string, error)) error {
				// What a client does that reads: first it raises the mark, so that
				// nothing of an earlier holder comes between read and write.
				if err := c.advance(ctx, token); err != nil {
					return err
				}
				old, found, err := c.read(ctx, token.Name(), key)
				if err != nil {
					return err
				}
				value, err := f(old, found)
				if err != nil {
					return err
				}
				return c.write(ctx, token, key, value)
			},
			LoseAnswer: func() { lossy.next.Store(true) },
		}
	})
}

// shelf is a service with a fence for each lock. A lock's name is in the path, in
// hexadecimal, for it can be any bytes; a real service makes the name of what it finds
// there.
type shelf struct {
	mu    sync.Mutex
	shelf map[string]*compartment
}

type compartment struct {
	fence fencelock.Fence

	mu     sync.Mutex // for reads, which are not fenced
	values map[string]string
}

func (s *shelf) of(name string) *compartment {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shelf == nil {
		s.shelf = map[string]*compartment{}
	}
	if s.shelf[name] == nil {
		s.shelf[name] = &compartment{values: map[string]string{}}
	}
	return s.shelf[name]
}

func lockOf(r *http.Request) (string, error) {
	name, err := hex.DecodeString(r.PathValue("lock"))
	return string(name), err
}

func (s *shelf) handler() http.Handler {
	fenced := func(effect func(values map[string]string, key, body string)) http.Handler {
		return httpfence.Require(lockOf)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			token, _ := httpfence.TokenFrom(r.Context())
			c := s.of(token.Name())
			err = c.fence.Do(token, func() error {
				c.mu.Lock()
				defer c.mu.Unlock()
				effect(c.values, r.PathValue("key"), string(body))
				return nil
			})
			switch {
			case httpfence.Error(w, r, err):
			case err != nil:
				http.Error(w, err.Error(), http.StatusInternalServerError)
			default:
				w.WriteHeader(http.StatusNoContent)
			}
		}))
	}
	mux := http.NewServeMux()
	mux.Handle("PUT /{lock}/{key}", fenced(func(values map[string]string, key, body string) { values[key] = body }))
	mux.Handle("DELETE /{lock}/{key}", fenced(func(values map[string]string, key, _ string) { delete(values, key) }))
	mux.Handle("POST /{lock}", fenced(func(map[string]string, string, string) {}))
	mux.HandleFunc("GET /{lock}/{key}", func(w http.ResponseWriter, r *http.Request) {
		name, err := lockOf(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		c := s.of(name)
		c.mu.Lock()
		value, found := c.values[r.PathValue("key")]
		c.mu.Unlock()
		if !found {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		_, _ = io.WriteString(w, value)
	})
	return mux
}

// caller is a client of the service.
type caller struct {
	url           string
	fenced, plain *http.Client
}

func (c *caller) write(ctx context.Context, token fencelock.Token, key, value string) error {
	return c.send(ctx, token, http.MethodPut, "/"+url.PathEscape(key), value)
}

func (c *caller) delete(ctx context.Context, token fencelock.Token, key string) error {
	return c.send(ctx, token, http.MethodDelete, "/"+url.PathEscape(key), "")
}

func (c *caller) advance(ctx context.Context, token fencelock.Token) error {
	return c.send(ctx, token, http.MethodPost, "", "")
}

func (c *caller) send(ctx context.Context, token fencelock.Token, method, path, body string) error {
	req, err := http.NewRequestWithContext(httpfence.WithToken(ctx, token), method, c.url+"/"+hex.EncodeToString([]byte(token.Name()))+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := c.fenced.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if err := httpfence.CheckResponse(resp); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusNoContent {
		text, _ := io.ReadAll(resp.Body)
		return fmt.Errorf("%s: %s", resp.Status, text)
	}
	return nil
}

func (c *caller) read(ctx context.Context, lock, key string) (string, bool, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url+"/"+hex.EncodeToString([]byte(lock))+"/"+url.PathEscape(key), nil)
	if err != nil {
		return "", false, err
	}
	resp, err := c.plain.Do(req)
	if err != nil {
		return "", false, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return "", false, err
	case resp.StatusCode == http.StatusNotFound:
		return "", false, nil
	case resp.StatusCode != http.StatusOK:
		return "", false, errors.New(resp.Status)
	}
	return string(text), true, nil
}

// lossy loses one answer when it is asked to.
type lossy struct {
	base http.RoundTripper
	next atomic.Bool
}

func (l *lossy) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := l.base.RoundTrip(req)
	if err == nil && l.next.Swap(false) {
		resp.Body.Close()
		return nil, errors.New("the connection broke before the answer")
	}
	return resp, err
}

// TestRequireIsNoFence: a handler that commits without one lets a stale write pass,
// as the package's documentation says.
func TestRequireIsNoFence(t *testing.T) {
	values := map[string]string{}
	h := httpfence.Require(fixed("s"))(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		values["k"] = string(body)
	}))
	for _, text := range []string{"9.b", "7.a"} {
		req := httptest.NewRequest(http.MethodPut, "/", strings.NewReader(text))
		require.NoError(t, httpfence.SetToken(req, token(t, "s", text)))
		h.ServeHTTP(httptest.NewRecorder(), req)
	}
	require.Equal(t, "7.a", values["k"])
}
