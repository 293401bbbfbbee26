package main

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/anishathalye/porcupine"
)

// printTable prints the figures of a trial.
func printTable(out io.Writer, a *about, h *history) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	row := func(name string, value ...any) { fmt.Fprintf(w, "%s\t%s\n", name, fmt.Sprint(value...)) }
	count := map[outcome]int{}
	for _, r := range h.requests {
		switch {
		case r.acknowledged(), r.outcome == refused, r.outcome == unknown:
			count[r.outcome]++
		}
	}
	row("strategy, seed", a.Strategy, ", ", a.Seed)
	row("duration, faults", round(h.to-h.from), ", ", h.faults)
	row("operations acknowledged", count[done])
	row("operations refused", count[refused])
	row("operations unknown", count[unknown])
	row("acquires granted, lost, not granted", len(h.holds), ", ", losses(h), ", ", h.unlocked)
	row("holds taken by the nemesis, by a stale leader", robberies(h, byNemesis), ", ", robberies(h, byLeader))
	row("stale effects applied", len(staleEffects(h)))
	row("updates lost", len(lostUpdates(h)))
	row("longest gap", round(h.longestGap().length()))
	row("cancel before grant: min, median", spread(h.leads(), slices.Min[[]time.Duration]))
	row("cancel after it was taken: max, median", spread(h.lags(), slices.Max[[]time.Duration]))
	row("registers linearizable, not, undecided", linearity(h))
	row("left: goroutines, keys, leases", h.left.Goroutines, ", ", h.left.Keys, ", ", h.left.Leases)
	_ = w.Flush()
}

func losses(h *history) int {
	n := 0
	for _, k := range h.holds {
		if k.told != never {
			n++
		}
	}
	return n
}

func robberies(h *history, robber string) int {
	n := 0
	for _, k := range h.holds {
		if k.robber == robber {
			n++
		}
	}
	return n
}

// spread says an extreme of some durations, their median and how many they are.
func spread(d []time.Duration, extreme func([]time.Duration) time.Duration) string {
	if len(d) == 0 {
		return "none"
	}
	slices.Sort(d)
	return fmt.Sprintf("%v, %v (of %d)", round(extreme(d)), round(d[len(d)/2]), len(d))
}

func linearity(h *history) string {
	count := map[porcupine.CheckResult]int{}
	for _, v := range h.verdicts() {
		count[v.result]++
	}
	return fmt.Sprintf("%d, %d, %d", count[porcupine.Ok], count[porcupine.Illegal], count[porcupine.Unknown])
}

func round(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
