package sqlfence

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

const (
	// maxRuns bounds how often one call of Tx runs its callback.
	maxRuns = 8

	minPause = time.Millisecond
	maxPause = 32 * time.Millisecond
)

// repeat calls try until it succeeds or fails for a reason that trying again
// does not cure. try reports whether the callback ran in it.
//
// What fails before the callback ran is repeated until ctx ends: it is the wait
// for the mark, which PostgreSQL ends with a serialization failure where another
// committed meanwhile, and SQLite with SQLITE_BUSY at once unless busy_timeout is
// set. A fence that refused honest writers at random there would be taken out.
// The callback's own failures can be of its making, so they have a bound.
func (f *Fence) repeat(ctx context.Context, try func() (ran bool, err error)) error {
	runs := 0
	for pause := minPause; ; pause = min(2*pause, maxPause) {
		ran, err := try()
		if err == nil || !f.dialect.transient(err) || errors.Is(err, ErrTransactionEnded) {
			return err
		}
		if ran {
			runs++
		}
		if runs == maxRuns {
			return fmt.Errorf("sqlfence: nothing was applied in %d runs of the callback: %w", runs, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("sqlfence: nothing was applied: %w, after %w", ended(ctx), err)
		case <-time.After(pause/2 + rand.N(pause/2)):
		}
	}
}
