package harness

import (
	"testing"
	"time"

	"go.uber.org/goleak"
)

// NoLeaks fails the test if it leaves a goroutine behind that was not there
// when NoLeaks was called. Call it first: it looks after everything that the
// test registered to be cleaned up later is cleaned up. It is not for tests
// that run in parallel with others.
func NoLeaks(t testing.TB) {
	t.Helper()
	// goleak itself is patient for half a second, in which a busy machine need
	// not get round to the goroutines of a closed connection.
	noLeaks(t, 5*time.Second)
}

func noLeaks(t testing.TB, within time.Duration) {
	t.Helper()
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() {
		t.Helper()
		limit := time.Now().Add(within)
		err := goleak.Find(before)
		for err != nil && time.Now().Before(limit) {
			err = goleak.Find(before)
		}
		if err != nil {
			t.Errorf("harness: goroutines left behind: %v", err)
		}
	})
}
