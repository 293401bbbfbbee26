// Package timeline writes what happens, a line at a time, for people to read.
package timeline

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/fencelock/fencelock"
)

// Timeline writes lines of when, who, with what token, and what. Its methods
// can be called from any goroutine.
type Timeline struct {
	mu    sync.Mutex
	out   io.Writer
	start time.Time
}

// New returns a timeline that starts now, and writes its heading to out.
func New(out io.Writer) *Timeline {
	fmt.Fprintf(out, "%8s  %-4s  %5s  %s\n", "time", "who", "token", "what")
	return &Timeline{out: out, start: time.Now()}
}

// Say writes a line about what happens now.
func (t *Timeline) Say(who string, token fencelock.Token, format string, args ...any) {
	text := ""
	if !token.IsZero() {
		// String, and not Revision, which counts as a use of the token:
		// Do warns about a callback that shows its token and never uses it.
		text = token.String()
	}
	t.Tell(time.Now(), who, text, fmt.Sprintf(format, args...))
}

// Tell writes a line about what happened at that time, perhaps elsewhere. The
// token is the text of one, or empty; its number is shown.
func (t *Timeline) Tell(at time.Time, who, token, what string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	fmt.Fprintf(t.out, "%7.3fs  %-4s  %5s  %s\n", t.Since(at).Seconds(), who, Number(token), what)
}

// Number returns the number in a token's text, "-" if that is empty.
func Number(token string) string {
	number, _, _ := strings.Cut(token, ".")
	if number == "" {
		return "-"
	}
	return number
}

// Since returns how long after the timeline's start that was.
func (t *Timeline) Since(at time.Time) time.Duration { return at.Sub(t.start) }
