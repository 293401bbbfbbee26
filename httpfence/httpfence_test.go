package httpfence_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/httpfence"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestStaleWriterIsTold: the whole way, there and back.
func TestStaleWriterIsTold(t *testing.T) {
	s := new(service)
	url := s.serve(t)
	a, b := token(t, "objects/x", "7.a"), token(t, "objects/x", "9.b")
	require.NoError(t, put(t.Context(), url, "x", a, "A"))
	require.NoError(t, put(t.Context(), url, "x", b, "B"))

	err := put(t.Context(), url, "x", a, "A, late")
	require.ErrorIs(t, err, fencelock.ErrStale)
	stale, ok := errors.AsType[*fencelock.StaleError](err)
	require.True(t, ok)
	assert.Equal(t, "objects/x", stale.Scope)
	assert.True(t, stale.Presented.Equal(a), "%s", stale.Presented)
	assert.True(t, stale.Highest.Equal(b), "%s", stale.Highest)
	assert.Equal(t, "B", s.value("x"))

	// The same number of another holder, as after a restore.
	require.ErrorIs(t, put(t.Context(), url, "x", token(t, "objects/x", "9.c"), "C"), fencelock.ErrStale)
	// The holder goes on, and another object is another scope.
	require.NoError(t, put(t.Context(), url, "x", b, "B again"))
	require.NoError(t, put(t.Context(), url, "y", token(t, "objects/y", "1.z"), "Y"))
	assert.Empty(t, s.rejected, "those are the fence's to report")
}

// TestStaleAnswer is about what a client in another language sees.
func TestStaleAnswer(t *testing.T) {
	s := new(service)
	url := s.serve(t)
	require.NoError(t, put(t.Context(), url, "x", token(t, "objects/x", "9223372036854775807.b"), "B"))
	resp, problem := raw(t, url, "x", []string{"7.a"})
	require.Equal(t, http.StatusPreconditionFailed, resp.StatusCode)
	require.Equal(t, "no-store", resp.Header.Get("Cache-Control"))
	delete(problem, "detail")
	require.Equal(t, map[string]any{
		"type": "urn:fencelock:problem:stale-token", "title": "Stale fencing token", "status": 412.0,
		"scope": "objects/x", "presented": "7.a", "highest": "9223372036854775807.b",
	}, problem)
}

func TestWhatIsNotOneToken(t *testing.T) {
	const (
		noToken = "urn:fencelock:problem:token-required"
		invalid = "urn:fencelock:problem:invalid-token"
		noScope = "urn:fencelock:problem:no-scope"
	)
	s := new(service)
	url := s.serve(t)
	for name, c := range map[string]struct {
		id     string
		values []string
		status int
		kind   string
		err    error // of the hook
	}{
		"none":           {"x", nil, 428, noToken, fencelock.ErrNoToken},
		"empty":          {"x", []string{""}, 428, noToken, fencelock.ErrNoToken},
		"white space":    {"x", []string{" \t "}, 428, noToken, fencelock.ErrNoToken},
		"two":            {"x", []string{"7.a", "8.b"}, 400, invalid, fencelock.ErrInvalidToken},
		"the same twice": {"x", []string{"7.a", "7.a"}, 400, invalid, fencelock.ErrInvalidToken},
		"one and none":   {"x", []string{"7.a", ""}, 400, invalid, fencelock.ErrInvalidToken},
		"list":           {"x", []string{"7.a, 8.b"}, 400, invalid, fencelock.ErrInvalidToken},
		"list of one":    {"x", []string{"7.a,"}, 400, invalid, fencelock.ErrInvalidToken},
		"inner space":    {"x", []string{"7 .a"}, 400, invalid, fencelock.ErrInvalidToken},
		"plus":           {"x", []string{"+7.a"}, 400, invalid, fencelock.ErrInvalidToken},
		"leading zeros":  {"x", []string{"007.a"}, 400, invalid, fencelock.ErrInvalidToken},
		"negative":       {"x", []string{"-1.a"}, 400, invalid, fencelock.ErrInvalidToken},
		"zero":           {"x", []string{"0.a"}, 400, invalid, fencelock.ErrInvalidToken},
		"2^63":           {"x", []string{"9223372036854775808.a"}, 400, invalid, fencelock.ErrInvalidToken},
		"float":          {"x", []string{"7e3.a"}, 400, invalid, fencelock.ErrInvalidToken},
		"hexadecimal":    {"x", []string{"0x7.a"}, 400, invalid, fencelock.ErrInvalidToken},
		"no holder":      {"x", []string{"7."}, 400, invalid, fencelock.ErrInvalidToken},
		"no dot":         {"x", []string{"7"}, 400, invalid, fencelock.ErrInvalidToken},
		"quoted":         {"x", []string{`"7.a"`}, 400, invalid, fencelock.ErrInvalidToken},
		"unicode digits": {"x", []string{"٧.a"}, 400, invalid, fencelock.ErrInvalidToken},
		"full width":     {"x", []string{"\uff17.a"}, 400, invalid, fencelock.ErrInvalidToken},
		"no UTF-8":       {"x", []string{"7.\xff"}, 400, invalid, fencelock.ErrInvalidToken},
		"long holder":    {"x", []string{"7." + strings.Repeat("a", 129)}, 400, invalid, fencelock.ErrInvalidToken},
		"1 MiB":          {"x", []string{strings.Repeat("7", 1<<20)}, 400, invalid, fencelock.ErrInvalidToken},
		"1 MiB holder":   {"x", []string{"7." + strings.Repeat("a", 1<<20)}, 400, invalid, fencelock.ErrInvalidToken},
		// What scope says comes before the token.
		"scope fails":   {"secret", []string{"7.a"}, 400, noScope, nil},
		"scope invalid": {"long", []string{"7.a"}, 400, noScope, nil},
		"neither":       {"long", nil, 400, noScope, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s.rejected = nil
			resp, problem := raw(t, url, c.id, c.values)
			assert.Equal(t, c.status, resp.StatusCode)
			assert.Equal(t, c.kind, problem["type"])
			assert.NotContains(t, problem["detail"], "private")
			if c.err == nil {
				assert.Empty(t, s.rejected)
			} else if assert.Len(t, s.rejected, 1) {
				assert.ErrorIs(t, s.rejected[0], c.err)
			}
		})
	}
	require.Zero(t, s.ran, "no handler ran")
	require.NoError(t, put(t.Context(), url, "x", token(t, "objects/x", "1.a"), "fine"), "the service goes on")
}

// TestRefusalsComeBack: errors.Is says the same at both ends.
func TestRefusalsComeBack(t *testing.T) {
	url := new(service).serve(t, httpfence.WithVerifier(func(_ context.Context, token fencelock.Token) error {
		switch token.Holder() {
		case "forged":
			return fmt.Errorf("%w: etcd is at 12345", fencelock.ErrInvalidToken)
		case "old":
			return &fencelock.StaleError{Scope: token.Name(), Presented: token}
		case "outage":
			return errors.New("etcd at 10.1.2.3 is silent")
		}
		return nil
	}))
	ctx := t.Context()
	err := put(ctx, url, "x", token(t, "objects/x", "7.forged"), "")
	require.ErrorIs(t, err, fencelock.ErrInvalidToken)
	require.NotContains(t, err.Error(), "12345")
	require.ErrorIs(t, put(ctx, url, "x", token(t, "objects/x", "7.old"), ""), fencelock.ErrStale)

	require.ErrorIs(t, put(ctx, url, "x", token(t, "objects/x", "7.outage"), ""), httpfence.ErrUnverified)
	require.ErrorIs(t, put(ctx, url, "secret", token(t, "objects/x", "7.honest"), ""), httpfence.ErrNoScope)

	// An outage is an answer like any other.
	resp, problem := raw(t, url, "x", []string{"7.outage"})
	require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
	require.Equal(t, "urn:fencelock:problem:token-not-verified", problem["type"])
	require.NotContains(t, problem["detail"], "10.1.2.3")
	require.NoError(t, httpfence.CheckResponse(resp))

	// Sent by a client that puts nothing there.
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, url+"/objects/x", nil)
	require.NoError(t, err)
	resp, err = http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	require.ErrorIs(t, httpfence.CheckResponse(resp), fencelock.ErrNoToken)

	require.NoError(t, put(ctx, url, "x", token(t, "objects/x", "7.honest"), ""))
}

// TestForgedHugeToken: without a verifier one such token locks the resource for
// good, which the package's documentation says; with one it is refused.
func TestForgedHugeToken(t *testing.T) {
	forged, honest := token(t, "objects/x", fmt.Sprintf("%d.evil", math.MaxInt64)), token(t, "objects/x", "8.b")

	open := new(service).serve(t)
	require.NoError(t, put(t.Context(), open, "x", forged, "evil"))
	require.ErrorIs(t, put(t.Context(), open, "x", honest, "honest"), fencelock.ErrStale)

	s := new(service)
	url := s.serve(t, httpfence.WithVerifier(func(_ context.Context, token fencelock.Token) error {
		if token.Revision() > 1000 {
			return fmt.Errorf("%w: above 1000", fencelock.ErrInvalidToken)
		}
		return nil
	}))
	require.ErrorIs(t, put(t.Context(), url, "x", forged, "evil"), fencelock.ErrInvalidToken)
	require.Len(t, s.rejected, 1)
	require.ErrorContains(t, s.rejected[0], "above 1000", "the hook is told")
	require.NoError(t, put(t.Context(), url, "x", honest, "honest"))
	require.Equal(t, "honest", s.value("x"))
}

// TestWritersAtOnce: whatever order they come in, what is applied is in order of
// tokens.
func TestWritersAtOnce(t *testing.T) {
	s := new(service)
	url := s.serve(t)
	var wg sync.WaitGroup
	for n := range 40 {
		tok := token(t, "objects/x", fmt.Sprintf("%d.h%d", n/2+1, n/2))
		wg.Go(func() {
			err := put(t.Context(), url, "x", tok, tok.String())
			if err != nil {
				assert.ErrorIs(t, err, fencelock.ErrStale)
			}
		})
	}
	wg.Wait()
	tokens := s.object("x").tokens
	require.NotEmpty(t, tokens)
	require.True(t, slices.IsSortedFunc(tokens, fencelock.Token.Compare), "%v", tokens)
	require.Equal(t, "20.h19", tokens[len(tokens)-1].String())
}

// TestNameThatIsNotUTF8: JSON cannot show it, and the client knows it better.
func TestNameThatIsNotUTF8(t *testing.T) {
	url := new(service).serve(t)
	const name = "objects/\xff"
	old, newer := token(t, name, "7.a"), token(t, name, "9.b")
	require.NoError(t, put(t.Context(), url, "bytes", newer, ""))
	err := put(t.Context(), url, "bytes", old, "")
	stale, ok := errors.AsType[*fencelock.StaleError](err)
	require.True(t, ok, "%v", err)
	require.True(t, stale.Presented.Equal(old))
	require.True(t, stale.Highest.Equal(newer))
	require.Equal(t, "objects/\uFFFD", stale.Scope)
}

// TestErrorIsOfThisRequest: what the service did with a token of its own is not
// the client's fault.
func TestErrorIsOfThisRequest(t *testing.T) {
	mine := &fencelock.StaleError{Scope: "s", Presented: token(t, "s", "7.a"), Highest: token(t, "s", "9.b")}
	// The handler has to know the lock by another name at its own fence.
	renamed := &fencelock.StaleError{Scope: "t", Presented: token(t, "t", "7.a"), Highest: token(t, "t", "9.b")}
	other := &fencelock.StaleError{Scope: "s", Presented: token(t, "s", "8.c"), Highest: token(t, "s", "9.b")}
	for name, c := range map[string]struct {
		err  error
		want bool
	}{
		"nil":      {nil, false},
		"mine":     {mine, true},
		"wrapped":  {fmt.Errorf("commit: %w", errors.Join(errors.New("x"), mine)), true},
		"renamed":  {renamed, true},
		"bare":     {fmt.Errorf("a fence of ours: %w", fencelock.ErrStale), true},
		"other's":  {other, false},
		"no token": {fencelock.ErrNoToken, false},
		"any":      {errors.New("disk full"), false},
	} {
		t.Run(name, func(t *testing.T) {
			h := httpfence.Require(func(*http.Request) (string, error) { return "s", nil })(
				http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if !httpfence.Error(w, r, c.err) {
						w.WriteHeader(http.StatusTeapot)
					}
				}))
			req := httptest.NewRequest(http.MethodPut, "/", nil)
			require.NoError(t, httpfence.SetToken(req, token(t, "s", "7.a")))
			w := httptest.NewRecorder()
			h.ServeHTTP(w, req)
			if !c.want {
				require.Equal(t, http.StatusTeapot, w.Code)
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

// TestPanicInAHook: an observer's own trouble makes nothing of a refusal.
func TestPanicInAHook(t *testing.T) {
	var log bytes.Buffer
	old := slog.Default()
	t.Cleanup(func() { slog.SetDefault(old) })
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	h := httpfence.Require(func(*http.Request) (string, error) { return "s", nil },
		httpfence.WithHooks(fencelock.Hooks{TokenRejected: func(fencelock.TokenRejectedInfo) { panic("oh") }}),
	)(http.NotFoundHandler())
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodPut, "/", nil))
	require.Equal(t, http.StatusPreconditionRequired, w.Code)
	require.Contains(t, log.String(), "panic in a hook")
}

func TestMistakesInTheProgram(t *testing.T) {
	scope := func(*http.Request) (string, error) { return "s", nil }
	for name, f := range map[string]func(){
		"nil scope":    func() { httpfence.Require(nil) },
		"nil option":   func() { httpfence.Require(scope, nil) },
		"nil verifier": func() { httpfence.Require(scope, httpfence.WithVerifier(nil)) },
		"nil handler":  func() { httpfence.Require(scope)(nil) },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				err, _ := recover().(error)
				require.ErrorIs(t, err, fencelock.ErrInvalidOption)
			}()
			f()
		})
	}
	require.ErrorIs(t, httpfence.CheckResponse(nil), fencelock.ErrInvalidOption)
	require.ErrorIs(t, httpfence.SetToken(nil, token(t, "s", "7.a")), fencelock.ErrInvalidOption)
	_, ok := httpfence.TokenFrom(t.Context())
	require.False(t, ok)
}
