package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/httpfence"
)

// BenchmarkHTTPFence is what httpfence.Require costs a service: a handler that
// answers 204, bare and behind Require. No fence is behind either, so that it is the
// middleware alone. Both get the same requests, with the header; the bare one looks
// at it as little as any service without the middleware does.
//
// "direct" calls ServeHTTP, so it is the cost in the service and nothing else;
// "server" is a whole request over a connection that is kept, so it is the share of
// it that a client could notice, and its allocations are those of both ends.
//
// bare and require stand for themselves, with their allocations. ratio measures them
// in turns, and reports the median of each and of their ratios.
func BenchmarkHTTPFence(b *testing.B) {
	bare := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	fenced := httpfence.Require(func(*http.Request) (string, error) { return "orders/42", nil })(
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, ok := httpfence.TokenFrom(r.Context()); !ok {
				w.WriteHeader(http.StatusInternalServerError)
				return
			}
			w.WriteHeader(http.StatusNoContent)
		}))
	for _, way := range []struct {
		name  string
		batch int
		to    func(b *testing.B, h http.Handler) (request func() int)
	}{
		{"direct", 1024, direct},
		{"server", 32, served},
	} {
		b.Run(way.name, func(b *testing.B) {
			withoutFence, withFence := way.to(b, bare), way.to(b, fenced)
			for _, one := range []struct {
				name    string
				request func() int
			}{{"bare", withoutFence}, {"require", withFence}} {
				b.Run(one.name, func(b *testing.B) {
					b.ReportAllocs()
					for b.Loop() {
						if status := one.request(); status != http.StatusNoContent {
							b.Fatal("status", status)
						}
					}
				})
			}
			b.Run("ratio", func(b *testing.B) { requestsInTurns(b, way.batch, withoutFence, withFence) })
		})
	}
}

// direct returns a call of the handler without a connection.
func direct(b *testing.B, h http.Handler) func() int {
	b.Helper()
	req := fencedRequest(b, "http://service.test/orders/42")
	return func() int {
		w := new(discard)
		h.ServeHTTP(w, req)
		return w.status
	}
}

// discard is a ResponseWriter that costs as little as can be.
type discard struct {
	header http.Header
	status int
}

func (d *discard) Header() http.Header {
	if d.header == nil {
		d.header = make(http.Header)
	}
	return d.header
}
func (d *discard) Write(p []byte) (int, error) { return len(p), nil }
func (d *discard) WriteHeader(status int)      { d.status = status }
func (d *discard) Flush()                      {} // as the server's has it

// served returns a request to the handler behind a server.
func served(b *testing.B, h http.Handler) func() int {
	b.Helper()
	server := httptest.NewServer(h)
	b.Cleanup(server.Close)
	client := server.Client()
	req := fencedRequest(b, server.URL+"/orders/42")
	return func() int {
		resp, err := client.Do(req)
		if err != nil {
			b.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body) // or the connection is not kept
		_ = resp.Body.Close()
		return resp.StatusCode
	}
}

func fencedRequest(b *testing.B, url string) *http.Request {
	b.Helper()
	token, err := fencelock.ParseToken("orders/42", "7123456789.694d8a3c5f1b2c07-9f86d081884c7d65-42")
	require.NoError(b, err)
	req, err := http.NewRequestWithContext(b.Context(), http.MethodPut, url, nil)
	require.NoError(b, err)
	require.NoError(b, httpfence.SetToken(req, token))
	return req
}

// requestsInTurns measures a batch of each in turns.
func requestsInTurns(b *testing.B, batch int, bare, fenced func() int) {
	b.Helper()
	took := func(request func() int) float64 {
		start := time.Now()
		for range batch {
			if status := request(); status != http.StatusNoContent {
				b.Fatal("status", status)
			}
		}
		return float64(time.Since(start).Nanoseconds()) / float64(batch)
	}
	took(bare) // the first opens the connection
	took(fenced)
	var ours, theirs, ratios []float64
	for b.Loop() {
		without, with := took(bare), took(fenced)
		theirs = append(theirs, without)
		ours = append(ours, with)
		ratios = append(ratios, with/without)
	}
	b.ReportMetric(median(theirs), "bare-ns")
	b.ReportMetric(median(ours), "require-ns")
	b.ReportMetric(median(ratios), "ratio")
	b.ReportMetric(0, "ns/op") // of a turn of both: it says nothing
}
