package httpfence_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/httpfence"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// seen is a RoundTripper that sends nothing, and keeps what it was to send.
type seen struct{ requests []*http.Request }

func (s *seen) RoundTrip(req *http.Request) (*http.Response, error) {
	s.requests = append(s.requests, req)
	return &http.Response{StatusCode: http.StatusNoContent, Body: http.NoBody, Request: req}, nil
}

// closing is a body that knows whether it was closed.
type closing struct {
	io.Reader
	closed bool
}

func (c *closing) Close() error { c.closed = true; return nil }

func TestTransport(t *testing.T) {
	a, b := token(t, "s", "7.a"), token(t, "s", "9.b")
	for name, c := range map[string]struct {
		ctx    func(context.Context) context.Context
		header []string
		want   error
	}{
		"context":             {ctx: with(a)},
		"header":              {header: []string{"7.a"}},
		"both, the same":      {ctx: with(a), header: []string{"7.a"}},
		"neither":             {want: fencelock.ErrNoToken},
		"zero":                {ctx: with(fencelock.Token{}), want: fencelock.ErrNoToken},
		"zero and a header":   {ctx: with(fencelock.Token{}), header: []string{"7.a"}, want: fencelock.ErrNoToken},
		"both, not the same":  {ctx: with(b), header: []string{"7.a"}, want: httpfence.ErrOtherToken},
		"two in the header":   {ctx: with(a), header: []string{"7.a", "7.a"}, want: httpfence.ErrOtherToken},
		"only two":            {header: []string{"7.a", "7.a"}, want: fencelock.ErrInvalidToken},
		"header is no token":  {header: []string{"+7.a"}, want: fencelock.ErrInvalidToken},
		"header is empty":     {header: []string{""}, want: fencelock.ErrNoToken},
		"token of two in one": {ctx: with(a), header: []string{"7.a, 7.a"}, want: httpfence.ErrOtherToken},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			if c.ctx != nil {
				ctx = c.ctx(ctx)
			}
			body := &closing{Reader: strings.NewReader("x")}
			req, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://service.test/", body)
			require.NoError(t, err)
			if c.header != nil {
				req.Header[httpfence.Header] = c.header
			}
			base := new(seen)
			before := req.Header.Clone()
			resp, err := (&httpfence.Transport{Base: base}).RoundTrip(req)
			require.Equal(t, before, req.Header, "the caller's request is as it was")
			if c.want != nil {
				require.ErrorIs(t, err, c.want)
				require.Nil(t, resp)
				require.Empty(t, base.requests, "nothing was sent")
				require.True(t, body.closed)
				return
			}
			require.NoError(t, err)
			require.Len(t, base.requests, 1)
			require.Equal(t, []string{"7.a"}, base.requests[0].Header.Values(httpfence.Header))
		})
	}
}

func with(token fencelock.Token) func(context.Context) context.Context {
	return func(ctx context.Context) context.Context { return httpfence.WithToken(ctx, token) }
}

// TestTransportWithoutHeader: a request made by hand has a nil header.
func TestTransportWithoutHeader(t *testing.T) {
	base := new(seen)
	req := (&http.Request{Method: http.MethodGet}).WithContext(httpfence.WithToken(t.Context(), token(t, "s", "7.a")))
	_, err := (&httpfence.Transport{Base: base}).RoundTrip(req)
	require.NoError(t, err)
	require.Equal(t, "7.a", base.requests[0].Header.Get(httpfence.Header))
	require.Nil(t, req.Header)
}

func TestSetToken(t *testing.T) {
	a, b := token(t, "s", "7.a"), token(t, "s", "9.b")
	req := &http.Request{}
	require.ErrorIs(t, httpfence.SetToken(req, fencelock.Token{}), fencelock.ErrNoToken)
	require.Empty(t, req.Header)
	require.NoError(t, httpfence.SetToken(req, a))
	require.NoError(t, httpfence.SetToken(req, a), "it is there")
	require.ErrorIs(t, httpfence.SetToken(req, b), httpfence.ErrOtherToken)
	require.Equal(t, http.Header{httpfence.Header: {"7.a"}}, req.Header)
	req.Header.Add(httpfence.Header, "7.a")
	require.ErrorIs(t, httpfence.SetToken(req, a), httpfence.ErrOtherToken)
}

// TestRedirects: a token is for the service it was sent to.
func TestRedirects(t *testing.T) {
	t.Cleanup(http.DefaultTransport.(*http.Transport).CloseIdleConnections)
	var got []string // by the other service
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		got = append(got, r.Header.Get(httpfence.Header))
	}))
	defer other.Close()
	var here []string
	mux := http.NewServeMux()
	mux.Handle("/away", http.RedirectHandler("/again", http.StatusTemporaryRedirect))
	mux.Handle("/again", http.RedirectHandler(other.URL, http.StatusTemporaryRedirect))
	mux.Handle("/moved", http.RedirectHandler("/here", http.StatusTemporaryRedirect))
	mux.HandleFunc("/here", func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		here = append(here, r.Header.Get(httpfence.Header)+" "+string(body))
	})
	server := httptest.NewServer(mux)
	defer server.Close()
	tok := token(t, "s", "7.a")
	send := func(client *http.Client, path string, set bool) error {
		ctx := t.Context()
		if !set {
			ctx = httpfence.WithToken(ctx, tok)
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodPut, server.URL+path, strings.NewReader("x"))
		require.NoError(t, err)
		if set {
			require.NoError(t, httpfence.SetToken(req, tok))
		}
		resp, err := client.Do(req)
		if err == nil {
			resp.Body.Close()
		}
		return err
	}
	for _, set := range []bool{false, true} {
		require.ErrorIs(t, send(client, "/away", set), httpfence.ErrRedirect)
		require.Empty(t, got, "nothing was sent there")
		here = nil
		require.NoError(t, send(client, "/moved", set))
		require.Equal(t, []string{"7.a x"}, here, "within the origin it is followed")
	}
	// What net/http does by itself, and SetToken warns of.
	require.NoError(t, send(http.DefaultClient, "/away", true))
	require.Equal(t, []string{"7.a"}, got)
}

// TestOrigins: what is another origin, without a server for each.
func TestOrigins(t *testing.T) {
	for target, same := range map[string]bool{
		"http://service.test/other":     true,
		"http://SERVICE.test:80/":       true,
		"http://service.test:8080/":     false,
		"https://service.test/":         false,
		"http://sub.service.test/":      false,
		"http://service.test.evil/":     false,
		"http://service.test@evil.org/": false,
	} {
		t.Run(target, func(t *testing.T) {
			ctx := httpfence.WithToken(t.Context(), token(t, "s", "7.a"))
			first, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://service.test/", nil)
			require.NoError(t, err)
			next, err := http.NewRequestWithContext(ctx, http.MethodPut, target, nil)
			require.NoError(t, err)
			next.Response = &http.Response{Request: first}
			base := new(seen)
			_, err = (&httpfence.Transport{Base: base}).RoundTrip(next)
			if same {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, httpfence.ErrRedirect)
			require.Empty(t, base.requests)

			// It is not enough to come back to where one was sent to.
			last, err := http.NewRequestWithContext(ctx, http.MethodPut, target, nil)
			require.NoError(t, err)
			last.Response = &http.Response{Request: next}
			_, err = (&httpfence.Transport{Base: base}).RoundTrip(last)
			require.ErrorIs(t, err, httpfence.ErrRedirect)
		})
	}
	// The way back is not known.
	req := (&http.Request{Response: &http.Response{}}).WithContext(httpfence.WithToken(t.Context(), token(t, "s", "7.a")))
	_, err := (&httpfence.Transport{Base: new(seen)}).RoundTrip(req)
	require.ErrorIs(t, err, httpfence.ErrRedirect)
}

// TestRedirectThatChangesTheMethod: a service's mux that sends a PUT elsewhere with
// a 301 gets a GET from net/http, whose 200 would be taken for the write's.
func TestRedirectThatChangesTheMethod(t *testing.T) {
	var got []string
	mux := http.NewServeMux()
	mux.HandleFunc("/here", func(_ http.ResponseWriter, r *http.Request) { got = append(got, r.Method) })
	for _, code := range []int{301, 302, 303, 307, 308} {
		mux.Handle(fmt.Sprintf("/%d", code), http.RedirectHandler("/here", code))
	}
	server := httptest.NewServer(mux)
	defer server.Close()
	defer client.CloseIdleConnections()
	for _, c := range []struct {
		code    int
		method  string
		arrives string
	}{
		{301, http.MethodPut, ""}, {302, http.MethodPost, ""}, {301, http.MethodDelete, ""},
		{301, http.MethodGet, "GET"}, {302, http.MethodHead, "HEAD"}, {301, "", "GET"},
		{303, http.MethodPost, "GET"}, // that is what it is for: look at the result there
		{307, http.MethodPut, "PUT"}, {308, http.MethodPost, "POST"},
	} {
		t.Run(fmt.Sprint(c.method, c.code), func(t *testing.T) {
			got = nil
			ctx := httpfence.WithToken(t.Context(), token(t, "s", "7.a"))
			req, err := http.NewRequestWithContext(ctx, c.method, fmt.Sprintf("%s/%d", server.URL, c.code), nil)
			require.NoError(t, err)
			req.Method = c.method
			resp, err := client.Do(req)
			if c.arrives == "" {
				require.ErrorIs(t, err, httpfence.ErrRedirect)
				require.Empty(t, got)
				return
			}
			require.NoError(t, err)
			resp.Body.Close()
			require.Equal(t, []string{c.arrives}, got)
		})
	}
}

// TestReceivedTokenIsNotPassedOn: a handler that calls another service with its
// request's context does not hand its client's token to it.
func TestReceivedTokenIsNotPassedOn(t *testing.T) {
	base := new(seen)
	var err error
	h := httpfence.Require(func(*http.Request) (string, error) { return "s", nil })(
		http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			out, e := http.NewRequestWithContext(r.Context(), http.MethodPut, "http://next.test/", nil)
			require.NoError(t, e)
			_, err = (&httpfence.Transport{Base: base}).RoundTrip(out)
		}))
	req := httptest.NewRequest(http.MethodPut, "/", nil)
	require.NoError(t, httpfence.SetToken(req, token(t, "s", "7.a")))
	h.ServeHTTP(httptest.NewRecorder(), req)
	require.ErrorIs(t, err, fencelock.ErrNoToken)
	require.Empty(t, base.requests)
}

func TestAnswersThatAreNotOurs(t *testing.T) {
	const ours = "application/problem+json"
	stale := func(presented, highest string) string {
		return `{"type":"urn:fencelock:problem:stale-token","status":412,"scope":"s","presented":"` + presented + `","highest":"` + highest + `"}`
	}
	for name, c := range map[string]struct {
		status int
		media  string
		body   string
		want   error
	}{
		"ours":                     {412, ours, stale("7.a", "9.b"), fencelock.ErrStale},
		"ours, with a parameter":   {412, ours + "; charset=utf-8", stale("7.a", "9.b"), fencelock.ErrStale},
		"same number":              {412, ours, stale("7.a", "7.b"), fencelock.ErrStale},
		"mark not told":            {412, ours, stale("7.a", ""), fencelock.ErrStale},
		"If-Match":                 {412, "text/plain", "no such version", nil},
		"no content type":          {412, "", stale("7.a", "9.b"), nil},
		"broken content type":      {412, ";;", stale("7.a", "9.b"), nil},
		"JSON, but no problem":     {412, "application/json", stale("7.a", "9.b"), nil},
		"another problem":          {412, ours, `{"type":"about:blank","status":412}`, nil},
		"no JSON":                  {412, ours, `<html>`, nil},
		"of the wrong shape":       {412, ours, `{"type":"urn:fencelock:problem:stale-token","presented":{}}`, nil},
		"empty":                    {412, ours, "", nil},
		"another token":            {412, ours, stale("8.a", "9.b"), nil},
		"a mark below":             {412, ours, stale("7.a", "6.b"), nil},
		"the mark is the token":    {412, ours, stale("7.a", "7.a"), nil},
		"the mark is no token":     {412, ours, stale("7.a", "+9.b"), nil},
		"another status":           {409, ours, stale("7.a", "9.b"), nil},
		"success":                  {200, ours, stale("7.a", "9.b"), nil},
		"oversized":                {412, ours, strings.Replace(stale("7.a", "9.b"), "{", "{"+strings.Repeat(" ", 16<<10), 1), nil},
		"huge":                     {412, ours, stale("7.a", "9.b") + strings.Repeat(" ", 1<<20), nil},
		"deep":                     {412, ours, strings.Repeat("[", 16<<10), nil},
		"no token":                 {428, ours, `{"type":"urn:fencelock:problem:token-required"}`, fencelock.ErrNoToken},
		"another precondition":     {428, ours, `{"type":"about:blank"}`, nil},
		"invalid":                  {400, ours, `{"type":"urn:fencelock:problem:invalid-token"}`, fencelock.ErrInvalidToken},
		"another bad request":      {400, ours, `{"type":"about:blank"}`, nil},
		"a type at another status": {400, ours, `{"type":"urn:fencelock:problem:token-required"}`, nil},
	} {
		t.Run(name, func(t *testing.T) {
			req := httptest.NewRequest(http.MethodPut, "http://service.test/", nil)
			require.NoError(t, httpfence.SetToken(req, token(t, "s", "7.a")))
			body := &closing{Reader: strings.NewReader(c.body)}
			resp := &http.Response{StatusCode: c.status, Header: http.Header{"Content-Type": {c.media}}, Body: body, Request: req}
			for range 2 { // twice, since the first must leave it as it was
				err := httpfence.CheckResponse(resp)
				if c.want == nil {
					require.NoError(t, err)
				} else {
					require.ErrorIs(t, err, c.want)
				}
			}
			require.False(t, body.closed, "closing it is the caller's")
			read, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
			require.True(t, c.body == string(read), "the body is whole")
			require.NoError(t, resp.Body.Close())
			require.True(t, body.closed)
		})
	}
}

// TestCheckResponseReadsNoMoreThanItNeeds of a body that has no end.
func TestCheckResponseReadsNoMoreThanItNeeds(t *testing.T) {
	endless := &counted{}
	resp := &http.Response{StatusCode: 412, Header: http.Header{"Content-Type": {"application/problem+json"}}, Body: io.NopCloser(endless)}
	require.NoError(t, httpfence.CheckResponse(resp))
	require.LessOrEqual(t, endless.n, 32<<10)
}

type counted struct{ n int }

func (c *counted) Read(p []byte) (int, error) {
	c.n += len(p)
	return copy(p, bytes.Repeat([]byte(" "), len(p))), nil
}

// TestBodyThatBreaksOff shows its error to who reads it, after what came.
func TestBodyThatBreaksOff(t *testing.T) {
	broken := errors.New("connection reset")
	resp := &http.Response{
		StatusCode: 412, Header: http.Header{"Content-Type": {"application/problem+json"}},
		Body: io.NopCloser(io.MultiReader(strings.NewReader(`{"type":`), iotestErr{broken})),
	}
	require.NoError(t, httpfence.CheckResponse(resp))
	read, err := io.ReadAll(resp.Body)
	require.ErrorIs(t, err, broken)
	assert.Equal(t, `{"type":`, string(read))
}

type iotestErr struct{ err error }

func (e iotestErr) Read([]byte) (int, error) { return 0, e.err }
