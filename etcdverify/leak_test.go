package etcdverify

import (
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"
)

// TestMain fails if a goroutine is left behind by the tests.
func TestMain(m *testing.M) {
	before := runtime.NumGoroutine()
	code := m.Run()
	deadline := time.Now().Add(5 * time.Second)
	for runtime.NumGoroutine() > before && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond) // they end by themselves or they do not
	}
	if left := runtime.NumGoroutine(); left > before && code == 0 {
		stacks := make([]byte, 1<<20)
		fmt.Fprintf(os.Stderr, "%d goroutines were left behind:\n%s", left-before, stacks[:runtime.Stack(stacks, true)])
		code = 1
	}
	os.Exit(code)
}
