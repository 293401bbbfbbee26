package harness

import (
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// leakPatience is how long goroutines may take to end after their test. goleak
// itself is patient for half a second, in which a busy machine need not get
// round to the goroutines of a closed connection.
const leakPatience = 5 * time.Second

// parallel has the names of the tests that run in parallel with others.
var parallel sync.Map

// Parallel is t.Parallel for a test that spends its time waiting, or one that
// calls [NoLeaks]: what such a test leaves behind cannot be told from what the
// one beside it is using, so [Main] looks for it, after the last test. It is
// called first, by the test itself and not by its subtests.
func Parallel(t *testing.T) {
	t.Helper()
	parallel.Store(t.Name(), true)
	t.Parallel()
}

// NoLeaks fails the test if it leaves a goroutine behind that was not there
// when NoLeaks was called. Call it first: it looks after everything that the
// test registered to be cleaned up later is cleaned up. In a test that called
// [Parallel], and in its subtests, it does nothing.
func NoLeaks(t testing.TB) {
	t.Helper()
	// By every test it is part of: one test can run others as its own.
	for test, more := t.Name(), true; more; test, more = parent(test) {
		if _, beside := parallel.Load(test); beside {
			return
		}
	}
	noLeaks(t, leakPatience)
}

// parent returns the name of the test that the one called name is a subtest of.
func parent(name string) (string, bool) {
	i := strings.LastIndexByte(name, '/')
	return name[:max(i, 0)], i > 0
}

func noLeaks(t testing.TB, within time.Duration) {
	t.Helper()
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() {
		t.Helper()
		if err := findLeaks(within, before); err != nil {
			t.Errorf("harness: goroutines left behind: %v", err)
		}
	})
}

func findLeaks(within time.Duration, opts ...goleak.Option) error {
	limit := time.Now().Add(within)
	for {
		err := goleak.Find(opts...)
		if err == nil || time.Now().After(limit) {
			return err
		}
	}
}
