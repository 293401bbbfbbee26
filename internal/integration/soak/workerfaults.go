package main

import (
	"context"

	"github.com/fencelock/fencelock/internal/integration/harness"
)

// workerFaults are the faults of a worker and of its links.
var workerFaults = []fault{
	{"stop", onWorker((*nemesis).stop)},
	{"partition", onWorker((*nemesis).partition)},
	{"oneway", onWorker((*nemesis).oneWay)},
	{"late", onWorker((*nemesis).late)},
}

// onWorker picks a worker for a fault.
func onWorker(strike func(n *nemesis, ctx context.Context, h *hand)) func(*nemesis, context.Context) {
	return func(n *nemesis, ctx context.Context) {
		if h := n.fleet.take(n.random); h != nil {
			defer h.busy.Unlock()
			strike(n, ctx, h)
		}
	}
}

// stop stops the process, so that it goes on as if no time had passed.
func (n *nemesis) stop(ctx context.Context, h *hand) {
	// An error of either says that the process is gone, as its own record does.
	n.during(ctx, "stop "+h.name, n.outage(), func() { _ = h.proc.Stop() }, func() { _ = h.proc.Cont() })
}

// partition cuts the worker off from etcd, and nobody tells it.
func (n *nemesis) partition(ctx context.Context, h *hand) {
	n.during(ctx, "partition "+h.name, n.outage(),
		func() { h.etcd.each((*harness.Proxy).Blackhole) }, func() { h.etcd.each((*harness.Proxy).Heal) })
}

// oneWay drops what goes one way: to or from all of etcd, or one member of it,
// which may be the one that carries the watch.
func (n *nemesis) oneWay(ctx context.Context, h *hand) {
	toEtcd, one := n.random.IntN(2) == 0, n.random.IntN(2) == 0
	affected := h.etcd
	what := "all requests of "
	if !toEtcd {
		what = "all answers to "
	}
	if i := n.random.IntN(len(h.etcd)); one {
		affected = h.etcd[i : i+1]
		what += "one link of "
	}
	n.during(ctx, "drop "+what+h.name, n.outage(), func() {
		affected.each(func(p *harness.Proxy) {
			if toEtcd {
				p.ToServer.Blackhole()
			} else {
				p.ToClient.Blackhole()
			}
		})
	}, func() { affected.each((*harness.Proxy).Heal) })
}

// late delays what the worker sends to the resource by two leases, and cuts it
// off from etcd: what it writes arrives when another has the lock.
func (n *nemesis) late(ctx context.Context, h *hand) {
	n.during(ctx, "late writes and partition of "+h.name, 3*ttl, func() {
		h.resource.ToServer.Delay(2 * ttl)
		h.etcd.each((*harness.Proxy).Blackhole)
	}, func() {
		h.etcd.each((*harness.Proxy).Heal)
		h.resource.Heal()
	})
}
