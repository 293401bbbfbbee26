package main

import (
	"fmt"
	"time"
)

// toldTooLate says which holders believed in their lock after a watch had seen
// its key disappear. Where somebody else took the key that cannot be otherwise.
//
// Two things are demanded. A look that began after the deletion must not find
// the lock held, whatever the process went through. And who does not look must
// have been told before the deletion, unless its process did not run for a part
// of the margin before, when there was nobody to tell.
func toldTooLate(h *history) (found []string) {
	for _, k := range h.holds {
		gone, ok := h.deletions[k.token.revision]
		if !ok || k.robber != "" {
			continue
		}
		if k.alive > gone {
			found = append(found, fmt.Sprintf("%s looked at %v and found %s held, whose key was seen to be gone at %v",
				k.worker, k.alive, k.token, gone))
		}
		if k.told != never && k.told > gone && !h.stalledIn(k.worker, gone-margin, gone) {
			found = append(found, fmt.Sprintf("%s was told at %v of the loss of %s (%s), whose key was seen to be gone at %v",
				k.worker, k.told, k.token, k.reason, gone))
		}
	}
	return found
}

// twoHolders says who believed in its lock when another had been granted it. It
// is as toldTooLate, with the next grant as the witness of the deletion.
func twoHolders(h *history) (found []string) {
	for _, k := range h.holds {
		next := h.successor(k)
		if next == nil || k.robber != "" {
			continue
		}
		if k.alive > next.granted {
			found = append(found, fmt.Sprintf("%s looked at %v and found %s held, but %s had been granted %s at %v",
				k.worker, k.alive, k.token, next.worker, next.token, next.granted))
		}
		if k.told != never && k.told > next.granted && !h.stalledIn(k.worker, next.granted-margin, next.granted) {
			found = append(found, fmt.Sprintf("%s was told at %v of the loss of %s (%s), but %s had been granted %s at %v",
				k.worker, k.told, k.token, k.reason, next.worker, next.token, next.granted))
		}
	}
	return found
}

// leads are how long before the next grant the holders were told whose lease
// expired, for those whose process ran.
func (h *history) leads() (leads []time.Duration) {
	for _, k := range h.holds {
		next := h.successor(k)
		if k.told == never || k.robber != "" || next == nil || h.stalledIn(k.worker, k.told-margin, k.told) {
			continue
		}
		leads = append(leads, next.granted-k.told)
	}
	return leads
}

// lags are how long it took until holders were told whose key somebody took.
func (h *history) lags() (lags []time.Duration) {
	for _, k := range h.holds {
		gone, ok := h.deletions[k.token.revision]
		if k.robber != "" && k.told != never && ok && !h.stalledIn(k.worker, gone, k.told) {
			lags = append(lags, k.told-gone)
		}
	}
	return lags
}
