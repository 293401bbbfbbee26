package main

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fencelock/fencelock/internal/integration/harness"
)

// TestSoak is a short soak, all of it: the control, a trial with every fault, the
// verdict, and the same verdict from the file.
func TestSoak(t *testing.T) {
	harness.NoLeaks(t)
	path := filepath.Join(t.TempDir(), "history.jsonl")
	var out bytes.Buffer
	status := command(t.Context(), []string{"-duration", "4s", "-history", path}, &out, &out)
	t.Log(out.String())
	require.Equal(t, statusPassed, status)
	require.True(t, strings.HasPrefix(out.String(), "seed "), "the seed comes first")

	records, err := readHistory(path)
	require.NoError(t, err)
	h, err := gather(records, trial)
	require.NoError(t, err)
	require.NotEmpty(t, h.holds)
	require.NotZero(t, h.faults)
	require.NotEmpty(t, h.requests)
	for i := range trialWorkers {
		require.True(t, slices.ContainsFunc(records, func(r record) bool {
			return r.Worker == fmt.Sprint("t", i+1) && r.Kind == leftBehind
		}), "worker %d came to its end", i+1)
	}

	var again bytes.Buffer
	require.Equal(t, statusPassed, command(t.Context(), []string{"-replay", path}, &again, &again))
	require.True(t, strings.HasSuffix(out.String(), again.String()), "the replay says:\n%s", again.String())
}

// An interrupted run ends soon and in good order, and does not pass.
func TestSoakIsInterrupted(t *testing.T) {
	harness.NoLeaks(t)
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	out := &awaited{text: "control:", do: interrupt}
	began := time.Now()
	status := command(ctx, []string{"-duration", "10m", "-history", filepath.Join(t.TempDir(), "history.jsonl")}, out, out)
	require.Equal(t, statusFailedToRun, status)
	require.Contains(t, out.String(), "interrupted")
	require.Less(t, time.Since(began), time.Minute)
}

// awaited does something when a text is written to it.
type awaited struct {
	text string
	do   func()

	mu  sync.Mutex
	all bytes.Buffer
}

func (a *awaited) Write(b []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if strings.Contains(string(b), a.text) {
		a.do()
	}
	return a.all.Write(b)
}

func (a *awaited) String() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.all.String()
}

func TestArguments(t *testing.T) {
	harness.NoLeaks(t)
	for _, args := range [][]string{
		{"-strategy", "hope"},
		{"-faults", "stop,earthquake"},
		{"-duration", "0s"},
		{"-duration", "-1s"},
		{"-duration", "soon"},
		{"-seed", "-1"},
		{"file"},
		{"-unheard-of"},
	} {
		var out, errs bytes.Buffer
		require.Equal(t, statusFailedToRun, command(t.Context(), args, &out, &errs), args)
		require.Empty(t, out.String(), "nothing was started: %v", args)
		require.NotEmpty(t, errs.String(), args)
	}
	var errs bytes.Buffer
	require.Equal(t, statusPassed, command(t.Context(), []string{"-help"}, &errs, &errs))

	s, _, err := parse(nil, &errs)
	require.NoError(t, err)
	require.Equal(t, setup{duration: time.Minute, strategy: fenced, faults: faultNames()}, s)
	s, file, err := parse([]string{"-faults", "late,leader", "-strategy", "peer", "-seed", "7", "-replay", "f"}, &errs)
	require.NoError(t, err)
	require.Equal(t, setup{duration: time.Minute, seed: 7, strategy: peer, faults: []string{"late", "leader"}}, s)
	require.Equal(t, "f", file)
}

// The same seed makes the same choices.
func TestPlansComeFromTheSeed(t *testing.T) {
	plans := func(seed uint64, worker string, s strategy) (all []plan) {
		random := newRandom(seed, worker)
		for n := range 200 {
			all = append(all, newPlan(random, s, elementName("w", n), ttl))
		}
		return all
	}
	require.Equal(t, plans(1, "t1", fenced), plans(1, "t1", fenced))
	require.NotEqual(t, plans(1, "t1", fenced), plans(2, "t1", fenced))
	require.NotEqual(t, plans(1, "t1", fenced), plans(1, "t2", fenced))

	long := func(p plan) bool { return p.think >= ttl/2 }
	heeds := func(p plan) bool { return p.heeds }
	for s, c := range map[strategy]struct{ some, all bool }{
		fenced: {some: true}, advisory: {some: true, all: true}, peer: {},
	} {
		of := plans(1, "t1", s)
		require.True(t, slices.ContainsFunc(of, long))
		require.False(t, all(of, long))
		require.Equal(t, c.some, slices.ContainsFunc(of, heeds), s)
		require.Equal(t, c.all, all(of, heeds), s)
	}
}

func all[T any](of []T, are func(T) bool) bool {
	return !slices.ContainsFunc(of, func(v T) bool { return !are(v) })
}
