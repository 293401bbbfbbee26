package harness

import (
	"sync"
	"sync/atomic"
	"time"
)

// Direction is one direction of a [Proxy]: how bytes fare on it, for all
// connections. At any moment it flows, is stalled or is a black hole; the last
// call counts. A delay is kept beside that.
type Direction struct {
	received  atomic.Int64
	delivered atomic.Int64
	lost      atomic.Int64

	mu  sync.Mutex
	now setting
}

// setting is how a direction is set at one moment; changed is closed when that
// moment is over.
type setting struct {
	flow    flow
	delay   time.Duration
	changed chan struct{}
}

type flow int

const (
	flowing flow = iota
	stalled
	swallowing
)

func newDirection() *Direction {
	return &Direction{now: setting{changed: make(chan struct{})}}
}

// Delay delivers every byte by so much after the proxy received it, in order.
// It is latency, not a limit on throughput. A new delay applies to bytes on
// their way too; 0 ends it.
func (d *Direction) Delay(by time.Duration) { d.set(func(s *setting) { s.delay = by }) }

// Stall holds every byte, and every end of a connection, and loses none: they
// are delivered after [Direction.Resume]. The sender notices nothing, until 16
// MiB are held for one connection; then it is read no further.
func (d *Direction) Stall() { d.set(func(s *setting) { s.flow = stalled }) }

// Resume ends a stall or a black hole, and keeps a delay. After a black hole,
// a connection that lost something is reset: no network delivers the rest of a
// stream of which it has lost a part.
func (d *Direction) Resume() { d.set(func(s *setting) { s.flow = flowing }) }

// Blackhole swallows every byte, held ones too, and every end of a connection:
// nobody at the other end is told that the sender closed or died. New
// connections are accepted and swallowed as well.
func (d *Direction) Blackhole() { d.set(func(s *setting) { s.flow = swallowing }) }

// Heal is [Direction.Resume], and ends a delay too.
func (d *Direction) Heal() { d.set(func(s *setting) { s.flow, s.delay = flowing, 0 }) }

// Received returns how many bytes the proxy took from the sender.
func (d *Direction) Received() int64 { return d.received.Load() }

// Delivered returns how many bytes the proxy handed to the receiver.
func (d *Direction) Delivered() int64 { return d.delivered.Load() }

// Lost returns how many bytes were swallowed.
func (d *Direction) Lost() int64 { return d.lost.Load() }

func (d *Direction) set(change func(*setting)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	close(d.now.changed)
	change(&d.now)
	d.now.changed = make(chan struct{})
}

func (d *Direction) setting() setting {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.now
}
