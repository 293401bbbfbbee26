package main

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// plan is what one section is to be, chosen at random before it begins.
type plan struct {
	element string        // what it adds to the set
	think   time.Duration // between its read and its write
	heeds   bool          // it gives up when its context ends
	maxWait time.Duration // bounds the queueing; below 0: not at all
	within  time.Duration // bounds everything, as a caller's context would
}

// shortThought is how long half of the sections think at most. The others last
// about as long as a lease, and find the holes: there is time in them for the
// lock to be lost, granted to the next, and for both to have read.
const shortThought = 20 * time.Millisecond

func newPlan(random *rand.Rand, s strategy, element string, ttl time.Duration) plan {
	p := plan{element: element, maxWait: -1, within: 30 * ttl}
	p.think = time.Duration(random.Int64N(int64(shortThought)))
	if random.IntN(2) == 0 {
		p.think = between(random, ttl*6/10, ttl*12/10)
	}
	switch s {
	case fenced:
		p.heeds = random.IntN(2) == 0
	case advisory:
		p.heeds = true
	}
	// Impatience leaves acquires half done, which have to be cleaned up.
	switch random.IntN(8) {
	case 0:
		p.maxWait = max(0, between(random, -ttl/4, ttl))
	case 1:
		p.within = between(random, 0, ttl/2)
	}
	return p
}

// between returns a duration in [low, high).
func between(random *rand.Rand, low, high time.Duration) time.Duration {
	return low + time.Duration(random.Int64N(int64(high-low)))
}

// newRandom returns a source of random numbers of its own for each who needs
// one, so that none changes what another chooses.
func newRandom(seed uint64, who string) *rand.Rand {
	var stream uint64
	for _, c := range []byte(who) {
		stream = stream*257 + uint64(c)
	}
	return rand.New(rand.NewPCG(seed, stream))
}

func elementName(worker string, n int) string { return fmt.Sprintf("%s.%d", worker, n) }
