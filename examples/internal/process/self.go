//go:build unix

package process

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/fencelock/fencelock"
)

// variable tells a program that it is a child: its role, a space, its name.
const variable = "FENCELOCK_EXAMPLE_CHILD"

// Roles are what a program can be as a child process, by name. The context of
// a role ends when the parent asks it to end, or is gone.
type Roles map[string]func(ctx context.Context, self *Self) error

// Main plays the role this process was started for, and does not return. In a
// process that is nobody's child it returns at once. It is the first thing a
// main function calls.
func Main(roles Roles) {
	role, name, child := strings.Cut(os.Getenv(variable), " ")
	if !child {
		return
	}
	self := &Self{Name: name, Args: os.Args[1:], proceed: make(chan struct{}, 1), out: json.NewEncoder(os.Stdout)}
	// What a library prints must not be taken for a report.
	os.Stdout = os.Stderr

	play, ok := roles[role]
	if !ok {
		fmt.Fprintf(os.Stderr, "process: this program has no role %q; give it to process.Main\n", role)
		os.Exit(2)
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer cancel()
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			self.proceed <- struct{}{}
		}
	}()
	if err := play(ctx, self); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Self is a child process as it sees itself.
type Self struct {
	Name string
	Args []string // what it was started with

	proceed chan struct{}
	mu      sync.Mutex
	out     *json.Encoder
}

// Report sends a report to the parent. It is on its way, and survives this
// process, when Report returns. It can be called from any goroutine.
func (s *Self) Report(r Report) {
	r.Who = s.Name
	if r.At.IsZero() {
		r.At = time.Now()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.out.Encode(r) // fails if the parent is gone, which the context says
}

// Say reports something for people to read.
func (s *Self) Say(event string, token fencelock.Token, format string, args ...any) {
	r := Report{Event: event, Text: fmt.Sprintf(format, args...)}
	if !token.IsZero() {
		r.Token = token.String() // does not count as use, as the other forms do
	}
	s.Report(r)
}

// Pause waits for the parent's [Process.Proceed].
func (s *Self) Pause(ctx context.Context) error {
	select {
	case <-s.proceed:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
