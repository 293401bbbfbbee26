package fencetest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencelock/fencelock"
)

// How long each race lasts. A fence in memory does hundreds of thousands of calls in
// that time, a database some thousands; the least number is for those that are slow. It
// has an end as well: what is slow is so between check and effect too, and is found with
// few calls.
const (
	leastDuels = 32
	leastStorm = 200 // writes of each goroutine
	mostTimes  = 5   // of raceTime
)

var raceTime = time.Second // a variable for the kit's own tests

// goesOn reports whether a race that began then and has done n of at least so many
// rounds is not over.
func goesOn(begun time.Time, n, least int) bool {
	took := time.Since(begun)
	return took < raceTime || n < least && took < mostTimes*raceTime
}

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
			for n := 0; !c.over.Load() && goesOn(begun, n, leastStorm); n++ {
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
