package clock

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// machine is the three clocks of a machine, and counts the system calls.
type machine struct {
	wall, mono, boot time.Duration
	broken           bool
	reads            int
	screen
}

func newMachine() *machine {
	m := &machine{wall: set + time.Hour, mono: time.Minute, boot: time.Hour}
	m.read = func() time.Duration {
		m.reads++
		if m.broken {
			return unread
		}
		return m.boot
	}
	return m
}

func (m *machine) run(d time.Duration)     { m.wall, m.mono, m.boot = m.wall+d, m.mono+d, m.boot+d }
func (m *machine) suspend(d time.Duration) { m.wall, m.boot = m.wall+d, m.boot+d }
func (m *machine) now() time.Duration      { return m.at(m.wall, m.mono) }

func TestScreenSavesSystemCalls(t *testing.T) {
	m := newMachine()
	for range 1000 {
		assert.Equal(t, m.boot, m.now())
		m.run(time.Millisecond)
	}
	assert.Equal(t, 10, m.reads, "one each 100 ms")
}

// A suspend is seen by the first reading after it, however soon after the last one
// before it.
func TestScreenSeesASuspendAtOnce(t *testing.T) {
	for _, d := range []time.Duration{time.Millisecond, 20 * time.Millisecond, time.Second, 30 * 24 * time.Hour} {
		for _, before := range []time.Duration{0, time.Microsecond, trusted - 1, trusted, time.Hour} {
			m := newMachine()
			m.now()
			m.run(before)
			m.suspend(d)
			assert.Equal(t, m.boot, m.now(), "%v, %v after a reading", d, before)
			m.run(time.Microsecond)
			assert.Equal(t, m.boot, m.now())
		}
	}
}

// The wall clock decides only whether the source is read, never what it says.
func TestScreenAndTheWallClock(t *testing.T) {
	for _, d := range []time.Duration{-time.Hour, -time.Millisecond, time.Millisecond, time.Hour} {
		m := newMachine()
		m.now()
		m.wall += d
		assert.Equal(t, m.boot, m.now(), "stepped by %v", d)
		assert.Equal(t, 2, m.reads)
		m.run(time.Millisecond)
		assert.Equal(t, m.boot, m.now())
		assert.Equal(t, 2, m.reads, "and is trusted again")
	}
	m := newMachine()
	m.now()
	m.suspend(time.Minute)
	m.wall -= time.Minute // put back where it was
	m.run(trusted)
	assert.Equal(t, m.boot, m.now(), "that hides a suspend for a moment only")
}

// In testing/synctest's bubbles all clocks start at the same time.
func TestScreenReadsWhereTheWallClockIsNotSet(t *testing.T) {
	m := newMachine()
	m.wall = set - time.Second
	for i := range 5 {
		assert.Equal(t, m.boot, m.now())
		assert.Equal(t, i+1, m.reads)
	}
}

func TestScreenOfABrokenSource(t *testing.T) {
	m := newMachine()
	m.broken = true
	assert.Equal(t, unread, m.now())
	m.broken = false
	assert.Equal(t, m.boot, m.now(), "nothing was kept of it")
	m.run(trusted)
	m.broken = true
	assert.Equal(t, unread, m.now())
}

func TestScreenIsUsedByMany(t *testing.T) {
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			last := Now()
			for range 20_000 {
				next := Now()
				if next.susp < last.susp-step {
					assert.Fail(t, "the source went back", "%v after %v", next.susp, last.susp)
				}
				last = next
			}
		})
	}
	wg.Wait()
}
