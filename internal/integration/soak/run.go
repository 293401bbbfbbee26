package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fencelock/fencelock/internal/integration/harness"
	"github.com/fencelock/fencelock/internal/integration/resource"
)

// roles are what this binary is as a child process, beside an etcd server.
var roles = harness.Roles{workerRoleName: workerRole, resource.RoleName: resource.Role}

// trialWorkers is how many workers a trial has.
const trialWorkers = 5

// progressEvery is how often a line is printed while a trial runs.
const progressEvery = 10 * time.Second

// setup is what a run is asked to be.
type setup struct {
	duration time.Duration
	seed     uint64
	strategy strategy
	faults   []string
	history  string // the file it is written to
}

// run does a run, as a program, and returns its history. It ends early with ctx.
func (s setup) run(ctx context.Context, out io.Writer) (records []record, err error) {
	for s.seed == 0 {
		s.seed = rand.Uint64()
	}
	fmt.Fprintf(out, "seed %d\n", s.seed)
	if s.history == "" {
		file, err := os.CreateTemp("", "fencelock-soak-*.jsonl")
		if err != nil {
			return nil, fmt.Errorf("soak: making a file for the history: %w", err)
		}
		if err := file.Close(); err != nil {
			return nil, err
		}
		s.history = file.Name()
	}
	fmt.Fprintf(out, "history %s\n", s.history)
	if !harness.Program("fencelock-soak", func(t testing.TB) { records = s.runIn(ctx, t, out) }) {
		return nil, errors.New("soak: it could not be run to its end, for the reason above")
	}
	return records, nil
}

// runIn runs the control and the trial, writes the history, and returns it. It
// ends early with ctx.
func (s setup) runIn(ctx context.Context, t testing.TB, out io.Writer) []record {
	t.Helper()
	l, err := newLedger(s.history)
	require.NoError(t, err)
	defer func() { _, _ = l.close() }() // for what a run that failed leaves
	l.add(record{Kind: runBegan, Run: &about{
		Seed: s.seed, Strategy: s.strategy, Faults: s.faults, Duration: s.duration, TTL: ttl, Margin: margin,
	}})
	g := newGround(t, s.seed, l)
	fmt.Fprintf(out, "%6s  control: %d workers of the unfenced peer, stopped until they have lost something\n",
		l.seconds(), controlWorkers)
	runControl(ctx, t, g)
	if ctx.Err() == nil {
		fmt.Fprintf(out, "%6s  trial: %d workers, %s, for %v\n", l.seconds(), trialWorkers, s.strategy, s.duration)
		runTrial(ctx, t, g, s, out)
	}
	records, err := l.close()
	require.NoError(t, err)
	return records
}

// runTrial runs the workers, and beside them two nemeses of workers and one of
// etcd.
func runTrial(ctx context.Context, t testing.TB, g *ground, s setup, out io.Writer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, s.duration)
	defer cancel()
	f := startFleet(t, g, trial, s.strategy, trialWorkers)
	var beside sync.WaitGroup
	beside.Go(func() { newNemesis(g, f, "workers", workerFaults, s.faults).rage(ctx) })
	beside.Go(func() { newNemesis(g, f, "other workers", workerFaults, s.faults).rage(ctx) })
	beside.Go(func() { printProgress(ctx, g.ledger, out) })
	func() {
		defer beside.Wait()
		defer cancel() // also if the harness ends this goroutine
		newNemesis(g, f, "etcd", etcdFaults, s.faults).rage(ctx)
		<-ctx.Done()
	}()
	f.end()
	g.settle(t, f)
}

func printProgress(ctx context.Context, l *ledger, out io.Writer) {
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		s := l.standing(trial)
		fmt.Fprintf(out, "%6s  acknowledged %d, refused %d, unknown %d, holds lost %d, faults %d, the last: %s\n",
			l.seconds(), s.acknowledged, s.refused, s.unknown, s.losses, s.faults, s.last)
	}
}

// seconds is the time since the run began, for people.
func (l *ledger) seconds() string { return fmt.Sprintf("%.1fs", l.clock().Seconds()) }
