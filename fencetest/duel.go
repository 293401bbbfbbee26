package fencetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencelock/fencelock"
)

// pair is what the two holders of a duel do.
type pair struct {
	older, newer string // a function; the old holder's rewrite deletes and writes in turn
	apart        bool   // the successor's call is at a key that the old holder has nothing at
}

// pairs are all that are worth a duel. A late effect of the old holder must be seen
// on top of what the successor did, or saw.
var pairs = []pair{
	{"Write", "Write", false},
	{"Write", "Write", true},
	{"rewrite", "Write", true}, // every second write is of a key that is not there
	{"Advance", "Write", false},
	{"Update", "Advance", true},
	{"Write", "Write", false},
	{"Delete", "Write", false},
	{"Write", "Delete", false},
	{"Write", "Advance", true},
	{"Update", "Write", true},
	{"Advance", "Advance", true},
	{"rewrite", "Write", false},
	{"Write", "Delete", true},
	{"rewrite", "Advance", true},
}

// duelists returns what the resource can do in a duel, and the pairs it can do it in.
// What has two functions does them in turn.
func (r Resource) duelists() (by map[string][]fenced, can []pair) {
	by = make(map[string][]fenced)
	for _, f := range r.fenced() {
		by[f.name] = []fenced{f}
	}
	if r.Delete != nil {
		by["rewrite"] = append(slices.Clone(by["Delete"]), by["Write"]...)
	}
	for _, p := range pairs {
		if by[p.older] != nil && by[p.newer] != nil {
			can = append(can, p)
		}
	}
	return by, can
}

// duels has one holder call from several goroutines without a pause, until it is
// refused, and its successor make one call in the middle of that. So there is nearly
// always a call that passed the check before the successor did and is not yet
// applied. When all have ended, nothing of the old holder may be on top, and the mark
// must be the successor's.
func (r Resource) duels(t tb, rev int64) int64 {
	t.Helper()
	var c race
	by, can := r.duelists()
	begun := time.Now()
	for n := 0; !c.over.Load() && goesOn(begun, n, leastDuels); n++ {
		rev += 3
		p := can[n%len(can)]
		d := duel{
			Resource: r, race: &c, ctx: t.Context(), apart: p.apart,
			olderCalls: by[p.older], newerCall: by[p.newer][0],
			older: mint(scope, rev, "older"), between: mint(scope, rev+1, "between"), newer: mint(scope, rev+2, "newer"),
		}
		if n/len(can)%2 == 1 {
			d.ctx = yielding(d.ctx)
		}
		d.fight(t)
	}
	c.report(t, "one holder follows another")
	return rev + 3
}

// duel is one change of holders.
type duel struct {
	Resource
	*race
	ctx                   context.Context
	olderCalls            []fenced // in turn
	newerCall             fenced
	older, between, newer fencelock.Token
	apart                 bool

	began, passed, stop atomic.Bool // the successor's call; stop also if it failed
}

// olders is how many goroutines make the old holder's calls.
const olders = 4

// keys returns where the old holder's goroutines do their work. A fence that locks a
// key has only one call between check and effect there, so each has a key of its own
// where the successor does not come to it.
func (d *duel) keys() []string {
	keys := []string{key}
	for i := 1; i < olders && d.apart; i++ {
		keys = append(keys, key+strconv.Itoa(i))
	}
	return keys
}

func (d *duel) fight(t tb) {
	keys, other := d.keys(), key
	if d.apart {
		other = "other"
	}
	var running, all sync.WaitGroup
	begun := time.Now()
	running.Add(olders)
	for i := range olders {
		all.Go(func() {
			for calls := 0; ; calls++ {
				f := d.olderCalls[calls%len(d.olderCalls)]
				late, last := d.passed.Load(), d.stop.Load()
				// A value of its own for each call: what comes late is seen.
				err := f.call(d.ctx, d.older, keys[i%len(keys)], fmt.Sprint(d.older, " ", i, ".", calls))
				early := !d.began.Load()
				d.count(err)
				refused := errors.Is(err, fencelock.ErrStale)
				switch {
				case err == nil && late:
					d.wrong("%s with token %s must be refused: it began after token %s was acknowledged; it passed", f.name, d.older, d.newer)
				case refused && early:
					d.wrong("%s with token %s must pass: nobody has presented a newer one; it returned: %v", f.name, d.older, err)
				}
				if calls == 0 {
					running.Done()
				}
				// The end must not rest on the store being fair to the successor.
				starved := calls%1024 == 1023 && time.Since(begun) > raceTime
				if refused || last || starved {
					return
				}
			}
		})
	}
	running.Wait() // all are in the middle of their work
	for wait, since := rand.IntN(64), time.Now(); wait > 0 && time.Since(since) < 200*time.Microsecond; wait-- {
		runtime.Gosched() // to come at any place of theirs
	}
	d.began.Store(true)
	err := d.newerCall.call(d.ctx, d.newer, other, d.newer.String())
	d.count(err)
	var seen []state
	if err == nil {
		d.passed.Store(true)
		// The successor builds on what it sees now.
		if d.apart {
			seen = d.look(t, keys)
		} else {
			seen = []state{{d.newer.String(), d.newerCall.name == "Write"}}
		}
	}
	d.stop.Store(true)
	all.Wait()

	if errors.Is(err, fencelock.ErrStale) {
		d.wrong("%s with token %s must pass: nobody has a newer one; it returned: %v", d.newerCall.name, d.newer, err)
	}
	if err == nil {
		d.end(t, keys, seen)
	}
}

// end looks at what is there when all calls have ended.
func (d *duel) end(t tb, keys []string, seen []state) {
	for i, now := range d.look(t, keys) {
		if i < len(seen) && now.found == seen[i].found && (!now.found || now.value == seen[i].value) {
			continue
		}
		if i < len(seen) {
			d.wrong("%s with token %s was acknowledged when key %q had %s, and nothing older may be applied after it; "+
				"Read found %s, after calls of %s with token %s: check and effect are two steps",
				d.newerCall.name, d.newer, keys[i], seen[i], now, d.olderCalls[0].name, d.older)
		}
	}
	err := d.Write(t.Context(), d.between, key, "between")
	d.count(err)
	if err == nil {
		d.wrong("Write with token %s must be refused: %s with token %s was acknowledged; but calls of %s with token %s, which raced with it, took the mark back; it passed",
			d.between, d.newerCall.name, d.newer, d.olderCalls[0].name, d.older)
	}
}

// state is what is stored at a key.
type state struct {
	value string
	found bool
}

func (s state) String() string { return shown(s.value, s.found) }

// look reads the keys. It ends the race, and returns what it has, where a Read fails.
func (d *duel) look(t tb, keys []string) (all []state) {
	for _, at := range keys {
		value, found, err := d.Read(t.Context(), scope, at)
		if err != nil {
			d.wrong("Read of key %q in scope %q must not fail; it returned: %v", at, scope, err)
			return all
		}
		all = append(all, state{value, found})
	}
	return all
}
