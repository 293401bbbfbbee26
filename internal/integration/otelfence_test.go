package integration

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	promexporter "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/integration/harness"
	"github.com/fencelock/fencelock/otelfence"
)

// observed is hooks whose metrics stand on a page, as a Prometheus server gets it.
type observed struct {
	hooks  fencelock.Hooks
	fence  fencelock.Hooks
	spans  *tracetest.SpanRecorder
	traces *sdktrace.TracerProvider
	page   *httptest.Server
}

func observe(t testing.TB) *observed {
	t.Helper()
	registry := prometheus.NewRegistry()
	exporter, err := promexporter.New(promexporter.WithRegisterer(registry), promexporter.WithoutScopeInfo())
	require.NoError(t, err)
	meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(exporter))
	t.Cleanup(func() { require.NoError(t, meters.Shutdown(context.Background())) })
	o := &observed{spans: tracetest.NewSpanRecorder()}
	o.traces = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(o.spans))
	o.hooks, err = otelfence.New(meters, o.traces)
	require.NoError(t, err)
	o.fence, err = otelfence.New(meters, o.traces, otelfence.WithFence("orders-db"))
	require.NoError(t, err)
	o.page = httptest.NewServer(promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	t.Cleanup(o.page.Close)
	return o
}

var sample = regexp.MustCompile(`(?m)^([a-z_]+(?:\{[^}]*\})?) ([-+0-9.e]+)$`)

// scrape reads the page over HTTP.
func (o *observed) scrape(t testing.TB) map[string]float64 {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(o.page.URL)
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, resp.StatusCode, "%s", body)
	page := map[string]float64{}
	for _, m := range sample.FindAllStringSubmatch(string(body), -1) {
		page[m[1]], err = strconv.ParseFloat(m[2], 64)
		require.NoError(t, err)
	}
	return page
}

func (o *observed) span(t testing.TB, name string) sdktrace.ReadOnlySpan {
	t.Helper()
	spans := o.spans.Ended()
	i := slices.IndexFunc(spans, func(s sdktrace.ReadOnlySpan) bool { return s.Name() == name })
	require.GreaterOrEqual(t, i, 0, "no span %s", name)
	return spans[i]
}

// A lock with a waiter, a holder that is evicted and goes on, and its late write: a
// Prometheus server sees each of them, under the names that alerts use.
func TestOtelfenceOnAPrometheusPage(t *testing.T) {
	b := newBench(t)
	o := observe(t)
	l := b.locker(b.client(), fencelock.WithHooks(o.hooks))
	other := b.locker(b.client(), fencelock.WithHooks(o.hooks))
	fence := fencelock.Fence{Hooks: o.fence}

	ctx, caller := o.traces.Tracer("test").Start(atMost(t, eventually), "caller")
	// Do's own trace, undisturbed. The token is not used, and the hooks have looked at it.
	require.NoError(t, l.Do(ctx, "orders/1", func(ctx context.Context, _ fencelock.Token) error {
		_, work := o.traces.Tracer("test").Start(ctx, "work")
		work.End()
		return nil
	}))
	caller.End()
	hold := o.span(t, "fencelock.hold").SpanContext()
	assert.Equal(t, hold.SpanID(), o.span(t, "work").Parent().SpanID(), "the work stands inside of the hold")
	assert.Equal(t, hold.SpanID(), o.span(t, "fencelock.release").Parent().SpanID())
	assert.Equal(t, caller.SpanContext().SpanID(), o.span(t, "fencelock.acquire").Parent().SpanID())

	held := b.acquire(l, "orders/2")
	waiting := b.acquireLater(other, "orders/2")
	const (
		heldNow    = `fencelock_lock_held{fencelock_lock_label="orders"}`
		waiters    = `fencelock_lock_waiters{fencelock_lock_label="orders"}`
		lostNow    = `fencelock_lock_lost_running{fencelock_lock_label="orders"}`
		loss       = `fencelock_losses_total{fencelock_lock_label="orders",fencelock_loss_reason="deleted",fencelock_loss_running="true"}`
		stale      = `fencelock_fence_rejections_total{fencelock_fence_name="orders-db",fencelock_rejection_reason="stale"}`
		unused     = `fencelock_tokens_unused_total{fencelock_lock_label="orders"}`
		grants     = `fencelock_acquisitions_total{fencelock_lock_label="orders",fencelock_result="granted"}`
		confirmed  = `fencelock_releases_total{fencelock_lock_label="orders",fencelock_release_confirmed="true"}`
		afterLoss  = `fencelock_work_after_loss_duration_seconds_count{fencelock_lock_label="orders",fencelock_loss_reason="deleted"}`
		heldFor    = `fencelock_hold_duration_seconds_count{fencelock_hold_outcome="lost",fencelock_lock_label="orders"}`
		share      = `fencelock_hold_ttl_ratio_count{fencelock_hold_outcome="released",fencelock_lock_label="orders"}`
		waitedTime = `fencelock_wait_duration_seconds_count{fencelock_lock_label="orders",fencelock_wait_granted="true"}`
	)
	until(t, "waiter on the page", func() bool { return o.scrape(t)[waiters] == 1 })
	page := o.scrape(t)
	assert.Equal(t, 1.0, page[heldNow])
	require.Contains(t, page, loss, "at 0 before the first")
	assert.Zero(t, page[loss])
	assert.Zero(t, page[stale])
	assert.Equal(t, 1.0, page[unused], "a span's attributes are no use of a token")

	// The holder's key, which is the oldest; the waiter's is left.
	queue, err := b.clean.Get(t.Context(), queueOf("orders/2"), clientv3.WithFirstCreate()...)
	require.NoError(t, err)
	require.Len(t, queue.Kvs, 1)
	_, err = b.clean.Delete(t.Context(), string(queue.Kvs[0].Key))
	require.NoError(t, err)
	until(t, "loss on the page", func() bool { page := o.scrape(t); return page[loss] == 1 && page[lostNow] == 1 })
	k := b.granted(waiting)
	page = o.scrape(t)
	assert.Equal(t, 1.0, page[lostNow], "the holder has not returned")
	assert.Equal(t, 1.0, page[heldNow], "the next holder")
	assert.Zero(t, page[waiters])
	require.NoError(t, fence.Advance(k.Token()))
	require.ErrorIs(t, fence.Advance(held.Token()), fencelock.ErrStale)
	require.ErrorIs(t, held.Release(t.Context()), fencelock.ErrLost)
	b.release(k)

	page = o.scrape(t)
	for name, want := range map[string]float64{
		heldNow: 0, lostNow: 0, waiters: 0, loss: 1, stale: 1, unused: 1, grants: 3, confirmed: 2,
		afterLoss: 1, heldFor: 1, share: 2, waitedTime: 1,
	} {
		got, ok := page[name]
		assert.True(t, ok, name)
		assert.Equal(t, want, got, name)
	}
}

// The renewals' metrics are of a lease that lives for some renewals.
func TestOtelfenceRenewals(t *testing.T) {
	b := newBench(t)
	o := observe(t)
	l := b.locker(b.client(), fencelock.WithHooks(o.hooks), fencelock.WithTTL(2*time.Second))
	k := b.acquire(l, "n")
	until(t, "renewals on the page", func() bool {
		return o.scrape(t)[`fencelock_lease_renewals_total{fencelock_renewal_answered="true"}`] >= 2
	})
	page := o.scrape(t)
	assert.GreaterOrEqual(t, page["fencelock_lease_margin_seconds_count"], 2.0)
	assert.GreaterOrEqual(t, page["fencelock_lease_margin_ratio_count"], 2.0)
	assert.GreaterOrEqual(t, page["fencelock_lease_renewal_duration_seconds_count"], 2.0)
	assert.Contains(t, page, `fencelock_lease_renewals_total{fencelock_renewal_answered="false"}`)
	_ = k.Release(t.Context()) // a machine that stood still for the TTL may have lost it
}

// BenchmarkOtelfence runs uncontended cycles without hooks and with all of them in
// turn, so that both have the same server and the same noise, and gives the ratio of
// their medians.
func BenchmarkOtelfence(b *testing.B) {
	cluster := harness.StartCluster(b, harness.ClusterConfig{})
	o := observe(b)
	lockers := make([]*fencelock.Locker, 2)
	for i, opts := range [][]fencelock.Option{nil, {fencelock.WithHooks(o.hooks)}} {
		l, err := fencelock.New(harness.NewClient(b, cluster.Endpoints()...), opts...)
		require.NoError(b, err)
		b.Cleanup(func() { require.NoError(b, l.Close()) })
		lockers[i] = l
	}
	names := []string{"plain", "observed"}
	took := make([][]float64, 2)
	for n := 0; b.Loop(); n++ {
		for i := range lockers {
			i = (i + n) % 2 // neither is always first
			began := time.Now()
			err := lockers[i].Do(b.Context(), names[i], func(_ context.Context, token fencelock.Token) error {
				token.Revision()
				return nil
			})
			took[i] = append(took[i], float64(time.Since(began)))
			require.NoError(b, err)
		}
	}
	for i := range took {
		slices.Sort(took[i])
	}
	median := func(v []float64) float64 { return v[len(v)/2] }
	b.ReportMetric(median(took[0])/1e3, "plain-µs")
	b.ReportMetric(median(took[1])/1e3, "observed-µs")
	b.ReportMetric(median(took[1])/median(took[0]), "ratio")
	b.ReportMetric(0, "ns/op")
}
