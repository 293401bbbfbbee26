package clock_test

import (
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/fencelock/fencelock/internal/clock"
)

// fake is a suspend-counting source under the test's control.
type fake struct{ d atomic.Int64 }

func (f *fake) add(d time.Duration) { f.d.Add(int64(d)) }

func (f *fake) install(t *testing.T) {
	t.Cleanup(clock.SetSource(func() time.Duration { return time.Duration(f.d.Load()) }))
}

// both is the elapsed time between a and now by Since and by Sub, which have to
// agree while no fake time passes.
func both(t *testing.T, a clock.Instant) time.Duration {
	t.Helper()
	since := clock.Since(a)
	assert.Equal(t, since, clock.Now().Sub(a))
	return since
}

func TestElapsedIsTheLargerClock(t *testing.T) {
	const second = time.Second
	for _, c := range []struct {
		name         string
		mono, source time.Duration
		want         time.Duration
	}{
		{"clocks agree", 3 * second, 3 * second, 3 * second},
		{"suspended for ten minutes", 3 * second / 10, 600 * second, 600 * second},
		{"source stands still", 3 * second, 0, 3 * second},
		{"source set back", 3 * second, -50 * second, 3 * second},
		{"source set back far, below zero", 3 * second, -200 * second, 3 * second},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var f fake
				f.add(100 * second)
				f.install(t)
				start := clock.Now()
				time.Sleep(c.mono)
				f.add(c.source)
				assert.Equal(t, c.want, both(t, start))
			})
		})
	}
}

func TestFailedReadingLeavesMonotonic(t *testing.T) {
	for _, c := range []struct {
		name        string
		first, then time.Duration
	}{
		{"the first reading failed", -1, time.Hour},
		{"the second reading failed", time.Minute, -1},
		{"both failed", -1, -1},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var f fake
				f.add(c.first)
				f.install(t)
				start := clock.Now()
				time.Sleep(2 * time.Second)
				f.d.Store(int64(c.then))
				assert.Equal(t, 2*time.Second, both(t, start))
			})
		})
	}
}

// In a bubble the machine's own source does not follow the fake clock; elapsed
// time must, or no timing rule could be tested.
func TestRealSourceInBubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := clock.Now()
		time.Sleep(time.Hour)
		got := clock.Since(start)
		assert.GreaterOrEqual(t, got, time.Hour)
		assert.Less(t, got, 2*time.Hour)
	})
}

func TestRealClocksAdvance(t *testing.T) {
	start := clock.Now()
	timer := time.NewTimer(20 * time.Millisecond)
	<-timer.C
	assert.GreaterOrEqual(t, clock.Since(start), 20*time.Millisecond)
	assert.Less(t, clock.Since(start), time.Hour)
}

func TestZeroInstantIsLongAgo(t *testing.T) {
	var zero clock.Instant
	assert.Equal(t, time.Duration(math.MaxInt64), clock.Since(zero))
	assert.Equal(t, time.Duration(math.MaxInt64), clock.Now().Sub(zero))
	assert.True(t, zero.Time().IsZero())
}

func TestTimeIsTheWallClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		assert.True(t, clock.Now().Time().Equal(time.Now()))
	})
}

func TestSetSourceNestsAndRestores(t *testing.T) {
	fixed := func(d time.Duration) func() time.Duration { return func() time.Duration { return d } }
	synctest.Test(t, func(t *testing.T) {
		defer clock.SetSource(fixed(0))()
		start := clock.Now()
		restore := clock.SetSource(fixed(time.Hour))
		assert.Equal(t, time.Hour, both(t, start))
		restore()
		assert.Equal(t, time.Duration(0), both(t, start))
	})
}

func TestSetSourceWhileOthersRead(t *testing.T) {
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 1000 {
				clock.Since(clock.Now())
			}
		})
	}
	for range 1000 {
		clock.SetSource(func() time.Duration { return 0 })()
	}
	wg.Wait()
}

func TestNoAllocation(t *testing.T) {
	start := clock.Now()
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		sink = clock.Since(start)
		sink = clock.Now().Sub(start)
	}))
}

var sink time.Duration

func BenchmarkNow(b *testing.B) {
	b.ReportAllocs()
	start := clock.Now()
	for b.Loop() {
		sink = clock.Now().Sub(start)
	}
}

func BenchmarkSince(b *testing.B) {
	b.ReportAllocs()
	start := clock.Now()
	for b.Loop() {
		sink = clock.Since(start)
	}
}
