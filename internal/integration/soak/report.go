package main

import (
	"fmt"
	"io"
)

// shown is how many violations of one check are printed; the history has all.
const shown = 10

// report judges a history, prints what became of it, and reports whether the
// run passed.
func report(out io.Writer, records []record) (passed bool, err error) {
	if len(records) == 0 || records[0].Kind != runBegan || records[0].Run == nil {
		return false, fmt.Errorf("soak: this is no history of a soak: its first record does not say which run it is")
	}
	a := records[0].Run
	peers, err := gather(records, control)
	if err != nil {
		return false, err
	}
	h, err := gather(records, trial)
	if err != nil {
		return false, err
	}
	fmt.Fprintln(out)
	passed = reportControl(out, peers)
	if h.to == 0 {
		fmt.Fprintln(out, "VIOLATION: the trial did not run to its end")
		return false, nil
	}
	judgements := judge(h, a.Strategy)
	fmt.Fprintln(out)
	printTable(out, a, h)
	fmt.Fprintln(out)
	for _, j := range judgements {
		if len(j.found) == 0 {
			continue
		}
		if !j.binds {
			fmt.Fprintf(out, "not true of %s, which does not promise it: %s (%d times)\n", a.Strategy, j.name, len(j.found))
			continue
		}
		passed = false
		fmt.Fprintf(out, "VIOLATION: not true: %s (%d times)\n", j.name, len(j.found))
		for _, v := range j.found[:min(shown, len(j.found))] {
			fmt.Fprintln(out, "  ", v)
		}
	}
	if passed {
		fmt.Fprintln(out, "passed")
	}
	return passed, nil
}

// reportControl reports whether the nemesis did what it is there for.
func reportControl(out io.Writer, h *history) bool {
	lost, stale := len(lostUpdates(h)), len(staleEffects(h))
	acknowledged := 0
	for _, r := range h.requests {
		if r.acknowledged() {
			acknowledged++
		}
	}
	fmt.Fprintf(out, "control: the unfenced peer lost %d of %d acknowledged updates, with %d stale effects, after %d stops in %v\n",
		lost, acknowledged, stale, h.faults, round(h.to-h.from))
	if lost == 0 {
		fmt.Fprintln(out, "VIOLATION: the control lost nothing, so the nemesis is broken and the run proves nothing")
	}
	return lost > 0
}
