package httpfence_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/httpfence"
	"github.com/stretchr/testify/require"
)

// FuzzRequire: the handler runs for one value that is a token's only text, and for
// nothing else; every refusal is short, and is JSON.
func FuzzRequire(f *testing.F) {
	for _, seed := range []struct {
		n    uint8
		a, b string
	}{
		{0, "", ""}, {1, "", ""}, {1, "7.a", ""}, {1, "+7.a", ""}, {1, "007.a", ""}, {1, "-1.a", ""}, {1, "7", ""},
		{1, "7.a, 8.b", ""}, {1, " 7.a", ""}, {1, "7.a\x00", ""}, {1, "٧.a", ""}, {1, "7.\xff", ""},
		{1, "9223372036854775807.a", ""}, {1, "9223372036854775808.a", ""}, {1, strings.Repeat("7", 1000) + ".a", ""},
		{2, "7.a", "7.a"}, {2, "7.a", "8.b"}, {2, "7.a", ""}, {2, "", ""},
	} {
		f.Add(seed.n, seed.a, seed.b)
	}
	var got *fencelock.Token
	h := httpfence.Require(fixed("s"))(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		token, _ := httpfence.TokenFrom(r.Context())
		got = &token
	}))
	f.Fuzz(func(t *testing.T, n uint8, a, b string) {
		got = nil
		req := httptest.NewRequest(http.MethodPut, "/", nil)
		values := []string{a, b, a}[:n%4]
		if len(values) > 0 {
			req.Header[httpfence.Header] = values
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, req)
		if got != nil {
			require.Equal(t, http.StatusOK, w.Code)
			require.Len(t, values, 1)
			require.Equal(t, a, got.String(), "there is one text for a token")
			require.Equal(t, "s", got.Name())
			require.Positive(t, got.Revision())
			return
		}
		want := http.StatusBadRequest
		if len(values) == 0 || len(values) == 1 && a == "" {
			want = http.StatusPreconditionRequired
		}
		require.Equal(t, want, w.Code)
		require.Less(t, w.Body.Len(), 2048)
		require.True(t, json.Valid(w.Body.Bytes()), "%q", w.Body)
		_, err := fencelock.ParseToken("s", a)
		require.True(t, len(values) != 1 || err != nil, "a token was refused")
		require.Error(t, httpfence.CheckResponse(w.Result()), "the client understands it")
	})
}

// FuzzCheckResponse: no answer makes it panic, loses a byte of the body, or becomes a
// refusal of a token that was not sent.
func FuzzCheckResponse(f *testing.F) {
	const ours = "application/problem+json"
	for _, body := range []string{
		"", "{}", "[]", "null", "{", `"`, "\xff", "<html>", strings.Repeat("[", 1<<10),
		`{"type":"urn:fencelock:problem:stale-token","scope":"s","presented":"7.a","highest":"9.b"}`,
		`{"type":"urn:fencelock:problem:stale-token","presented":"8.a"}`,
		`{"type":"urn:fencelock:problem:stale-token","scope":"","highest":"7.a"}`,
		`{"type":"urn:fencelock:problem:stale-token","highest":"9223372036854775808.b"}`,
		`{"type":"urn:fencelock:problem:token-required","status":428}`,
		`{"type":"urn:fencelock:problem:invalid-token","detail":"\u0000\ud800"}`,
		`{"type":["urn:fencelock:problem:stale-token"]}`, `{"status":1e999}`,
	} {
		for _, status := range []int{200, 400, 412, 428, 503} {
			f.Add(status, ours, []byte(body), uint16(0))
		}
	}
	f.Add(412, ours+"; charset=utf-8", []byte(`{"type":"urn:fencelock:problem:stale-token"}`), uint16(20<<10))
	f.Add(412, ";=", []byte("{}"), uint16(1))
	f.Fuzz(func(t *testing.T, status int, media string, body []byte, padding uint16) {
		body = append(body, bytes.Repeat([]byte(" "), int(padding))...)
		for _, sent := range []string{"7.a", ""} {
			resp := &http.Response{
				StatusCode: status, Header: http.Header{"Content-Type": {media}},
				Body: io.NopCloser(pieces{bytes.NewReader(body)}),
			}
			if sent != "" {
				resp.Request = httptest.NewRequest(http.MethodPut, "/", nil)
				resp.Request.Header.Set(httpfence.Header, sent)
			}
			err := httpfence.CheckResponse(resp)
			again := httpfence.CheckResponse(resp)
			require.Equal(t, err == nil, again == nil, "it is as it was")
			read, readErr := io.ReadAll(resp.Body)
			require.NoError(t, readErr)
			require.True(t, bytes.Equal(body, read), "the body is whole")
			if err == nil {
				continue
			}
			require.Less(t, len(err.Error()), 64<<10)
			stale, isStale := errors.AsType[*fencelock.StaleError](err)
			want := map[int]error{412: fencelock.ErrStale, 428: fencelock.ErrNoToken, 400: fencelock.ErrInvalidToken}[status]
			require.ErrorIs(t, err, want)
			require.Equal(t, status == 412, isStale)
			if isStale && sent != "" && !stale.Presented.IsZero() {
				require.Equal(t, sent, stale.Presented.String())
			}
		}
	})
}

// pieces is a body that comes in small ones.
type pieces struct{ r io.Reader }

func (o pieces) Read(p []byte) (int, error) {
	if len(p) > 7 {
		p = p[:7]
	}
	return o.r.Read(p)
}
