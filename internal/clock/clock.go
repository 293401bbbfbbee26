// Package clock measures elapsed time, and counts the time the machine was
// suspended.
//
// Go's monotonic clock is CLOCK_MONOTONIC on Linux and its like elsewhere, and
// it stands still while a machine sleeps or a virtual machine is saved and
// resumed. A lease at an etcd server goes on running meanwhile, so a holder that
// trusts that clock alone believes in a lease that is long gone. Elapsed time is
// therefore the larger of two readings: Go's monotonic clock and a source that
// counts suspended time.
//
// On Linux that source is CLOCK_BOOTTIME. The wall clock would count suspends
// too, but it is stepped by NTP and by people: each step forward would end every
// hold of the process for nothing, and a step back during a suspend would hide
// the suspend. Elsewhere no such clock is at hand without cgo, so the source is
// the wall clock, and a step forward does end a hold early. That is the safe
// direction.
//
// A wall clock set back never extends anything: its elapsed time becomes smaller,
// or negative, and the monotonic reading, being larger, is what counts. A source
// that cannot be read leaves the monotonic clock alone in charge.
//
// # Under testing/synctest
//
// In a bubble time.Now is fake while CLOCK_BOOTTIME stays real. The larger of
// both still follows the fake clock, which runs far ahead of the real one; only
// where the fake clock stood still does the real time that the code took to run
// show, some microseconds of it. A test that needs exact figures replaces the
// source with [SetSource].
package clock

import (
	"sync/atomic"
	"time"
)

// unread is what a source answers when it cannot be read.
const unread time.Duration = -1

// source replaces suspendTime while a test has set it.
var source atomic.Pointer[func() time.Duration]

// Instant is a point in time by both clocks. The zero Instant is infinitely long
// ago for all that matters here: [Since] of it is the largest duration.
type Instant struct {
	t    time.Time     // wall and monotonic
	susp time.Duration // suspend-counting source; negative if it was not read
}

// Now reads both clocks.
func Now() Instant {
	now := time.Now()
	return Instant{t: now, susp: readSource(now)}
}

// Since returns the time elapsed since i, suspended time included. It is
// Now().Sub(i).
func Since(i Instant) time.Duration {
	now := time.Now()
	return longer(now.Sub(i.t), readSource(now), i.susp)
}

// Sub returns i−j by the clock for which that is larger. The rule is for elapsed
// time, a later instant minus an earlier one. It is not symmetric: where the
// clocks disagree, i.Sub(j) is not −j.Sub(i).
func (i Instant) Sub(j Instant) time.Duration {
	return longer(i.t.Sub(j.t), i.susp, j.susp)
}

// Time returns the wall clock's reading at i, with the monotonic one still in it.
func (i Instant) Time() time.Time { return i.t }

// SetSource replaces the suspend-counting source, for tests; restore brings back
// the one before. A negative duration from f means that the source could not be
// read. Instants taken before and after the call have no common origin: set the
// source before the first one.
//
// It may be called while others read the clock.
func SetSource(f func() time.Duration) (restore func()) {
	before := source.Swap(&f)
	return func() { source.Store(before) }
}

func readSource(now time.Time) time.Duration {
	if f := source.Load(); f != nil {
		return (*f)()
	}
	return suspendTime(now)
}

func longer(mono, to, from time.Duration) time.Duration {
	if to < 0 || from < 0 {
		return mono
	}
	return max(mono, to-from)
}
