package integration

import (
	"sync"
	"testing"
)

// atOnce runs a subtest for each case, all of them at once, and returns when
// they have ended. Parallel would run only as many as there are processors, and
// these tests spend their time waiting for leases to expire.
func atOnce[C any](t *testing.T, cases map[string]C, run func(*testing.T, C)) {
	var running sync.WaitGroup
	for name, c := range cases {
		running.Go(func() { t.Run(name, func(t *testing.T) { run(t, c) }) })
	}
	running.Wait()
}
