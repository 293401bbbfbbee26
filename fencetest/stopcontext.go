package fencetest

import (
	"context"
	"sync/atomic"
	"time"
)

// stopContext runs stop when it is asked for the at-th time, by any of its methods, or
// every time if at is 0. The
// kit cannot look into the fence of others, but most of them ask their context between
// two steps, and each time is a place where a holder can be stalled. So every such
// place is tried, and not the ones that a race happens to hit.
type stopContext struct {
	context.Context
	at    int64
	stop  func()
	asked atomic.Int64
}

func (c *stopContext) ask() {
	if n := c.asked.Add(1); c.stop != nil && (c.at == 0 || c.at == n) {
		c.stop()
	}
}

func (c *stopContext) Done() <-chan struct{} {
	c.ask()
	return c.Context.Done()
}

func (c *stopContext) Err() error {
	c.ask()
	return c.Context.Err()
}

func (c *stopContext) Deadline() (time.Time, bool) {
	c.ask()
	return c.Context.Deadline()
}

func (c *stopContext) Value(key any) any {
	c.ask()
	return c.Context.Value(key)
}

// maxStops bounds how many places of one call are tried; a call that asks more often
// does so in a loop.
const maxStops = 48

// stops returns how many places a call has. The call is made once, with a context
// that never stops.
func stops(ctx context.Context, call func(context.Context) error) (int64, error) {
	c := &stopContext{Context: ctx}
	err := call(c)
	return min(c.asked.Load(), maxStops), err
}
