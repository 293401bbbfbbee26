package fencelock

import (
	"time"

	"github.com/fencelock/fencelock/internal/clock"
)

// ownWatchAfter is how long a lock is held before its key is watched. Short
// holds, which are most, cost no watch.
const ownWatchAfter = 500 * time.Millisecond

// young are the holds of a lease whose keys are not watched yet, in the order in
// which they were granted, which is that in which they are due. l.mu guards all of it.
//
// One timer serves them all. A timer for each was the largest part of a held lock's
// memory but the lock itself, and is stopped by most before it has run.
type young struct {
	oldest, youngest *Lock
	timer            *time.Timer
	armed            bool
}

// youngPlace is a hold's place among the young.
type youngPlace struct {
	older, younger *Lock
	there          bool
}

// add has the key of k watched when it has been held for long enough.
func (y *young) add(k *Lock) {
	k.young = youngPlace{older: y.youngest, there: true}
	if y.youngest != nil {
		y.youngest.young.younger = k
	} else {
		y.oldest = k
	}
	y.youngest = k
	switch {
	case y.armed: // for an older one, or one that is gone: then it is set anew
	case y.timer == nil:
		le := k.entry.lease
		y.timer = time.AfterFunc(ownWatchAfter, le.watchDue)
	default:
		y.timer.Reset(ownWatchAfter)
	}
	y.armed = true
}

// remove takes k out, if it is there.
func (y *young) remove(k *Lock) {
	p := k.young
	if !p.there {
		return
	}
	if p.older != nil {
		p.older.young.younger = p.younger
	} else {
		y.oldest = p.younger
	}
	if p.younger != nil {
		p.younger.young.older = p.older
	} else {
		y.youngest = p.older
	}
	k.young = youngPlace{}
}

// watchDue has the keys watched whose time has come.
func (le *lease) watchDue() {
	l := le.l
	l.mu.Lock()
	defer l.mu.Unlock()
	y := &le.young
	for k := y.oldest; k != nil; k = y.oldest {
		if left := ownWatchAfter - clock.Since(k.granted); left > 0 {
			y.timer.Reset(left)
			return
		}
		y.remove(k)
		l.spawnLocked(k.watchOwnKey)
	}
	y.armed = false
}
