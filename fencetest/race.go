package fencetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencelock/fencelock"
)

// How long each race lasts. A fence in memory does hundreds of thousands of calls in
// that time, a database some thousands; the least number is for those that are slow.
const (
	leastDuels = 20
	leastStorm = 200 // writes of each goroutine
)

var raceTime = time.Second // a variable for the kit's own tests

// race is what racing goroutines found out together. A *testing.T takes a failure
// from any goroutine, but the first is the one to read, and it ends the race.
type race struct {
	passed, refused, failed atomic.Int64
	over                    atomic.Bool

	mu    sync.Mutex
	fault string // the first
	other error  // the last that was no refusal
}

// count counts a call's result. One that failed for another reason than a refusal may
// have been applied or not, so nothing is concluded from it.
func (c *race) count(err error) {
	switch {
	case err == nil:
		c.passed.Add(1)
	case errors.Is(err, fencelock.ErrStale):
		c.refused.Add(1)
	default:
		c.failed.Add(1)
		c.mu.Lock()
		c.other = err
		c.mu.Unlock()
	}
}

func (c *race) wrong(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fault == "" {
		c.fault = fmt.Sprintf(format, args...)
	}
	c.over.Store(true)
}

// report says what was found, when nothing runs any more.
func (c *race) report(t tb, what string) {
	t.Helper()
	passed, refused, failed := c.passed.Load(), c.refused.Load(), c.failed.Load()
	t.Logf("%s: %d calls passed, %d were refused, %d failed", what, passed, refused, failed)
	if c.fault != "" {
		t.Errorf("%s: %s", what, c.fault)
	}
	if failed > passed+refused {
		t.Errorf("%s: more than half of the calls that raced failed, so nothing is proved; "+
			"repeat in the Resource's functions what the store asks to repeat; the last error is: %v", what, c.other)
	}
}

// yielding gives the processor away wherever a call asks its context: cheap, and
// enough to turn the order of two calls round.
func yielding(ctx context.Context) context.Context {
	return &stopContext{Context: ctx, stop: runtime.Gosched}
}

// duels has one holder write from several goroutines without a pause, until it is
// refused, and its successor make one call in the middle of that. So there is nearly
// always a write that passed the check before the successor did and is not yet
// applied. When all have ended, nothing of the old holder may be on top.
func (r Resource) duels(t tb, rev int64) int64 {
	t.Helper()
	var c race
	begun := time.Now()
	for n := 0; !c.over.Load() && (n < leastDuels || time.Since(begun) < raceTime); n++ {
		rev += 2
		r.duel(t, &c, n, mint(scope, rev, "older"), mint(scope, rev+1, "newer"))
	}
	c.report(t, "one holder follows another")
	return rev + 2
}

// duel is one change of holders. n chooses what they do.
func (r Resource) duel(t tb, c *race, n int, older, newer fencelock.Token) {
	ctx := t.Context()
	if n%2 == 1 {
		ctx = yielding(ctx)
	}
	// Most of the calls write. One that deletes can undo the successor's as well.
	olderCall, olderName := func() error { return r.Write(ctx, older, key, older.String()) }, "Write"
	newerCall, newerName := func() error { return r.Write(ctx, newer, key, newer.String()) }, "Write"
	switch {
	case n%8 == 4 && r.Delete != nil:
		olderCall, olderName = func() error { return r.Delete(ctx, older, key) }, "Delete"
	case n%8 == 5 && r.Delete != nil:
		newerCall, newerName = func() error { return r.Delete(ctx, newer, key) }, "Delete"
	case n%8 == 6 && r.Advance != nil:
		newerCall, newerName = func() error { return r.Advance(ctx, newer) }, "Advance"
	}

	var began, passed, stop atomic.Bool // the successor's call; stop also if it failed
	var running, all sync.WaitGroup
	const olders = 4
	begun := time.Now()
	running.Add(olders)
	for range olders {
		all.Go(func() {
			for calls := 0; ; calls++ {
				late, last := passed.Load(), stop.Load()
				err := olderCall()
				early := !began.Load()
				c.count(err)
				refused := errors.Is(err, fencelock.ErrStale)
				switch {
				case err == nil && late:
					c.wrong("%s with token %s must be refused: it began after token %s was acknowledged; it passed", olderName, older, newer)
				case refused && early:
					c.wrong("%s with token %s must pass: nobody has presented a newer one; it returned: %v", olderName, older, err)
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
	began.Store(true)
	err := newerCall()
	c.count(err)
	want, found := newer.String(), newerName == "Write"
	var readErr error
	if err == nil {
		passed.Store(true)
		if newerName == "Advance" {
			// The successor builds on what it sees now.
			want, found, readErr = r.Read(t.Context(), scope, key)
		}
	}
	stop.Store(true)
	all.Wait()

	if errors.Is(err, fencelock.ErrStale) {
		c.wrong("%s with token %s must pass: nobody has a newer one; it returned: %v", newerName, newer, err)
	}
	if err != nil {
		return
	}
	value, still, err := r.Read(t.Context(), scope, key)
	if err = errors.Join(readErr, err); err != nil {
		c.wrong("Read of key %q in scope %q must not fail; it returned: %v", key, scope, err)
		return
	}
	if still != found || found && value != want {
		if !found {
			want = "no value"
		}
		c.wrong("%s with token %s was acknowledged and left %s, and nothing older may be applied after it; Read found %s: check and effect are two steps",
			newerName, newer, want, shown(value, still))
	}
}

// storm has many goroutines write with tokens that rise and overtake each other. What
// one has seen stays true for all: once a token was acknowledged, or its value read,
// no write with a smaller one passes that begins then, and no read that begins then
// finds a smaller one's value.
func (r Resource) storm(t tb, rev int64) {
	t.Helper()
	var c race
	var next, floor atomic.Int64 // the newest token made; the newest known to be applied
	next.Store(rev)
	raise := func(seen int64) {
		for {
			known := floor.Load()
			if seen <= known || floor.CompareAndSwap(known, seen) {
				return
			}
		}
	}
	look := func() {
		low := floor.Load()
		value, found, err := r.Read(t.Context(), scope, key)
		if err != nil {
			c.wrong("Read of key %q in scope %q must not fail; it returned: %v", key, scope, err)
			return
		}
		number, _, _ := strings.Cut(value, ".")
		seen, _ := strconv.ParseInt(number, 10, 64)
		if seen < low {
			c.wrong("Read found %s after the value of token %d was acknowledged or read; a newer value must not be written over by an older: check and effect are two steps",
				shown(value, found), low)
			return
		}
		raise(seen)
	}

	base := mint(scope, rev, "base")
	r.write(t, base, key, base.String(), "it is newer than the mark")
	raise(rev)
	begun := time.Now()
	var all sync.WaitGroup
	const writers = 6
	for w := range writers {
		ctx := t.Context()
		if w%2 == 1 {
			ctx = yielding(ctx)
		}
		all.Go(func() {
			for n := 0; !c.over.Load() && (n < leastStorm || time.Since(begun) < raceTime); n++ {
				number := next.Add(1)
				token := mint(scope, number, "h"+strconv.Itoa(w))
				low := floor.Load()
				err := r.Write(ctx, token, key, token.String())
				newest := next.Load() == number
				c.count(err)
				switch {
				case err == nil && number < low:
					c.wrong("Write with token %s must be refused: it began after token %d was acknowledged or its value read; it passed", token, low)
				case errors.Is(err, fencelock.ErrStale) && newest:
					c.wrong("Write with token %s must pass: nobody has a newer one; it returned: %v", token, err)
				case err == nil:
					raise(number)
				}
				// Overtaken, and applied all the same: before it or after, that is the
				// question. Else now and then, for a look leaves less time for writes.
				if err == nil && floor.Load() > number || n%8 == 0 {
					look()
				}
			}
		})
	}
	all.Wait()
	look()
	c.report(t, "many holders at once")
}
