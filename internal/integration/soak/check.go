package main

import (
	"fmt"
	"slices"
)

// check is one thing that has to be true of a history.
type check struct {
	name string
	// binds are the strategies of which it is demanded. Of the others it is
	// known to be false at times, and the table shows how often.
	binds []strategy
	// violations says, one by one, where it is not true.
	violations func(h *history) []string
}

var checks = []check{
	{"acknowledged updates are there in the end", []strategy{fenced}, lostUpdates},
	{"the resource applied nothing stale", []strategy{fenced}, staleEffects},
	{"nothing is there that nobody wrote", strategies, inventedUpdates},
	{"the registers are linearizable, and their fences", strategies, nonLinearizable},
	{"tokens rise", []strategy{fenced, advisory}, fallingTokens},
	{"a holder is told before its key is gone", []strategy{fenced, advisory}, toldTooLate},
	{"no two believe to hold the lock at once", []strategy{fenced, advisory}, twoHolders},
	{"the lock never stands still", []strategy{fenced, advisory}, standstills},
	{"nothing fails that no fault explains", []strategy{fenced, advisory}, func(h *history) []string { return h.trouble }},
	{"nothing is left behind", []strategy{fenced, advisory}, leftovers},
}

// judgement is what became of one check.
type judgement struct {
	check
	found []string
	binds bool // for the strategy of the run
}

// judge makes every check.
func judge(h *history, s strategy) []judgement {
	var all []judgement
	for _, c := range checks {
		all = append(all, judgement{c, c.violations(h), slices.Contains(c.binds, s)})
	}
	return all
}

// leftovers says what is left of a run whose every worker has closed.
func leftovers(h *history) []string {
	if h.left == (left{}) {
		return nil
	}
	return []string{fmt.Sprintf("%d goroutines, %d keys and %d leases are left",
		h.left.Goroutines, h.left.Keys, h.left.Leases)}
}
