package main

import (
	"encoding/json"
	"sync/atomic"
	"time"

	"github.com/fencelock/fencelock/internal/integration/harness"
)

// recordEvent is the event with which a worker sends a record to the parent.
const recordEvent = "record"

// scribe sends a worker's records to the parent, who keeps them. A record of
// something that is about to happen has left the process before it happens: it
// is known also if the process dies then.
type scribe struct {
	child *harness.Child
	ops   atomic.Int64
}

// put sends a record. Without a time it is of now.
func (s *scribe) put(r record) {
	if r.At == 0 {
		r.At = now()
	}
	line, err := json.Marshal(r)
	if err != nil {
		panic(err) // strings and numbers marshal
	}
	s.child.Emit(recordEvent, string(line))
}

// invoke records that something is about to be asked for, and returns the
// number by which the answer is found.
func (s *scribe) invoke(r record) (op int) {
	r.Op = int(s.ops.Add(1))
	r.Kind = invoked
	s.put(r)
	return r.Op
}

const (
	paceTick = 20 * time.Millisecond
	// stallFrom is from where on a late tick is a stall.
	stallFrom = 60 * time.Millisecond
)

// keepPace records when the process did not run: it was stopped, or the machine
// had no time for it. Whoever judges whether a holder was told in time must know
// when there was nobody who could have been told. It goes by a timer and a
// goroutine, as the library's watchdog does, and by none of its locks.
func (s *scribe) keepPace() (stop func()) {
	stopped, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		tick := time.NewTicker(paceTick)
		defer tick.Stop()
		last := now()
		for {
			select {
			case <-tick.C:
			case <-stopped:
				return
			}
			at := now()
			if at-last >= stallFrom {
				s.put(record{Kind: stalled, From: last, At: at})
			}
			last = at
		}
	}()
	return func() {
		close(stopped)
		<-over
	}
}
