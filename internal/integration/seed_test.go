package integration

import (
	"flag"
	"math/rand/v2"
	"testing"
)

var seedFlag = flag.Uint64("seed", 0, "seed of tests that choose at random; 0 for a new one each time")

// newRandom returns a source of random numbers whose seed is logged, and can be
// given again with -seed. It is for one goroutine.
func newRandom(t testing.TB) *rand.Rand {
	t.Helper()
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-seed=%d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}
