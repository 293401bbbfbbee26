package main

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/fencelock/fencelock"
)

// newTimeline writes the heading to out, and returns what writes a line below it.
func newTimeline(out io.Writer) func(who string, token fencelock.Token, format string, args ...any) {
	var mu sync.Mutex
	start := time.Now()
	fmt.Fprintf(out, "%8s  %-3s  %5s  %s\n", "time", "who", "token", "what")
	return func(who string, token fencelock.Token, format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		number := "-"
		if !token.IsZero() {
			// String, and not Revision, which counts as a use of the token:
			// Do warns about a callback that shows its token and never uses it.
			number, _, _ = strings.Cut(token.String(), ".")
		}
		fmt.Fprintf(out, "%7.3fs  %-3s  %5s  %s\n", time.Since(start).Seconds(), who, number, fmt.Sprintf(format, args...))
	}
}
