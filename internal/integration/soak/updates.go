package main

import (
	"fmt"
	"slices"

	"github.com/fencelock/fencelock/internal/integration/resource"
)

// lostUpdates says which acknowledged updates are not in the final values.
func lostUpdates(h *history) (found []string) {
	final := map[string][]string{}
	for _, s := range h.registers {
		final[s.name] = elements(s.value)
	}
	for _, r := range h.requests {
		if r.acknowledged() && !slices.Contains(final[r.Register], r.Element) {
			found = append(found, fmt.Sprintf("%s, written to %s with token %s and acknowledged at %v, is not there",
				r.Element, r.Register, r.token, r.answered))
		}
	}
	return found
}

// inventedUpdates says what is in the final values and nobody wrote there, or is
// there twice.
func inventedUpdates(h *history) (found []string) {
	sent := map[[2]string]bool{}
	for _, r := range h.requests {
		if r.writes() {
			sent[[2]string{r.Register, r.Element}] = true
		}
	}
	for _, s := range h.registers {
		seen := map[string]bool{}
		for _, element := range elements(s.value) {
			switch {
			case !sent[[2]string{s.name, element}]:
				found = append(found, fmt.Sprintf("%s is in %s, and nobody wrote it there", element, s.name))
			case seen[element]:
				found = append(found, fmt.Sprintf("%s is in %s twice", element, s.name))
			}
			seen[element] = true
		}
	}
	return found
}

// staleEffects says what the resource applied of who had been superseded there.
func staleEffects(h *history) (found []string) {
	for _, s := range h.registers {
		for _, e := range resource.Stale(s.decisions) {
			found = append(found, fmt.Sprintf("%s: %s of token %d.%s was applied after a newer token was seen",
				s.name, e.Op, e.Revision, e.Holder))
		}
	}
	return found
}
