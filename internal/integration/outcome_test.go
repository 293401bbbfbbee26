package integration

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// outcome is what a call returned, and when.
type outcome struct {
	err error
	at  time.Time
}

// later makes a call in the background.
func later(call func() error) <-chan outcome {
	returned := make(chan outcome, 1)
	go func() {
		err := call()
		returned <- outcome{err, time.Now()}
	}()
	return returned
}

// assertInTime checks that a call kept its bound, which is never more than 200 ms
// late.
func assertInTime(t testing.TB, bound time.Time, got outcome, call string) {
	t.Helper()
	t.Logf("%s: %v after its bound: %v", call, got.at.Sub(bound), got.err)
	assert.LessOrEqual(t, got.at.Sub(bound), 200*time.Millisecond+allowance(bound, got.at), "%s was late: %v", call, got.err)
}
