package otelfence

import (
	"errors"

	"go.opentelemetry.io/otel/metric"
)

type instruments struct {
	acquisitions metric.Int64Counter
	wait         metric.Float64Histogram
	waiters      metric.Int64UpDownCounter
	held         metric.Int64UpDownCounter
	lostRunning  metric.Int64UpDownCounter
	hold         metric.Float64Histogram
	holdRatio    metric.Float64Histogram
	losses       metric.Int64Counter
	afterLoss    metric.Float64Histogram
	releases     metric.Int64Counter
	release      metric.Float64Histogram
	unused       metric.Int64Counter
	renewals     metric.Int64Counter
	renewal      metric.Float64Histogram
	margin       metric.Float64Histogram
	marginRatio  metric.Float64Histogram
	rejections   metric.Int64Counter
}

// Boundaries are advice that a view can overrule. The SDK's default is meant for
// milliseconds.
var (
	requestSeconds = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}
	workSeconds    = []float64{.005, .025, .1, .5, 1, 2.5, 5, 10, 15, 30, 60, 120, 300, 900, 3600}
	marginSeconds  = []float64{0, .1, .25, .5, 1, 2, 3, 4, 5, 6, 8, 10, 15, 30, 60}
	// A renewal is due every third of the TTL, the deadline a margin before its
	// end: with the default margin an untroubled answer leaves 0.47.
	marginShares = []float64{0, .05, .1, .15, .2, .25, .3, .35, .4, .45, .5, .6}
	holdShares   = []float64{.01, .05, .1, .25, .5, .75, 1, 1.5, 2, 5, 10, 50}
)

func newInstruments(m metric.Meter) (instruments, error) {
	var errs []error
	count := func(name, unit, what string) metric.Int64Counter {
		c, err := m.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(what))
		errs = append(errs, err)
		return c
	}
	level := func(name, unit, what string) metric.Int64UpDownCounter {
		c, err := m.Int64UpDownCounter(name, metric.WithUnit(unit), metric.WithDescription(what))
		errs = append(errs, err)
		return c
	}
	spread := func(name, unit, what string, bounds []float64) metric.Float64Histogram {
		h, err := m.Float64Histogram(name, metric.WithUnit(unit), metric.WithDescription(what),
			metric.WithExplicitBucketBoundaries(bounds...))
		errs = append(errs, err)
		return h
	}
	i := instruments{
		acquisitions: count("fencelock.acquisitions", "{acquisition}", "Acquiring calls that were granted the lock or failed, by result."),
		wait:         spread("fencelock.wait.duration", "s", "Time that calls which had to queue spent in the queue.", workSeconds),
		waiters:      level("fencelock.lock.waiters", "{waiter}", "Calls that wait in a queue now."),
		held:         level("fencelock.lock.held", "{lock}", "Locks held now. Lost ones are not held."),
		lostRunning:  level("fencelock.lock.lost_running", "{lock}", "Lost locks whose work has not returned."),
		hold:         spread("fencelock.hold.duration", "s", "Time from the grant to the return of the work.", workSeconds),
		holdRatio:    spread("fencelock.hold.ttl_ratio", "1", "Time from the grant to the return of the work, as a share of the lease's TTL.", holdShares),
		losses:       count("fencelock.losses", "{loss}", "Locks lost while they were held."),
		afterLoss:    spread("fencelock.work_after_loss.duration", "s", "Time that the work went on after the loss of its lock.", workSeconds),
		releases:     count("fencelock.releases", "{release}", "Releases of locks that were not lost."),
		release:      spread("fencelock.release.duration", "s", "Time that a release took.", requestSeconds),
		unused:       count("fencelock.tokens.unused", "{token}", "Callbacks that returned without an error and never used their token."),
		renewals:     count("fencelock.lease.renewals", "{renewal}", "Attempts to renew a lease."),
		renewal:      spread("fencelock.lease.renewal.duration", "s", "Time from sending a renewal to its answer.", requestSeconds),
		margin:       spread("fencelock.lease.margin", "s", "Time left to the deadline when a renewal was answered.", marginSeconds),
		marginRatio:  spread("fencelock.lease.margin_ratio", "1", "Time left to the deadline when a renewal was answered, as a share of the TTL.", marginShares),
		rejections:   count("fencelock.fence.rejections", "{token}", "Tokens that a fence refused."),
	}
	return i, errors.Join(errs...)
}
