package main

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fencelock/fencelock/internal/integration/resource"
)

// The positive control: how many workers of the unfenced peer are stopped, by
// the nemesis of the trial, until they have lost something, and for how long at
// most.
const (
	controlWorkers = 3
	controlWithin  = 30 * time.Second
)

// runControl shows that the nemesis does harm. What came of it is judged with
// the rest of the history.
func runControl(ctx context.Context, t testing.TB, g *ground) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, controlWithin)
	defer cancel()
	f := startFleet(t, g, control, peer, controlWorkers)
	raging := make(chan struct{})
	go func() {
		defer close(raging)
		newNemesis(g, f, "workers", workerFaults, []string{"stop"}).rage(ctx)
	}()
	direct := resource.NewClient(g.resource.Addr)
	defer func() { require.NoError(t, direct.Close()) }()
	for ctx.Err() == nil && !g.misses(t, direct, f) {
		sleep(ctx, 100*time.Millisecond)
	}
	cancel()
	<-raging
	f.end()
	g.settle(t, f)
}

// misses reports whether an acknowledged update cannot be seen. A section that
// is still under way may yet bring it back, and loses another by that.
func (g *ground) misses(t testing.TB, direct *resource.Client, f *fleet) bool {
	t.Helper()
	acked := g.ledger.standing(f.phase).acked
	var there []string
	for n := 0; ; n++ {
		value, err := direct.Read(context.Background(), registerName(f.lock, n))
		require.NoError(t, err)
		there = append(there, elements(value)...)
		if len(elements(value)) < room {
			break
		}
	}
	return slices.ContainsFunc(acked, func(e string) bool { return !slices.Contains(there, e) })
}
