package integration

import (
	"sync"
	"time"
)

// late is what a machine may add to a moment at which a goroutine was to run. It
// is granted where something has an upper bound in time, never where one thing
// has to come before another.
const late = 250 * time.Millisecond

// allowance is late, and what is known beyond it: for how long between two
// moments nothing at all ran in this process, because the machine had other
// things to do.
func allowance(from, to time.Time) time.Duration { return late + machine.stalled(from, to) }

// machine watches from the start, so that no test takes it for a goroutine that
// was left behind.
var machine = watchMachine()

// stallWatch notices stalls by being late itself.
type stallWatch struct {
	mu     sync.Mutex
	beat   time.Time // when it last ran
	stalls []stall
}

type stall struct{ from, to time.Time }

const (
	beatEvery = 10 * time.Millisecond
	// leastStall is twice the time it meant to sleep: a machine that has far too
	// much to do takes the processor away in many short slices, and they add up.
	leastStall = 2 * beatEvery
)

func watchMachine() *stallWatch {
	w := &stallWatch{beat: time.Now()}
	go func() {
		for {
			time.Sleep(beatEvery)
			w.note(time.Now())
		}
	}()
	return w
}

func (w *stallWatch) note(now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if now.Sub(w.beat) >= leastStall {
		w.stalls = append(w.stalls, stall{w.beat, now})
	}
	w.beat = now
}

func (w *stallWatch) stalled(from, to time.Time) (sum time.Duration) {
	for w.last().Before(to) { // a stall is known when it is over
		time.Sleep(beatEvery)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.stalls {
		begin, end := s.from, s.to
		if begin.Before(from) {
			begin = from
		}
		if end.After(to) {
			end = to
		}
		sum += max(0, end.Sub(begin))
	}
	return sum
}

func (w *stallWatch) last() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.beat
}
