package otelfence

import (
	"context"
	"sync"

	"github.com/fencelock/fencelock"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

const (
	maxLabels = 100
	other     = "other"
	granted   = "granted"
)

const (
	keyLabel     = attribute.Key("fencelock.lock.label")
	keyName      = attribute.Key("fencelock.lock.name")
	keyToken     = attribute.Key("fencelock.token")
	keyResult    = attribute.Key("fencelock.result")
	keyGranted   = attribute.Key("fencelock.wait.granted")
	keyOutcome   = attribute.Key("fencelock.hold.outcome")
	keyReason    = attribute.Key("fencelock.loss.reason")
	keyRunning   = attribute.Key("fencelock.loss.running")
	keyConfirmed = attribute.Key("fencelock.release.confirmed")
	keyAnswered  = attribute.Key("fencelock.renewal.answered")
	keyFence     = attribute.Key("fencelock.fence.name")
	keyRejection = attribute.Key("fencelock.rejection.reason")
	keyAdvisory  = attribute.Key("fencelock.advisory")
	keyWait      = attribute.Key("fencelock.wait.seconds")
)

var results = []string{
	granted, string(fencelock.ResultHeld), string(fencelock.ResultWaitExpired), string(fencelock.ResultCanceled),
	string(fencelock.ResultUnreachable), string(fencelock.ResultNoQuorum), string(fencelock.ResultDenied),
	string(fencelock.ResultQuota), string(fencelock.ResultClosed), string(fencelock.ResultOther),
}

var reasons = []fencelock.Reason{
	fencelock.LostExpired, fencelock.LostRevoked, fencelock.LostDeleted, fencelock.LostDenied,
	fencelock.LostMaxHold, fencelock.LostClosed, fencelock.LostSession,
}

// label is one value of fencelock.lock.label. Attribute sets are built once: they
// are most of what a measurement costs.
type label struct {
	alone     metric.MeasurementOption
	result    map[string]metric.MeasurementOption
	granted   map[bool]metric.MeasurementOption
	outcome   map[string]metric.MeasurementOption
	reason    map[fencelock.Reason]metric.MeasurementOption
	loss      map[fencelock.Reason]map[bool]metric.MeasurementOption
	confirmed map[bool]metric.MeasurementOption
}

func set(kvs ...attribute.KeyValue) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(kvs...))
}

func newLabel(value string) *label {
	l := keyLabel.String(value)
	n := &label{
		alone:     set(l),
		result:    map[string]metric.MeasurementOption{},
		granted:   map[bool]metric.MeasurementOption{},
		outcome:   map[string]metric.MeasurementOption{},
		reason:    map[fencelock.Reason]metric.MeasurementOption{},
		loss:      map[fencelock.Reason]map[bool]metric.MeasurementOption{},
		confirmed: map[bool]metric.MeasurementOption{},
	}
	for _, r := range results {
		n.result[r] = set(l, keyResult.String(r))
	}
	for _, o := range []string{outcomeReleased, outcomeUnconfirmed, outcomeLost} {
		n.outcome[o] = set(l, keyOutcome.String(o))
	}
	for _, r := range reasons {
		n.reason[r] = set(l, keyReason.String(string(r)))
		n.loss[r] = map[bool]metric.MeasurementOption{}
		for _, b := range []bool{false, true} {
			n.loss[r][b] = set(l, keyReason.String(string(r)), keyRunning.Bool(b))
		}
	}
	for _, b := range []bool{false, true} {
		n.granted[b] = set(l, keyGranted.Bool(b))
		n.confirmed[b] = set(l, keyConfirmed.Bool(b))
	}
	return n
}

// zero makes the counters of a label stand at 0.
func (n *label) zero(i *instruments) {
	ctx := context.Background()
	for _, o := range n.result {
		i.acquisitions.Add(ctx, 0, o)
	}
	for _, both := range n.loss {
		for _, o := range both {
			i.losses.Add(ctx, 0, o)
		}
	}
	for _, o := range n.confirmed {
		i.releases.Add(ctx, 0, o)
	}
	i.unused.Add(ctx, 0, n.alone)
	i.waiters.Add(ctx, 0, n.alone)
	i.held.Add(ctx, 0, n.alone)
	i.lostRunning.Add(ctx, 0, n.alone)
}

// labels are the values seen, at most maxLabels and "other".
type labels struct {
	of func(name string) string
	i  *instruments

	mu    sync.RWMutex
	known map[string]*label
}

func (l *labels) get(name string) *label {
	value := l.of(name)
	l.mu.RLock()
	n := l.known[value]
	if n == nil && len(l.known) >= maxLabels {
		n = l.known[other]
	}
	l.mu.RUnlock()
	if n != nil {
		return n
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := l.known[value]; n != nil {
		return n
	}
	if len(l.known) >= maxLabels {
		value = other
	}
	if n := l.known[value]; n != nil {
		return n
	}
	n = newLabel(value)
	n.zero(l.i)
	l.known[value] = n
	return n
}
