package main

import (
	"context"
	"fmt"
	"time"
)

// stallAfter is how long a contested lock may be nobody's, or be kept beyond the
// critical section, before the contest fails: thousands of hand-overs.
const stallAfter = 10 * time.Second

// watchStall calls fail when no grant has come for within, and returns then or with
// the end of ctx. The caller adds the critical section to within: while a holder
// works nobody can be granted.
func watchStall(ctx context.Context, grants <-chan struct{}, within time.Duration, fail func(error)) {
	timer := time.NewTimer(within)
	defer timer.Stop()
	for {
		select {
		case <-grants:
			timer.Reset(within)
		case <-timer.C:
			fail(fmt.Errorf("bench: nobody was granted the lock for %v", within))
			return
		case <-ctx.Done():
			return
		}
	}
}
