package httpfence_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/httpfence"
	"github.com/stretchr/testify/require"
)

// late is a refusal of the token that send sends.
func late(t *testing.T) *fencelock.StaleError {
	return &fencelock.StaleError{Scope: "s", Presented: token(t, "s", "7.a"), Highest: token(t, "s", "9.b")}
}

func fixed(name string) func(*http.Request) (string, error) {
	return func(*http.Request) (string, error) { return name, nil }
}

// servers starts the handler once for each version of HTTP.
func servers(t *testing.T, h http.Handler, test func(t *testing.T, client *http.Client, url string)) {
	t.Helper()
	for _, version := range []string{"HTTP/1.1", "HTTP/2.0"} {
		t.Run(version, func(t *testing.T) {
			server := httptest.NewUnstartedServer(h)
			server.EnableHTTP2 = version == "HTTP/2.0"
			server.StartTLS()
			defer server.Close()
			client := server.Client()
			client.Transport = &httpfence.Transport{Base: client.Transport}
			defer client.CloseIdleConnections()
			test(t, client, server.URL)
		})
	}
}

func send(t *testing.T, client *http.Client, url string) (*http.Response, error) {
	t.Helper()
	ctx := httpfence.WithToken(t.Context(), token(t, "s", "7.a"))
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, url, strings.NewReader("x"))
	require.NoError(t, err)
	return client.Do(req)
}

// quiet keeps what the package logs out of the tests' output, and returns it.
func quiet(t *testing.T) *bytes.Buffer {
	var log bytes.Buffer
	old := slog.Default()
	t.Cleanup(func() { slog.SetDefault(old) })
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	return &log
}

// TestAnswerThatHasBegun: a handler that wrote before it was refused cannot take
// that back, and the client must not read a success.
func TestAnswerThatHasBegun(t *testing.T) {
	for name, begin := range map[string]func(w http.ResponseWriter){
		"status":   func(w http.ResponseWriter) { w.WriteHeader(http.StatusAccepted) },
		"body":     func(w http.ResponseWriter) { _, _ = io.WriteString(w, "working on it\n") },
		"bytes":    func(w http.ResponseWriter) { _, _ = w.Write([]byte("working on it\n")) },
		"copied":   func(w http.ResponseWriter) { _, _ = io.Copy(w, strings.NewReader("working on it\n")) },
		"flush":    func(w http.ResponseWriter) { w.(http.Flusher).Flush() },
		"streamed": func(w http.ResponseWriter) { _, _ = w.Write([]byte("1\n")); w.(http.Flusher).Flush() },
		"control": func(w http.ResponseWriter) {
			if err := http.NewResponseController(w).Flush(); err != nil {
				panic(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			log := quiet(t)
			after := make(chan bool, 1)
			h := httpfence.Require(fixed("s"))(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				begin(w)
				answered := httpfence.Error(w, r, late(t))
				after <- answered
			}))
			servers(t, h, func(t *testing.T, client *http.Client, url string) {
				resp, err := send(t, client, url)
				require.True(t, <-after, "it is a refusal all the same, and the handler returns")
				if err != nil {
					return // nothing came
				}
				defer resp.Body.Close()
				body, err := io.ReadAll(resp.Body)
				require.Error(t, err, "the client takes it for %s %q", resp.Status, body)
				require.NotContains(t, string(body), "urn:", "no answer in an answer")
			})
			require.Contains(t, log.String(), "httpfence.Error")
		})
	}
}

// TestEarlyHints: 1xx is no answer yet.
func TestEarlyHints(t *testing.T) {
	h := httpfence.Require(fixed("s"))(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusEarlyHints)
		httpfence.Error(w, r, late(t))
	}))
	servers(t, h, func(t *testing.T, client *http.Client, url string) {
		resp, err := send(t, client, url)
		require.NoError(t, err)
		defer resp.Body.Close()
		require.ErrorIs(t, httpfence.CheckResponse(resp), fencelock.ErrStale)
	})
}

// TestWriterIsAsBefore: what the server's ResponseWriter can do besides writing the
// handler's can, and no more.
func TestWriterIsAsBefore(t *testing.T) {
	type can struct{ Flush, Hijack, Push bool }
	of := func(w http.ResponseWriter) (c can) {
		_, c.Flush = w.(http.Flusher)
		_, c.Hijack = w.(http.Hijacker)
		_, c.Push = w.(http.Pusher)
		return c
	}
	var before, behind can
	fenced := httpfence.Require(fixed("s"))(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { behind = of(w) }))
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		before = of(w)
		fenced.ServeHTTP(w, r)
	})
	servers(t, h, func(t *testing.T, client *http.Client, url string) {
		resp, err := send(t, client, url)
		require.NoError(t, err)
		resp.Body.Close()
		require.True(t, before.Flush)
		require.Equal(t, before, behind)
	})
	req := httptest.NewRequest(http.MethodPut, "/", nil)
	require.NoError(t, httpfence.SetToken(req, token(t, "s", "7.a")))
	h.ServeHTTP(struct{ http.ResponseWriter }{httptest.NewRecorder()}, req)
	require.Equal(t, can{}, before)
	require.Equal(t, before, behind)
}

// TestHijack: the handler's connection is its own.
func TestHijack(t *testing.T) {
	h := httpfence.Require(fixed("s"))(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			panic(err)
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 204 No Content\r\n\r\n")
	}))
	server := httptest.NewServer(h)
	defer server.Close()
	base := new(http.Transport)
	defer base.CloseIdleConnections()
	resp, err := send(t, &http.Client{Transport: &httpfence.Transport{Base: base}}, server.URL)
	require.NoError(t, err)
	resp.Body.Close()
	require.Equal(t, http.StatusNoContent, resp.StatusCode)
}

// TestPanickingHandler: the client gets no answer, and the next one does.
func TestPanickingHandler(t *testing.T) {
	fence := new(fencelock.Fence)
	fail := true
	h := httpfence.Require(fixed("s"))(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, _ := httpfence.TokenFrom(r.Context())
		_ = fence.Do(token, func() error {
			if fail {
				panic(http.ErrAbortHandler)
			}
			return nil
		})
		w.WriteHeader(http.StatusNoContent)
	}))
	servers(t, h, func(t *testing.T, client *http.Client, url string) {
		fail = true
		_, err := send(t, client, url)
		require.Error(t, err)
		fail = false
		resp, err := send(t, client, url)
		require.NoError(t, err)
		resp.Body.Close()
		require.Equal(t, http.StatusNoContent, resp.StatusCode)
	})
}

// TestCompressed: a middleware that compresses what is written says so before the
// handler, and a refusal must not take that away.
func TestCompressed(t *testing.T) {
	inner := httpfence.Require(fixed("s"))(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		httpfence.Error(w, r, late(t))
	}))
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		defer z.Close()
		inner.ServeHTTP(compressing{w, z}, r)
	})
	servers(t, h, func(t *testing.T, client *http.Client, url string) {
		resp, err := send(t, client, url)
		require.NoError(t, err)
		defer resp.Body.Close()
		require.ErrorIs(t, httpfence.CheckResponse(resp), fencelock.ErrStale)
	})
}

type compressing struct {
	http.ResponseWriter
	z *gzip.Writer
}

func (c compressing) Write(p []byte) (int, error) { return c.z.Write(p) }

// TestTwoRefusalsInOne: the error of a handler that was refused in several places
// is the client's if one of them was for its token.
func TestTwoRefusalsInOne(t *testing.T) {
	other := &fencelock.StaleError{Scope: "o", Presented: token(t, "o", "8.c"), Highest: token(t, "o", "9.d")}
	for name, c := range map[string]struct {
		err  error
		want bool
	}{
		"other's first":   {errors.Join(other, late(t)), true},
		"other's last":    {errors.Join(late(t), other), true},
		"deep":            {fmt.Errorf("x: %w, %w", errors.New("y"), fmt.Errorf("z: %w", errors.Join(other, late(t)))), true},
		"other's, bare":   {errors.Join(other, fencelock.ErrStale), true},
		"only other's":    {fmt.Errorf("%w and %w", other, other), false},
		"by Is":           {kind{fencelock.ErrStale}, true},
		"by Is, of other": {kind{fencelock.ErrNoToken}, false},
		"by As":           {holding{late(t)}, true},
		"by As, other's":  {holding{other}, false},
	} {
		t.Run(name, func(t *testing.T) {
			h := httpfence.Require(fixed("s"))(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				require.Equal(t, c.want, httpfence.Error(w, r, c.err))
			}))
			req := httptest.NewRequest(http.MethodPut, "/", nil)
			require.NoError(t, httpfence.SetToken(req, token(t, "s", "7.a")))
			w := httptest.NewRecorder()
			h.ServeHTTP(w, req)
			if !c.want {
				return
			}
			resp := w.Result()
			resp.Request = req
			stale, ok := errors.AsType[*fencelock.StaleError](httpfence.CheckResponse(resp))
			require.True(t, ok)
			require.Equal(t, "7.a", stale.Presented.String())
		})
	}
}

// kind is an error that is another one without wrapping it.
type kind struct{ of error }

func (kind) Error() string          { return "a fence of another make" }
func (k kind) Is(target error) bool { return target == k.of }

// holding has a StaleError and does not unwrap to it.
type holding struct{ stale *fencelock.StaleError }

func (holding) Error() string { return "a fence of another make" }

func (h holding) As(target any) bool {
	p, ok := target.(**fencelock.StaleError)
	if ok {
		*p = h.stale
	}
	return ok
}

// TestWhereAnErrorComesFrom decides what it is answered with: what a verifier or a
// scope happens to wrap says nothing about the request's token.
func TestWhereAnErrorComesFrom(t *testing.T) {
	other := &fencelock.StaleError{Scope: "s", Presented: token(t, "s", "8.c"), Highest: token(t, "s", "9.b")}
	for _, c := range []struct {
		name   string
		scope  error
		verify error
		status int
		kind   string
	}{
		{name: "verifier without a token of its own", verify: fmt.Errorf("ask: %w", fencelock.ErrNoToken), status: 503, kind: "token-not-verified"},
		{name: "verifier for another lock", verify: fencelock.ErrInvalidName, status: 503, kind: "token-not-verified"},
		{name: "verifier of another scope", verify: fencelock.ErrScope, status: 503, kind: "token-not-verified"},
		{name: "verifier that ran out of time", verify: context.DeadlineExceeded, status: 503, kind: "token-not-verified"},
		{name: "verifier that refused", verify: other, status: 412, kind: "stale-token"},
		{name: "scope without a token", scope: fencelock.ErrNoToken, status: 400, kind: "no-scope"},
		{name: "scope with an odd token", scope: fencelock.ErrInvalidToken, status: 400, kind: "no-scope"},
		{name: "scope that is stale", scope: other, status: 400, kind: "no-scope"},
	} {
		t.Run(c.name, func(t *testing.T) {
			rejected := 0
			h := httpfence.Require(
				func(*http.Request) (string, error) { return "s", c.scope },
				httpfence.WithVerifier(func(context.Context, fencelock.Token) error { return c.verify }),
				httpfence.WithHooks(fencelock.Hooks{TokenRejected: func(info fencelock.TokenRejectedInfo) {
					rejected++
					require.ErrorIs(t, info.Err, c.verify)
				}}),
			)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the handler ran") }))
			req := httptest.NewRequest(http.MethodPut, "/", nil)
			require.NoError(t, httpfence.SetToken(req, token(t, "s", "7.a")))
			w := httptest.NewRecorder()
			h.ServeHTTP(w, req)
			require.Equal(t, c.status, w.Code)
			require.Contains(t, w.Body.String(), "urn:fencelock:problem:"+c.kind)
			require.Equal(t, c.verify != nil, rejected == 1)
			if c.status == http.StatusPreconditionFailed {
				resp := w.Result()
				resp.Request = req
				stale, ok := errors.AsType[*fencelock.StaleError](httpfence.CheckResponse(resp))
				require.True(t, ok, "whatever it compared, this token is the refused one")
				require.Equal(t, "7.a", stale.Presented.String())
			}
		})
	}
}

// TestTokenOfAnotherLock: a service that is wired to the wrong fence applies
// nothing, and does not blame the client; one without Require neither.
func TestTokenOfAnotherLock(t *testing.T) {
	var fence fencelock.Fence
	require.NoError(t, fence.Advance(token(t, "another", "1.a")))
	var err error
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, _ := httpfence.TokenFrom(r.Context())
		err = fence.Do(token, func() error {
			t.Error("it was applied")
			return nil
		})
		if !httpfence.Error(w, r, err) {
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	for _, c := range []struct {
		h    http.Handler
		want error
	}{
		{httpfence.Require(fixed("s"))(handler), fencelock.ErrScope},
		{handler, fencelock.ErrNoToken},
	} {
		req := httptest.NewRequest(http.MethodPut, "/", nil)
		require.NoError(t, httpfence.SetToken(req, token(t, "s", "7.a")))
		w := httptest.NewRecorder()
		c.h.ServeHTTP(w, req)
		require.ErrorIs(t, err, c.want)
		require.Equal(t, http.StatusInternalServerError, w.Code)
	}
}

// TestOnTheWire is what no Go client sends.
func TestOnTheWire(t *testing.T) {
	s := new(service)
	url := s.serve(t)
	for name, c := range map[string]struct {
		header, body string
		status       int
	}{
		"small letters":       {"fencing-token: 7.a\r\n", "", 204},
		"capitals":            {"FENCING-TOKEN:7.a\r\n", "", 204},
		"white space around":  {"Fencing-Token: \t 7.a \t\r\n", "", 204},
		"two lines":           {"Fencing-Token: 7.a\r\nfencing-token: 8.b\r\n", "", 400},
		"two lines, the same": {"Fencing-Token: 7.a\r\nFENCING-TOKEN: 7.a\r\n", "", 400},
		"joined by a proxy":   {"Fencing-Token: 7.a, 8.b\r\n", "", 400},
		"folded":              {"Fencing-Token: 7.a,\r\n 8.b\r\n", "", 400},
		"folded in itself":    {"Fencing-Token: 7.\r\n a\r\n", "", 400},
		"underscore":          {"Fencing_Token: 7.a\r\n", "", 428},
		"in the trailer":      {"Transfer-Encoding: chunked\r\nTrailer: Fencing-Token\r\n", "1\r\nx\r\n0\r\nFencing-Token: 7.a\r\n\r\n", 428},
		"also in the trailer": {"Fencing-Token: 7.a\r\nTransfer-Encoding: chunked\r\nTrailer: Fencing-Token\r\n", "1\r\nx\r\n0\r\nFencing-Token: 8.b\r\n\r\n", 204},
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
			require.NoError(t, err)
			defer conn.Close()
			length := "Content-Length: 0\r\n"
			if c.body != "" {
				length = ""
			}
			_, err = io.WriteString(conn, "PUT /objects/wire HTTP/1.1\r\nHost: service.test\r\nConnection: close\r\n"+length+c.header+"\r\n"+c.body)
			require.NoError(t, err)
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			require.NoError(t, err)
			defer resp.Body.Close()
			require.Equal(t, c.status, resp.StatusCode)
		})
	}
	for _, token := range s.object("wire").tokens {
		require.Equal(t, "7.a", token.String())
	}
}

// TestHookThatEndsItsGoroutine is no reason to leave the client without an answer.
func TestHookThatEndsItsGoroutine(t *testing.T) {
	quiet(t)
	h := httpfence.Require(fixed("s"), httpfence.WithHooks(fencelock.Hooks{TokenRejected: goexit}))(http.NotFoundHandler())
	server := httptest.NewServer(h)
	defer server.Close()
	client := server.Client()
	defer client.CloseIdleConnections()
	resp, err := client.Get(server.URL)
	require.NoError(t, err)
	defer resp.Body.Close()
	require.ErrorIs(t, httpfence.CheckResponse(resp), fencelock.ErrNoToken)
}

func goexit(fencelock.TokenRejectedInfo) { runtime.Goexit() }
