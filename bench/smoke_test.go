package main

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestMain lets the test binary be re-executed as the etcd server, like the
// program itself.
func TestMain(m *testing.M) {
	if dir := os.Getenv(etcdDirEnv); dir != "" {
		if err := serveEtcd(dir, os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func TestMeasureAgainstEtcd(t *testing.T) {
	etcd, err := startEtcd(t.TempDir(), 1)
	require.NoError(t, err)
	dir := etcd.dir
	t.Cleanup(func() {
		require.NoError(t, etcd.stop())
		require.NoDirExists(t, dir)
	})

	var out figures
	s := size{
		uncontended: amount{20, time.Minute},
		handover:    amount{6, time.Minute},
		floor:       amount{6, time.Minute},
		paced:       amount{3, time.Minute},
		many:        2 * spread,
		cycles:      amount{4, time.Minute},
		parallel:    200 * time.Millisecond,
	}
	contests := fullContests
	t.Cleanup(func() { fullContests = contests })
	fullContests = slices.DeleteFunc(slices.Clone(fullContests), func(c named) bool { return c.waiters > 16 })
	require.NoError(t, measure(t.Context(), etcd.endpoint, 0, s, &out))
	require.NoError(t, falseLosses(t.Context(), etcd.endpoint, "busy", busy{locks: 20, ttl: 5 * time.Second, time: 2 * time.Second}, &out))
	require.NoError(t, threeMembers(t.Context(), t.TempDir(), amount{20, time.Minute}, &out))

	// In the same figures: a name of theirs that is taken would have two values.
	peers := peersSize{uncontended: amount{5, time.Minute}, parallel: 100 * time.Millisecond, handover: amount{4, time.Minute}}
	require.NoError(t, measurePeers(t.Context(), etcdPeers(etcd.endpoint), 0, peers, &out))

	got := make(map[string]float64)
	for _, f := range out.all {
		require.Len(t, f.runs, 1, f.name)
		got[f.name] = f.runs[0]
	}
	for _, name := range []string{
		"uncontended_p50_vs_mutex", "uncontended_p50_vs_raw", "uncontended_p50_us",
		"handover_w2_vs_mutex", "handover_w8_vs_mutex", "handover_w2_mean_ms", "handover_w8_mean_ms",
		"floor_mean_ms", "floor_paced20ms_mean_ms", "handover_hold0_w8_vs_floor", "handover_hold20ms_w2_vs_floor", "handover_hold20ms_w8_vs_floor",
		"handover_w2_background_p99_ms", "grant_unary_w16", "grant_unary_local8",
		"parallel_10k_vs_raw", "acquire_10k_vs_mutex", "held_long_keepalives_per_ttl",
		"history_10k_vs_fresh", "round_trip_p50_us", "do_overhead_us", "do_overhead_allocs", "held_err_ns",
	} {
		require.Positive(t, got[name], name)
	}
	// Of so few locks these say nothing; they can be below zero.
	for _, name := range []string{"false_losses_2000", "members3_token_regressions", "members3_overlaps", "members3_errors"} {
		require.Contains(t, got, name)
		require.InDelta(t, 0, got[name], 0, name)
	}
	for _, name := range []string{"held_long_bytes", "held_long_goroutines", "held_short_bytes", "held_short_goroutines"} {
		require.Contains(t, got, name)
	}
	// The counts, unlike the times, are the same on every machine: one Txn to
	// acquire, one to release, no watch.
	require.InDelta(t, 2, got["uncontended_unary_requests"], 0)
	require.InDelta(t, 2, got["mutex_uncontended_unary_requests"], 0, "the counter itself is wrong")
	require.InDelta(t, 0, got["uncontended_stream_messages"], 0)
}
