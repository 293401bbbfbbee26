package main

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// Each server by itself: where one is not installed its peers are skipped, and the
// others are measured.
func TestMeasurePeers(t *testing.T) {
	etcd, err := startEtcd(t.TempDir(), 1)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, etcd.stop()) })
	for name, start := range map[string]func(context.Context, string) (*server, []peer, error){
		"redis always": startRedisAlways, "redis in memory": startRedisOff, "zookeeper": startZooKeeper, "postgres": startPostgres,
	} {
		t.Run(name, func(t *testing.T) {
			server, others, err := start(t.Context(), "")
			if errors.Is(err, errNoServer) {
				t.Skip(err)
			}
			require.NoError(t, err)
			t.Cleanup(func() {
				require.NoError(t, server.stop())
				require.NoDirExists(t, server.dir)
			})
			var out figures
			peers := append(etcdPeers(etcd.endpoint), others...)
			s := peersSize{uncontended: amount{5, time.Minute}, parallel: 100 * time.Millisecond, handover: amount{4, time.Minute}}
			require.NoError(t, measurePeers(t.Context(), peers, 0, s, &out))
			for _, p := range peers {
				for _, figure := range []string{
					"uncontended_p50_us", "uncontended_p99_us", "parallel_per_s",
					"handover_hold20ms_w2_mean_ms", "handover_hold20ms_w8_mean_ms",
				} {
					value, ok := out.medianOf("peer_" + p.name + "_" + figure)
					require.True(t, ok, "%s %s", p.name, figure)
					require.Positive(t, value)
				}
			}
		})
	}
}

func TestReportRatiosToEachPeer(t *testing.T) {
	var out figures
	report([]peer{{name: "fencelock"}, {name: "a"}, {name: "b"}}, "parallel", "cycles/s", []float64{100, 50, 400}, &out)
	for name, want := range map[string]float64{
		"peer_fencelock_parallel_per_s": 100, "peer_a_parallel_per_s": 50, "parallel_vs_a": 2, "parallel_vs_b": 0.25,
	} {
		got, ok := out.medianOf(name)
		require.True(t, ok, name)
		require.InDelta(t, want, got, 0, name)
	}
	_, ok := out.medianOf("parallel_vs_fencelock")
	require.False(t, ok)
}

func TestStallIsNoticedAndSlowPaceIsNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		grants := make(chan struct{}, 1)
		var stalled error
		start := time.Now()
		done := make(chan struct{})
		go func() {
			defer close(done)
			watchStall(t.Context(), grants, 15*time.Second, func(err error) { stalled = err })
		}()
		for range 3 {
			time.Sleep(14 * time.Second)
			grants <- struct{}{}
		}
		<-done
		require.EqualError(t, stalled, "bench: nobody was granted the lock for 15s")
		require.Equal(t, 57*time.Second, time.Since(start))
	})
}

// Who released waits for another's grant, and leaves when there are enough.
func TestTurnsYield(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := newTurns(contest{waiters: 2, much: amount{1, time.Hour}, yield: true})
		grant := func(id int) {
			_, err := turns.granted(id, 0, time.Now())
			require.NoError(t, err)
			turns.releasing()
		}
		grant(0)
		returned := make(chan bool, 1)
		go func() {
			over, err := turns.yield(t.Context(), 0)
			require.NoError(t, err)
			returned <- over
		}()
		synctest.Wait()
		require.Empty(t, returned, "it asked again before another was granted")
		grant(1)
		require.False(t, <-returned)

		turns.skip = 1
		grant(1)
		grant(0)
		over, err := turns.yield(t.Context(), 0)
		require.NoError(t, err)
		require.True(t, over)
	})
}
