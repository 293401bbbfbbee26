package fencelock

import (
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/fencelock/fencelock/internal/clock"
	"github.com/fencelock/fencelock/internal/hook"
)

// wait waits until the entry heads the queue. ahead is who was ahead of it when
// its key was put, youngest first; not all of them if they are more than
// [viewDepth].
func (a *acquiring) wait(e *entry, ahead []*mvccpb.KeyValue) (*Lock, error) {
	l := a.l
	if !a.queued {
		a.queued, a.joined = true, clock.Now()
		hook.Call(l.cfg.log, l.cfg.hooks.Waiting, WaitingInfo{Context: a.ctx, Name: a.name})
	}
	var expired <-chan time.Time
	if a.cfg.maxWaitSet {
		t := time.NewTimer(max(a.waitLeft(), 0))
		defer t.Stop()
		expired = t.C
	}
	found := make(chan finding, 1)
	s := &sub{key: e.key, rev: e.rev, waiter: true, tell: func(f finding) { found <- f }}
	var on *target
	if len(ahead) <= viewDepth {
		s.floor, s.ahead = e.rev, make(map[string]place, len(ahead))
		for _, kv := range ahead {
			s.ahead[string(kv.Key)] = place{rev: kv.CreateRevision, lease: kv.Lease}
		}
	} else {
		// While the view sleeps it would not see a key without a lease.
		for _, kv := range ahead {
			if kv.Lease == 0 {
				e.discard()
				return nil, a.fail(PhaseWait, foreignKey(string(kv.Key)))
			}
		}
		kv := ahead[sleepDepth-1]
		on = &target{string(kv.Key), place{rev: kv.CreateRevision, lease: kv.Lease}}
	}

	l.mu.Lock()
	v, joined := l.openView(e.queue, true, on, e.lease.asked, s)
	l.mu.Unlock()
	if v == nil {
		e.discard()
		return nil, a.over(PhaseWait)
	}
	defer v.drop()
	if !joined {
		v.subscribe(s)
	}
	defer v.unsubscribe(s)

	var f finding
	select {
	case f = <-found:
	case <-e.lease.dead:
		e.discard()
		return nil, nil
	case <-expired:
		select {
		case f = <-found: // at the last moment
		default:
			return nil, a.giveUp(e)
		}
	case <-a.ctx.Done():
		e.discard()
		a.lastErr = join(a.lastErr, v.err())
		return nil, a.over(PhaseWait)
	case <-l.closing:
		e.discard()
		return nil, a.over(PhaseWait)
	case <-l.clientDone:
		e.discard()
		return nil, a.over(PhaseWait)
	}
	switch f.verdict {
	case verdictHead:
		return a.grant(e)
	case verdictDead:
		e.free()
		return nil, nil
	case verdictBlocked:
		e.discard()
		return nil, a.fail(PhaseWait, foreignKey(f.key))
	default:
		e.discard()
		return nil, a.fail(PhaseWait, deniedAt("watching", f.err, e.queue))
	}
}
