package otelfence

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencelock/fencelock"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
)

const scope = "github.com/fencelock/fencelock/otelfence"

type observer struct {
	instruments
	tracer trace.Tracer
	labels *labels
	holds  *holds
	fence  string
}

// New returns hooks that record metrics with meters and spans with tracers. They can
// be given to any number of Lockers; hooks made by several calls with the same
// providers add up. For a fence, call it with [WithFence]. Nothing is sent, and nothing
// has to be closed but the providers.
//
// A nil provider and a bad option are an error that wraps
// [fencelock.ErrInvalidOption]; to leave metrics or spans out, give the provider of
// OpenTelemetry's package noop. Otherwise it fails if an instrument cannot be made.
func New(meters metric.MeterProvider, tracers trace.TracerProvider, opts ...Option) (fencelock.Hooks, error) {
	if meters == nil || tracers == nil {
		return fencelock.Hooks{}, fmt.Errorf("%w: otelfence.New with a nil provider; give that of package noop for none", fencelock.ErrInvalidOption)
	}
	c := config{label: firstSegment, fence: unnamed}
	for _, o := range opts {
		if o == nil {
			return fencelock.Hooks{}, fmt.Errorf("%w: a nil option", fencelock.ErrInvalidOption)
		}
		if err := o(&c); err != nil {
			return fencelock.Hooks{}, err
		}
	}
	i, err := newInstruments(meters.Meter(scope))
	if err != nil {
		return fencelock.Hooks{}, fmt.Errorf("fencelock: making the instruments: %w", err)
	}
	o := &observer{instruments: i, tracer: tracers.Tracer(scope), fence: c.fence}
	o.labels = &labels{of: c.label, i: &o.instruments, known: map[string]*label{}}
	o.holds = &holds{i: &o.instruments, m: map[string]*hold{}}
	for _, b := range []bool{false, true} {
		o.renewals.Add(context.Background(), 0, answered[b])
	}
	if c.fence != unnamed {
		for _, r := range []string{"stale", "no-token", "scope", "invalid", other} {
			o.rejections.Add(context.Background(), 0, set(keyFence.String(c.fence), keyRejection.String(r)))
		}
	}
	return fencelock.Hooks{
		Waiting:           o.waiting,
		Waited:            o.waited,
		HoldContext:       o.holdContext,
		Acquired:          o.acquired,
		NotAcquired:       o.notAcquired,
		Renewed:           o.renewed,
		RenewalFailed:     o.renewalFailed,
		Lost:              o.lost,
		ReturnedAfterLoss: o.returnedAfterLoss,
		Released:          o.released,
		TokenUnused:       o.tokenUnused,
		TokenRejected:     o.tokenRejected,
	}, nil
}

func (o *observer) waiting(i fencelock.WaitingInfo) {
	o.waiters.Add(i.Context, 1, o.labels.get(i.Name).alone)
}

func (o *observer) waited(i fencelock.WaitedInfo) {
	n := o.labels.get(i.Name)
	o.waiters.Add(i.Context, -1, n.alone)
	o.wait.Record(i.Context, i.Wait.Seconds(), n.granted[i.Granted])
}

// waitEvent says in the span of a call when it began to wait and for how long. What
// follows the wait is a look at the lease, so the end of the call is near that of
// the wait.
func waitEvent(span trace.Span, wait time.Duration, end time.Time) {
	if wait > 0 {
		span.AddEvent("wait", trace.WithTimestamp(end.Add(-wait)), trace.WithAttributes(keyWait.Float64(wait.Seconds())))
	}
}

func (o *observer) holdContext(ctx context.Context, i fencelock.AcquiredInfo) context.Context {
	token := i.Token.String()
	attrs := trace.WithAttributes(keyName.String(i.Name), keyToken.String(token), keyAdvisory.Bool(i.Advisory))
	at := i.Started.Add(i.Took)
	_, acquire := o.tracer.Start(i.Context, "fencelock.acquire", trace.WithTimestamp(i.Started), attrs,
		trace.WithAttributes(keyResult.String(granted)))
	waitEvent(acquire, i.Wait, at)
	acquire.End(trace.WithTimestamp(at))
	ctx, span := o.tracer.Start(ctx, "fencelock.hold", trace.WithTimestamp(at), attrs,
		trace.WithLinks(trace.Link{SpanContext: acquire.SpanContext()}))
	o.holds.begin(ctx, i.Token, &hold{label: o.labels.get(i.Name), span: span, granted: at, ttl: i.TTL})
	return ctx
}

func (o *observer) acquired(i fencelock.AcquiredInfo) {
	o.acquisitions.Add(i.Context, 1, o.labels.get(i.Name).result[granted])
}

func (o *observer) notAcquired(i fencelock.NotAcquiredInfo) {
	n := o.labels.get(i.Name)
	result, ok := n.result[string(i.Result)]
	if !ok {
		result = n.result[string(fencelock.ResultOther)]
	}
	o.acquisitions.Add(i.Context, 1, result)
	end := time.Now()
	_, span := o.tracer.Start(i.Context, "fencelock.acquire", trace.WithTimestamp(end.Add(-i.Took)),
		trace.WithAttributes(keyName.String(i.Name), keyResult.String(string(i.Result))))
	waitEvent(span, i.Wait, end)
	switch i.Result {
	case fencelock.ResultHeld, fencelock.ResultWaitExpired, fencelock.ResultCanceled: // what was asked for
	default:
		span.RecordError(i.Err)
		span.SetStatus(codes.Error, string(i.Result))
	}
	span.End(trace.WithTimestamp(end))
}

var answered = map[bool]metric.MeasurementOption{
	true: set(keyAnswered.Bool(true)), false: set(keyAnswered.Bool(false)),
}

func (o *observer) renewed(i fencelock.RenewedInfo) {
	ctx := context.Background()
	o.renewals.Add(ctx, 1, answered[true])
	o.renewal.Record(ctx, i.Took.Seconds())
	o.margin.Record(ctx, i.Margin.Seconds())
	if i.TTL > 0 {
		o.marginRatio.Record(ctx, i.Margin.Seconds()/i.TTL.Seconds())
	}
}

func (o *observer) renewalFailed(fencelock.RenewalFailedInfo) {
	o.renewals.Add(context.Background(), 1, answered[false])
}

func (o *observer) lost(i fencelock.LostInfo) {
	n := o.labels.get(i.Err.Name)
	if loss, ok := n.loss[i.Err.Reason]; ok {
		o.losses.Add(i.Context, 1, loss[i.Running])
	} else {
		// A reason that is newer than this package.
		o.losses.Add(i.Context, 1, n.alone)
	}
	if i.Running {
		o.holds.lose(i.Context, i.Err.Token)
		return
	}
	// The release found it; nothing else follows.
	if h := o.holds.end(i.Context, i.Err.Token); h != nil {
		h.worked(i.Context, &o.instruments, i.Held, outcomeLost)
		h.endLost(i.Err)
	}
}

func (o *observer) returnedAfterLoss(i fencelock.ReturnedAfterLossInfo) {
	n := o.labels.get(i.Err.Name)
	reason, ok := n.reason[i.Err.Reason]
	if !ok {
		reason = n.alone
	}
	o.afterLoss.Record(i.Context, i.After.Seconds(), reason)
	if h := o.holds.end(i.Context, i.Err.Token); h != nil {
		h.worked(i.Context, &o.instruments, time.Since(h.granted), outcomeLost)
		h.endLost(i.Err)
	}
}

func (o *observer) released(i fencelock.ReleasedInfo) {
	n := o.labels.get(i.Name)
	o.releases.Add(i.Context, 1, n.confirmed[i.Confirmed])
	o.release.Record(i.Context, i.Took.Seconds(), n.confirmed[i.Confirmed])
	h := o.holds.end(i.Context, i.Token)
	if h == nil {
		return
	}
	outcome := outcomeReleased
	if !i.Confirmed {
		outcome = outcomeUnconfirmed
	}
	h.worked(i.Context, &o.instruments, i.Held, outcome)
	end := time.Now()
	_, span := o.tracer.Start(trace.ContextWithSpan(i.Context, h.span), "fencelock.release", trace.WithTimestamp(end.Add(-i.Took)),
		trace.WithAttributes(keyName.String(i.Name), keyToken.String(i.Token.String()), keyConfirmed.Bool(i.Confirmed)))
	if i.Err != nil {
		span.RecordError(i.Err)
		span.SetStatus(codes.Error, outcome)
		h.span.SetStatus(codes.Error, outcome)
	}
	span.End(trace.WithTimestamp(end))
	h.span.End(trace.WithTimestamp(end))
}

func (o *observer) tokenUnused(i fencelock.TokenUnusedInfo) {
	o.unused.Add(i.Context, 1, o.labels.get(i.Name).alone)
	trace.SpanFromContext(i.Context).AddEvent("fencelock.token_unused",
		trace.WithAttributes(keyName.String(i.Name), keyToken.String(i.Token.String())))
}

func (o *observer) tokenRejected(i fencelock.TokenRejectedInfo) {
	reason := other
	switch {
	case errors.Is(i.Err, fencelock.ErrStale):
		reason = "stale"
	case errors.Is(i.Err, fencelock.ErrNoToken):
		reason = "no-token"
	case errors.Is(i.Err, fencelock.ErrScope):
		reason = "scope"
	case errors.Is(i.Err, fencelock.ErrInvalidToken):
		reason = "invalid"
	}
	o.rejections.Add(context.Background(), 1, set(keyFence.String(o.fence), keyRejection.String(reason)))
}
