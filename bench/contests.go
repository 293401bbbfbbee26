package main

import (
	"context"
	"time"
)

// named is a contest, and what of it is reported under its name.
type named struct {
	name string
	contest
	versusMutex, versusFloor bool
	unary, events, p99       bool
	local                    bool // one Locker for each process
}

var quickContests = []named{
	{name: "w2", contest: contest{waiters: 2}, versusMutex: true},
	{name: "w8", contest: contest{waiters: 8}, versusMutex: true, versusFloor: true},
}

var fullContests = append(quickContests[:len(quickContests):len(quickContests)], []named{
	{name: "w16", contest: contest{waiters: 16}, unary: true},
	{name: "w64", contest: contest{waiters: 64}, versusMutex: true, unary: true},
	// As many processes as there are clients, and connections as a machine has.
	{name: "w512", contest: contest{waiters: 512, processes: 64}, versusMutex: true, events: true},
	{name: "hold20ms_w2", contest: contest{waiters: 2, hold: pacedHold}, versusFloor: true},
	{name: "hold20ms_w8", contest: contest{waiters: 8, hold: pacedHold}, versusFloor: true},
	{name: "w2_background", contest: contest{waiters: 2, puts: 300}, p99: true},
	{name: "local64", contest: contest{waiters: 64, processes: 1}, unary: true, local: true},
	{name: "local8", contest: contest{waiters: 8, processes: 1}, unary: true, local: true},
	// Goroutines of one process beside those of others: whoever is served faster within
	// a process must not pass over who waits in another.
	{name: "mixed8x8", contest: contest{waiters: 64, processes: 8}, unary: true, local: true},
}...)

// pacedHold is how long the lock is held where the critical section is not empty.
const pacedHold = 20 * time.Millisecond

// floors are what a hand-over is compared with: from a deletion to the event of it,
// one right after the other, and one each pacedHold.
type floors struct{ busy, paced time.Duration }

// compare holds one contest, and the peer's beside it where the two are compared.
func compare(ctx context.Context, endpoint, lock string, run int, c named, much amount, least floors, out *figures) error {
	c.much = much
	kinds := []kind{newFencelock}
	if c.local {
		kinds[0] = newShared()
	}
	if c.versusMutex {
		kinds = append(kinds, newMutex)
	}
	came := make([]contested, len(kinds))
	for i := range kinds {
		which := (i + run) % len(kinds) // nobody is always first
		var err error
		if came[which], err = handover(ctx, endpoint, lock, kinds[which], c.contest); err != nil {
			return err
		}
	}
	ours := came[0]
	out.add("handover_"+c.name+"_mean_ms", milliseconds(ours.mean), "ms")
	if c.versusMutex {
		out.add("handover_"+c.name+"_vs_mutex", float64(ours.mean)/float64(came[1].mean), "ratio")
		out.add("mutex_handover_"+c.name+"_mean_ms", milliseconds(came[1].mean), "ms")
	}
	if c.versusFloor {
		if c.hold == 0 {
			out.add("handover_hold0_"+c.name+"_vs_floor", float64(ours.mean)/float64(least.busy), "ratio")
		} else {
			out.add("handover_"+c.name+"_vs_floor", float64(ours.mean)/float64(least.paced), "ratio")
			out.add("handover_"+c.name+"_vs_busy_floor", float64(ours.mean)/float64(least.busy), "ratio")
		}
	}
	if c.unary {
		out.add("grant_unary_"+c.name, ours.unary, "requests")
	}
	if c.events {
		out.add("release_events_"+c.name, ours.events, "events")
	}
	if c.p99 {
		out.add("handover_"+c.name+"_p99_ms", milliseconds(ours.p99), "ms")
	}
	return nil
}
