package harness

import (
	"testing"
	"time"
)

// Receive returns the next value of a channel, or the zero value when it is
// closed, and ends the test if neither comes in time. What says what the test
// waited for.
func Receive[T any](t testing.TB, c <-chan T, within time.Duration, what string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(within):
		t.Fatalf("harness: no %s within %v", what, within)
		panic("unreachable")
	}
}
