package harness

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// roleVariable tells the binary to run a role instead of its tests, or of what
// else it does.
const roleVariable = "FENCELOCK_TEST_ROLE"

// parallelFlag is the testing package's.
const parallelFlag = "test.parallel"

// farewell is how long a role may take to return once it was told to end.
const farewell = 15 * time.Second

// unread is how many commands can wait for a role to read them. It must not be
// none: the end of the input comes behind them.
const unread = 64

// Roles are what a test binary can be as a child process, by name.
type Roles map[string]func(*Child) error

// Main runs the tests, or, in a child process, the role it was started for;
// TestMain calls it and does nothing else. It does not return. Tests that passed
// have failed all the same if a goroutine of theirs is left.
//
// Of the tests that call [Parallel] four run at once unless -parallel says
// otherwise, and not as many as there are processors: they wait for leases.
func Main(m *testing.M, roles Roles) {
	RunRole(roles)
	flag.Parse()
	atOnce := "4"
	flag.Visit(func(f *flag.Flag) {
		if f.Name == parallelFlag {
			atOnce = f.Value.String()
		}
	})
	if err := flag.Set(parallelFlag, atOnce); err != nil {
		fmt.Fprintln(os.Stderr, "harness:", err)
		os.Exit(2)
	}
	before := goleak.IgnoreCurrent()
	status := m.Run()
	if status == 0 {
		if err := findLeaks(leakPatience, before); err != nil {
			err = fmt.Errorf("harness: goroutines left behind by the tests that ran in parallel: %w", err)
			fmt.Fprintln(os.Stderr, err)
			status = 1
		}
	}
	os.Exit(status)
}

// RunRole runs the role this process was started for, and does not return. In a
// process that is nobody's child it returns at once. It is the first thing that
// the main function of a program calls which is not a test and starts itself
// again; [Main] is it for a test binary.
//
// A role that returns nil ends its process with status 0; an error is written
// to the standard error and is status 1.
func RunRole(roles Roles) {
	name := os.Getenv(roleVariable)
	if name == "" {
		return
	}
	role := roles[name]
	if name == etcdRole {
		role = serveEtcd
	}
	if role == nil {
		fmt.Fprintf(os.Stderr, "harness: this binary has no role %q; give it to harness.Main or harness.RunRole\n", name)
		os.Exit(2)
	}
	if err := role(newChild()); err != nil {
		fmt.Fprintf(os.Stderr, "harness: role %s: %v\n", name, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Child is a child process as its own role sees it.
type Child struct {
	args     []string
	ctx      context.Context
	commands chan string

	mu     sync.Mutex
	events *os.File
}

func newChild() *Child {
	ctx, cancel := context.WithCancel(context.Background())
	c := &Child{args: os.Args[1:], ctx: ctx, commands: make(chan string, unread), events: os.Stdout}
	// The standard output is for events alone: what a library prints must not
	// be taken for one.
	os.Stdout = os.Stderr

	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, syscall.SIGTERM, syscall.SIGINT)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer close(c.commands)
		lines := bufio.NewScanner(os.Stdin)
		for lines.Scan() {
			select {
			case c.commands <- lines.Text():
			case <-ctx.Done():
				return
			}
		}
	}()
	go func() {
		select {
		case <-interrupted:
		case <-ended: // the parent closed our input, or is dead
		}
		cancel()
		time.Sleep(farewell)
		fmt.Fprintf(os.Stderr, "harness: the role did not return within %v of being told to\n", farewell)
		os.Exit(3)
	}()
	return c
}

// Args returns the arguments the child was started with.
func (c *Child) Args() []string { return c.args }

// Context ends when the role is to return: the parent called
// [Process.Shutdown], or died, or somebody sent SIGTERM. A role that does not
// return within 15 s is ended.
func (c *Child) Context() context.Context { return c.ctx }

// Commands returns the lines of [Process.Send], one by one. It is closed when
// the parent sends no more. A role that leaves more than 64 of them unread does
// not notice that its parent called [Process.Shutdown].
func (c *Child) Commands() <-chan string { return c.commands }

// Emit tells the parent that something happened: an [Event] of that name, whose
// text is values separated by spaces, on one line. The name has no spaces. It
// may be called from any goroutine, and has reached the parent's side of the
// pipe when it returns.
func (c *Child) Emit(name string, values ...any) {
	text := strings.ReplaceAll(strings.TrimSuffix(fmt.Sprintln(values...), "\n"), "\n", " ")
	c.mu.Lock()
	defer c.mu.Unlock()
	// A failed write means that the parent is gone, and Context says so.
	_, _ = fmt.Fprintf(c.events, "%d %s %s\n", time.Now().UnixNano(), name, text)
}
