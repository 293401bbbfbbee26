// Package leaktest fails a package's tests for goroutines that they leave behind.
// goleak does it better; it is not among the root module's requirements, each of which
// is in the go.sum of every user.
package leaktest

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"
)

// Main is a TestMain that runs the tests, then what has to be done before goroutines
// end, and exits with a code other than 0 if any test failed, or there are more
// goroutines than before.
func Main(m *testing.M, then ...func()) {
	before := runtime.NumGoroutine()
	code := m.Run()
	if fuzz := flag.Lookup("test.fuzz"); fuzz != nil && fuzz.Value.String() != "" {
		os.Exit(code) // go test itself leaves one behind then
	}
	for _, end := range then {
		end()
	}
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
