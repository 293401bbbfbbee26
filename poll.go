package fencelock

import (
	"context"
	"maps"
	"slices"
	"time"
)

// maxOwnWatches is how many holders of a Locker watch their key. Each watch is two
// goroutines here and an entry in etcd, so the keys of those beyond are polled:
// 128 in a request, whose cost does not grow with what others do in etcd.
const maxOwnWatches = 64

// pollEvery is how often those keys are looked at, so that a deletion is felt
// within a second.
const pollEvery = 750 * time.Millisecond

// startPolling lets the poller run while there are locks to poll; l.mu must be
// held.
func (le *lease) startPolling() {
	if !le.polling {
		le.polling = le.l.spawnLocked(le.poll)
	}
}

func (le *lease) poll() {
	l := le.l
	tick := time.NewTimer(pollEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-l.ctx.Done():
		}
		began := time.Now()
		l.mu.Lock()
		if len(le.polled) == 0 || le.state == leaseLost || le.state == leaseEnding || l.stopped {
			le.polling = false
			l.mu.Unlock()
			return
		}
		held := slices.Collect(maps.Keys(le.polled))
		l.mu.Unlock()
		le.pollOnce(held)
		tick.Reset(max(pollEvery-time.Since(began), 0))
	}
}

// pollOnce looks at the keys of held. What gets no answer is looked at again soon,
// with the others; that request can reach another endpoint.
func (le *lease) pollOnce(held []*Lock) {
	for some := range slices.Chunk(held, maxTxnOps) {
		// A bound for each: on a slow link a pass takes longer, but it gets through.
		ctx, cancel := context.WithTimeout(le.l.ctx, pollEvery)
		err := le.check(ctx, some)
		cancel()
		if err != nil {
			if denied(err) {
				le.judgeFailure(err)
			}
			return
		}
	}
}
