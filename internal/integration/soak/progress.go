package main

import (
	"fmt"
	"slices"
	"time"
)

// standstill is from where on a gap between two acknowledged updates is a
// violation. The nemeses hit most holders, and some gaps are made of five or six
// faults in a row: up to 8 s were seen, on a machine that was busy with something
// else.
const standstill = 30 * ttl

// gap is a time without an acknowledged update.
type gap struct{ from, to time.Duration }

func (g gap) length() time.Duration { return g.to - g.from }

// longestGap returns the longest time without an acknowledged update while the
// workers worked.
func (h *history) longestGap() gap {
	at := []time.Duration{h.from, h.to}
	for _, r := range h.requests {
		if r.acknowledged() && r.answered < h.to {
			at = append(at, r.answered)
		}
	}
	slices.Sort(at)
	var longest gap
	for i := range at[1:] {
		if g := (gap{at[i], at[i+1]}); g.length() > longest.length() {
			longest = g
		}
	}
	return longest
}

func standstills(h *history) []string {
	if g := h.longestGap(); g.length() > standstill {
		return []string{fmt.Sprintf("no update was acknowledged for %v, from %v to %v", g.length(), g.from, g.to)}
	}
	return nil
}
