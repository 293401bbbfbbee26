package otelfence_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/otelfence"
)

// stage is hooks and what they have recorded.
type stage struct {
	t      *testing.T
	hooks  fencelock.Hooks
	reader *sdkmetric.ManualReader
	spans  *tracetest.SpanRecorder
	tracer trace.Tracer
}

func newStage(t *testing.T, opts ...otelfence.Option) *stage {
	t.Helper()
	s := &stage{t: t, reader: sdkmetric.NewManualReader(), spans: tracetest.NewSpanRecorder()}
	tracers := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(s.spans))
	s.tracer = tracers.Tracer("test")
	var err error
	s.hooks, err = otelfence.New(sdkmetric.NewMeterProvider(sdkmetric.WithReader(s.reader)), tracers, opts...)
	require.NoError(t, err)
	return s
}

func series(name string, set attribute.Set) string {
	var kvs []string
	for _, kv := range set.ToSlice() {
		kvs = append(kvs, strings.TrimPrefix(string(kv.Key), "fencelock.")+"="+kv.Value.String())
	}
	return strings.TrimPrefix(name, "fencelock.") + "{" + strings.Join(kvs, ",") + "}"
}

// collect returns sums by series, and of a histogram "count/sum". Zeros are left out
// unless all is asked for.
func (s *stage) collect(all bool) map[string]string {
	s.t.Helper()
	var rm metricdata.ResourceMetrics
	require.NoError(s.t, s.reader.Collect(context.Background(), &rm))
	got := map[string]string{}
	for _, sm := range rm.ScopeMetrics {
		for _, m := range sm.Metrics {
			switch d := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range d.DataPoints {
					if p.Value != 0 || all {
						got[series(m.Name, p.Attributes)] = fmt.Sprint(p.Value)
					}
				}
			case metricdata.Histogram[float64]:
				for _, p := range d.DataPoints {
					got[series(m.Name, p.Attributes)] = fmt.Sprintf("%d/%.1f", p.Count, p.Sum)
				}
			default:
				s.t.Fatalf("%s is a %T", m.Name, d)
			}
		}
	}
	return got
}

func (s *stage) requires(want map[string]string) {
	s.t.Helper()
	require.Equal(s.t, want, s.collect(false))
}

// tokenOf is a token with which nothing counts as use, as of a Locker.
func tokenOf(t *testing.T, name string, rev int) fencelock.Token {
	t.Helper()
	token, err := fencelock.ParseToken(name, fmt.Sprintf("%d.h%d", rev, rev))
	require.NoError(t, err)
	return token
}

// grant is what a Locker does; it returns the hold's context and what loses it.
func (s *stage) grant(ctx context.Context, token fencelock.Token) (context.Context, context.CancelCauseFunc) {
	info := s.granted(ctx, token)
	held, cancel := context.WithCancelCause(ctx)
	s.t.Cleanup(func() { cancel(nil) })
	held = s.hooks.HoldContext(held, info)
	s.hooks.Acquired(info)
	return held, cancel
}

func (s *stage) granted(ctx context.Context, token fencelock.Token) fencelock.AcquiredInfo {
	return fencelock.AcquiredInfo{
		Context: ctx, Name: token.Name(), Token: token, Started: time.Now().Add(-3 * time.Second), Took: 3 * time.Second,
		Waited: true, Wait: 2 * time.Second, TTL: 15 * time.Second,
	}
}

func lossOf(token fencelock.Token) (at, returned *fencelock.LostError) {
	now := time.Now()
	at = &fencelock.LostError{Name: token.Name(), Token: token, Reason: fencelock.LostExpired, LostAt: now}
	copied := *at
	copied.Returned = now.Add(4 * time.Second)
	return at, &copied
}

func TestNewRefusesWhatCannotWork(t *testing.T) {
	m, tr := metricnoop.NewMeterProvider(), tracenoop.NewTracerProvider()
	for name, f := range map[string]func() (fencelock.Hooks, error){
		"no meters":  func() (fencelock.Hooks, error) { return otelfence.New(nil, tr) },
		"no tracers": func() (fencelock.Hooks, error) { return otelfence.New(m, nil) },
		"nil option": func() (fencelock.Hooks, error) { return otelfence.New(m, tr, nil) },
		"nil label":  func() (fencelock.Hooks, error) { return otelfence.New(m, tr, otelfence.WithNameLabel(nil)) },
		"no name":    func() (fencelock.Hooks, error) { return otelfence.New(m, tr, otelfence.WithFence("")) },
	} {
		hooks, err := f()
		require.ErrorIs(t, err, fencelock.ErrInvalidOption, name)
		assert.Equal(t, fencelock.Hooks{}, hooks)
	}
	_, err := otelfence.New(brokenMeters{m}, tr)
	require.ErrorIs(t, err, errBroken)
	assert.ErrorContains(t, err, "fencelock:")
}

var errBroken = errors.New("broken")

type brokenMeters struct{ metric.MeterProvider }

func (b brokenMeters) Meter(name string, _ ...metric.MeterOption) metric.Meter {
	return brokenMeter{b.MeterProvider.Meter(name)}
}

type brokenMeter struct{ metric.Meter }

func (brokenMeter) Int64UpDownCounter(string, ...metric.Int64UpDownCounterOption) (metric.Int64UpDownCounter, error) {
	return nil, errBroken
}

func TestMetricsOfAnUneventfulLock(t *testing.T) {
	s := newStage(t)
	ctx := t.Context()
	token := tokenOf(t, "orders/7", 5)
	s.hooks.Waiting(fencelock.WaitingInfo{Context: ctx, Name: "orders/7"})
	s.requires(map[string]string{"lock.waiters{lock.label=orders}": "1"})
	s.hooks.Waited(fencelock.WaitedInfo{Context: ctx, Name: "orders/7", Wait: 2 * time.Second, Granted: true})
	s.grant(ctx, token)
	s.requires(map[string]string{
		"wait.duration{lock.label=orders,wait.granted=true}": "1/2.0",
		"acquisitions{lock.label=orders,result=granted}":     "1",
		"lock.held{lock.label=orders}":                       "1",
	})
	s.hooks.Released(fencelock.ReleasedInfo{
		Context: ctx, Name: "orders/7", Token: token, Held: 30 * time.Second, Took: time.Second, TTL: 15 * time.Second, Confirmed: true,
	})
	s.hooks.TokenUnused(fencelock.TokenUnusedInfo{Context: ctx, Name: "orders/7", Token: token})
	s.requires(map[string]string{
		"wait.duration{lock.label=orders,wait.granted=true}":         "1/2.0",
		"acquisitions{lock.label=orders,result=granted}":             "1",
		"hold.duration{hold.outcome=released,lock.label=orders}":     "1/30.0",
		"hold.ttl_ratio{hold.outcome=released,lock.label=orders}":    "1/2.0",
		"releases{lock.label=orders,release.confirmed=true}":         "1",
		"release.duration{lock.label=orders,release.confirmed=true}": "1/1.0",
		"tokens.unused{lock.label=orders}":                           "1",
	})
}

func TestMetricsOfFailures(t *testing.T) {
	s := newStage(t)
	for _, r := range []fencelock.Result{
		fencelock.ResultHeld, fencelock.ResultWaitExpired, fencelock.ResultCanceled, fencelock.ResultUnreachable,
		fencelock.ResultNoQuorum, fencelock.ResultDenied, fencelock.ResultQuota, fencelock.ResultClosed, fencelock.ResultOther, "from the future",
	} {
		s.hooks.NotAcquired(fencelock.NotAcquiredInfo{Context: t.Context(), Name: "a", Result: r, Err: errBroken})
	}
	s.hooks.RenewalFailed(fencelock.RenewalFailedInfo{Err: errBroken})
	s.hooks.Renewed(fencelock.RenewedInfo{TTL: 10 * time.Second, Took: 3 * time.Second, Margin: 5 * time.Second})
	want := map[string]string{
		"lease.renewals{renewal.answered=false}": "1", "lease.renewals{renewal.answered=true}": "1",
		"lease.renewal.duration{}": "1/3.0", "lease.margin{}": "1/5.0", "lease.margin_ratio{}": "1/0.5",
		"acquisitions{lock.label=a,result=other}": "2",
	}
	for _, r := range []string{"held", "wait-expired", "canceled", "unreachable", "no-quorum", "denied", "quota", "closed"} {
		want["acquisitions{lock.label=a,result="+r+"}"] = "1"
	}
	s.requires(want)

	for _, span := range s.spans.Ended() {
		var result string
		for _, kv := range span.Attributes() {
			if kv.Key == "fencelock.result" {
				result = kv.Value.AsString()
			}
		}
		asked := slices.Contains([]string{"held", "wait-expired", "canceled"}, result)
		assert.Equal(t, !asked, span.Status().Code == codes.Error, result)
	}
	assert.Len(t, s.spans.Ended(), 10)
}

// A holder returns while its loss is announced, or is lost before it is granted, as
// its hooks see it. Every order ends with the same sums, and none shows a gauge that
// is off on the way.
func TestMetricsOfALossInEveryOrder(t *testing.T) {
	type steps = map[string]func()
	for _, order := range [][]string{
		{"grant", "lost", "returned"},
		{"grant", "returned", "lost"},
		{"lost", "grant", "returned"},
	} {
		t.Run(strings.Join(order, ", "), func(t *testing.T) {
			s := newStage(t)
			token := tokenOf(t, "n", 5)
			at, returned := lossOf(token)
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			cancelled := false
			do := steps{
				"grant": func() {
					info := s.granted(t.Context(), token)
					s.hooks.HoldContext(ctx, info)
					s.hooks.Acquired(info)
				},
				"lost": func() {
					s.hooks.Lost(fencelock.LostInfo{Context: t.Context(), Err: at, Held: time.Second, Running: true})
				},
				"returned": func() {
					s.hooks.ReturnedAfterLoss(fencelock.ReturnedAfterLossInfo{Context: t.Context(), Err: returned, After: 4 * time.Second})
				},
			}
			for _, step := range order {
				if step != "grant" && !cancelled {
					cancel(at) // the context ends before anything is announced
					cancelled = true
				}
				do[step]()
				for name, v := range s.collect(true) {
					if strings.HasPrefix(name, "lock.") {
						assert.NotContains(t, v, "-", "%s after %s", name, step)
					}
				}
				if order[0] == "lost" && step == "grant" || order[0] == "grant" && step == "lost" && order[1] == "lost" {
					got := s.collect(true)
					assert.Equal(t, "1", got["lock.lost_running{lock.label=n}"])
					assert.Equal(t, "0", got["lock.held{lock.label=n}"])
				}
			}
			got := s.collect(false)
			for name, v := range map[string]string{
				"acquisitions{lock.label=n,result=granted}":                  "1",
				"losses{lock.label=n,loss.reason=expired,loss.running=true}": "1",
				"work_after_loss.duration{lock.label=n,loss.reason=expired}": "1/4.0",
			} {
				assert.Equal(t, v, got[name], name)
			}
			assert.True(t, strings.HasPrefix(got["hold.duration{hold.outcome=lost,lock.label=n}"], "1/"), "%v", got)
			for name := range got {
				assert.False(t, strings.HasPrefix(name, "lock."), "%s should be 0", name)
			}
			hold := s.span("fencelock.hold")
			require.Len(t, hold.Events(), 1)
			assert.Equal(t, "lost", hold.Events()[0].Name)
			assert.True(t, hold.Events()[0].Time.Equal(at.LostAt))
			assert.True(t, hold.EndTime().Equal(returned.Returned))
			assert.Equal(t, codes.Error, hold.Status().Code)
		})
	}
}

// The outer hold's loss is the cause of the inner's end, and is not the inner's.
func TestLossOfAnOuterHold(t *testing.T) {
	s := newStage(t)
	outer, inner := tokenOf(t, "outer", 5), tokenOf(t, "inner", 6)
	at, _ := lossOf(outer)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(at)
	s.hooks.HoldContext(ctx, s.granted(t.Context(), inner))
	s.requires(map[string]string{"lock.held{lock.label=inner}": "1"})
}

// A loss that the release itself finds has no ReturnedAfterLoss.
func TestLossFoundByTheRelease(t *testing.T) {
	s := newStage(t)
	token := tokenOf(t, "n", 5)
	s.grant(t.Context(), token)
	_, loss := lossOf(token)
	s.hooks.Lost(fencelock.LostInfo{Context: t.Context(), Err: loss, Held: 3 * time.Second})
	s.requires(map[string]string{
		"acquisitions{lock.label=n,result=granted}":                   "1",
		"losses{lock.label=n,loss.reason=expired,loss.running=false}": "1",
		"hold.duration{hold.outcome=lost,lock.label=n}":               "1/3.0",
		"hold.ttl_ratio{hold.outcome=lost,lock.label=n}":              "1/0.2",
	})
	assert.Equal(t, codes.Error, s.span("fencelock.hold").Status().Code)
}

func TestUnconfirmedRelease(t *testing.T) {
	s := newStage(t)
	token := tokenOf(t, "n", 5)
	s.grant(t.Context(), token)
	s.hooks.Released(fencelock.ReleasedInfo{Context: t.Context(), Name: "n", Token: token, Took: time.Second, Err: fencelock.ErrUnconfirmed})
	got := s.collect(false)
	assert.Equal(t, "1", got["releases{lock.label=n,release.confirmed=false}"])
	assert.Empty(t, got["lock.held{lock.label=n}"])
	assert.Equal(t, codes.Error, s.span("fencelock.release").Status().Code)
	assert.Equal(t, codes.Error, s.span("fencelock.hold").Status().Code)
}

// span returns the only ended span of that name.
func (s *stage) span(name string) sdktrace.ReadOnlySpan {
	s.t.Helper()
	var found []sdktrace.ReadOnlySpan
	for _, span := range s.spans.Ended() {
		if span.Name() == name {
			found = append(found, span)
		}
	}
	require.Len(s.t, found, 1, name)
	return found[0]
}

func attrs(kvs []attribute.KeyValue) map[string]string {
	m := map[string]string{}
	for _, kv := range kvs {
		m[string(kv.Key)] = kv.Value.String()
	}
	return m
}

func TestSpans(t *testing.T) {
	s := newStage(t)
	ctx, caller := s.tracer.Start(t.Context(), "caller")
	token := tokenOf(t, "orders/7", 5)
	held, _ := s.grant(ctx, token)
	_, work := s.tracer.Start(held, "work")
	work.End()
	s.hooks.Released(fencelock.ReleasedInfo{Context: ctx, Name: "orders/7", Token: token, Took: time.Millisecond, Confirmed: true})
	s.hooks.TokenUnused(fencelock.TokenUnusedInfo{Context: ctx, Name: "orders/7", Token: token})
	caller.End()

	acquire, hold, release := s.span("fencelock.acquire"), s.span("fencelock.hold"), s.span("fencelock.release")
	parent := func(name string) trace.SpanID { return s.span(name).Parent().SpanID() }
	assert.Equal(t, caller.SpanContext().SpanID(), parent("fencelock.acquire"))
	assert.Equal(t, caller.SpanContext().SpanID(), parent("fencelock.hold"))
	assert.Equal(t, hold.SpanContext().SpanID(), parent("fencelock.release"))
	assert.Equal(t, hold.SpanContext().SpanID(), parent("work"), "the work stands inside of the hold")
	require.Len(t, hold.Links(), 1)
	assert.Equal(t, acquire.SpanContext().SpanID(), hold.Links()[0].SpanContext.SpanID())

	for _, span := range []sdktrace.ReadOnlySpan{acquire, hold, release} {
		a := attrs(span.Attributes())
		assert.Equal(t, "orders/7", a["fencelock.lock.name"], "the whole name")
		assert.Equal(t, "5.h5", a["fencelock.token"])
		assert.Equal(t, codes.Unset, span.Status().Code)
	}
	assert.Equal(t, 3*time.Second, acquire.EndTime().Sub(acquire.StartTime()))
	assert.True(t, acquire.EndTime().Equal(hold.StartTime()))
	assert.True(t, release.EndTime().Equal(hold.EndTime()))
	require.Len(t, acquire.Events(), 1)
	assert.Equal(t, "wait", acquire.Events()[0].Name)
	assert.Equal(t, 2*time.Second, acquire.EndTime().Sub(acquire.Events()[0].Time))
	require.Len(t, s.span("caller").Events(), 1)
	assert.Equal(t, "fencelock.token_unused", s.span("caller").Events()[0].Name)
}

func TestRejections(t *testing.T) {
	s := newStage(t, otelfence.WithFence("orders-db"))
	zero := s.collect(true)
	assert.Equal(t, "0", zero["fence.rejections{fence.name=orders-db,rejection.reason=stale}"], "a first refusal is a rise")

	fence := fencelock.Fence{Hooks: s.hooks}
	require.NoError(t, fence.Advance(tokenOf(t, "n", 7)))
	require.ErrorIs(t, fence.Advance(tokenOf(t, "n", 5)), fencelock.ErrStale)
	require.ErrorIs(t, fence.Advance(fencelock.Token{}), fencelock.ErrNoToken)
	require.ErrorIs(t, fence.Advance(tokenOf(t, "m", 9)), fencelock.ErrScope)
	_, invalid := fencelock.ParseToken("n", "x")
	s.hooks.TokenRejected(fencelock.TokenRejectedInfo{Err: invalid})
	s.hooks.TokenRejected(fencelock.TokenRejectedInfo{Err: errBroken})
	want := map[string]string{}
	for _, r := range []string{"stale", "no-token", "scope", "invalid", "other"} {
		want["fence.rejections{fence.name=orders-db,rejection.reason="+r+"}"] = "1"
	}
	s.requires(want)
}

// Without a bound a name with an id in it would be time series for ever.
func TestLabelsAreBounded(t *testing.T) {
	for name, opts := range map[string][]otelfence.Option{
		"by default":    nil,
		"by a function": {otelfence.WithNameLabel(func(name string) string { return name })},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, opts...)
			for i := range 250 {
				s.hooks.NotAcquired(fencelock.NotAcquiredInfo{
					Context: t.Context(), Name: fmt.Sprintf("order-%d", i), Result: fencelock.ResultHeld, Err: fencelock.ErrHeld,
				})
			}
			var counted []string
			for name := range s.collect(false) {
				counted = append(counted, name)
			}
			assert.Len(t, counted, 101)
			assert.Equal(t, "150", s.collect(false)["acquisitions{lock.label=other,result=held}"])
			assert.Equal(t, "1", s.collect(false)["acquisitions{lock.label=order-99,result=held}"])
		})
	}
}

// What is scraped before the first loss must show it at 0, or the loss would be no rise.
func TestCountersStandAtZero(t *testing.T) {
	s := newStage(t)
	s.hooks.Waiting(fencelock.WaitingInfo{Context: t.Context(), Name: "n"})
	all := slices.Collect(maps.Keys(s.collect(true)))
	for _, name := range []string{
		"losses{lock.label=n,loss.reason=expired,loss.running=true}", "releases{lock.label=n,release.confirmed=false}",
		"tokens.unused{lock.label=n}", "acquisitions{lock.label=n,result=no-quorum}", "lease.renewals{renewal.answered=false}",
		"lock.lost_running{lock.label=n}", "lock.held{lock.label=n}",
	} {
		assert.Contains(t, all, name)
	}
}
