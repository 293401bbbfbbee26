package main

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// fallingTokens says which holds got a token that does not rise above one whose
// hold was over when theirs began.
//
// A hold of which somebody took the key can be handed out late with a smaller
// token than one granted since: it is lost before it begins, and the fence
// refuses it. So such a hold counts as begun when its acquire was called, which
// is before its key was in the queue.
func fallingTokens(h *history) (found []string) {
	over := slices.Clone(h.holds)
	slices.SortFunc(over, func(a, b *tenure) int { return cmp.Compare(a.over(), b.over()) })
	starting := slices.Clone(h.holds)
	slices.SortFunc(starting, func(a, b *tenure) int { return cmp.Compare(a.begun(), b.begun()) })

	var highest *tenure
	for _, k := range starting {
		for len(over) > 0 && over[0].over() < k.begun() {
			if highest == nil || over[0].token.revision > highest.token.revision {
				highest = over[0]
			}
			over = over[1:]
		}
		if highest != nil && k.token.revision <= highest.token.revision {
			found = append(found, fmt.Sprintf("%s was granted %s at %v, after the hold of %s was over at %v",
				k.worker, k.token, k.granted, highest.token, highest.over()))
		}
	}
	return found
}

func (k *tenure) begun() time.Duration {
	if k.robber != "" {
		return k.invoked
	}
	return k.granted
}

// over is when the holder was told or had given the lock back.
func (k *tenure) over() time.Duration { return min(k.told, k.ended) }
