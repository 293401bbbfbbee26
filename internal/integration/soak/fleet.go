package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/integration/harness"
)

// farewell is how long a worker may take to end: it finishes its section, closes
// what it has and waits for its goroutines.
const farewell = 30 * time.Second

// hand is a worker as the parent sees it: a process, and its ways to etcd and to
// the resource, which are nobody else's.
type hand struct {
	name     string
	proc     *harness.Process
	etcd     links // one for each member
	resource *harness.Proxy

	// busy is held by whoever disturbs the worker, as one must not heal what
	// another has just cut.
	busy sync.Mutex
}

// links are all ways from a worker to etcd.
type links []*harness.Proxy

func (l links) each(do func(*harness.Proxy)) {
	for _, p := range l {
		do(p)
	}
}

// fleet is the workers of one phase.
type fleet struct {
	phase  phase
	lock   string
	ledger *ledger
	hands  []*hand
	began  time.Duration
	reads  sync.WaitGroup
}

// startFleet starts workers that use the lock of that phase.
func startFleet(t testing.TB, g *ground, p phase, s strategy, workers int) *fleet {
	t.Helper()
	f := &fleet{phase: p, lock: lockOf(p), ledger: g.ledger, began: g.ledger.clock()}
	for i := range workers {
		h := &hand{name: fmt.Sprintf("%s%d", string(p)[:1], i+1), resource: harness.NewProxy(t, g.resource.Addr)}
		var addrs []string
		for _, m := range g.cluster.Members {
			link := harness.NewProxy(t, m.Addr())
			h.etcd = append(h.etcd, link)
			addrs = append(addrs, link.Addr())
		}
		arg, err := json.Marshal(workerConfig{
			Name: h.name, Lock: f.lock, Strategy: s, Etcd: addrs, Resource: h.resource.Addr(),
			TTL: ttl, Margin: margin, Seed: g.seed,
		})
		if err != nil {
			t.Fatal(err)
		}
		h.proc = harness.Start(t, workerRoleName, string(arg))
		f.hands = append(f.hands, h)
		f.reads.Go(func() { f.follow(h) })
	}
	return f
}

// lockOf returns the lock of a phase, which is also what its registers are
// called, with a number.
func lockOf(p phase) string { return string(p) }

// follow takes down what a worker says, until it is gone and all was read.
func (f *fleet) follow(h *hand) {
	for {
		e, err := h.proc.Await(context.Background(), recordEvent)
		if err != nil {
			if h.proc.Err() != nil {
				f.ledger.add(record{Kind: died, Phase: f.phase, Worker: h.name, Note: err.Error()})
			}
			return
		}
		var r record
		if err := json.Unmarshal([]byte(e.Text), &r); err != nil {
			f.ledger.add(record{
				Kind: died, Phase: f.phase, Worker: h.name, Note: fmt.Sprintf("it says %q: %v", e.Text, err),
			})
			return
		}
		r.At -= f.ledger.origin
		if r.From != 0 {
			r.From -= f.ledger.origin
		}
		r.Phase, r.Worker = f.phase, h.name
		f.ledger.add(r)
	}
}

// end ends all workers and returns when all they said was taken down.
func (f *fleet) end() {
	f.ledger.add(record{Kind: workingTime, Phase: f.phase, From: f.began})
	var ending sync.WaitGroup
	for _, h := range f.hands {
		ending.Go(func() { _ = h.proc.Shutdown(farewell) }) // what is wrong with it, follow says
	}
	ending.Wait()
	f.reads.Wait()
	for _, h := range f.hands {
		h.etcd.each((*harness.Proxy).Close)
	}
}

// drain returns when nothing of the workers is on its way to the resource any
// more.
func (f *fleet) drain() error {
	limit := time.Now().Add(farewell)
	for _, h := range f.hands {
		for h.resource.Open() > 0 {
			if time.Now().After(limit) {
				return fmt.Errorf("soak: requests of %s are still on their way to the resource", h.name)
			}
			time.Sleep(time.Millisecond)
		}
	}
	return nil
}

// take returns a worker that nobody disturbs, to be released after: mostly the
// holder, since what is done to the others hits them waiting. It is nil if all
// are taken.
func (f *fleet) take(random *rand.Rand) *hand {
	first := random.IntN(len(f.hands))
	if preferHolder := random.IntN(10) < 6; preferHolder {
		holder := f.ledger.standing(f.phase).holder
		for i, h := range f.hands {
			if h.name == holder {
				first = i
			}
		}
	}
	for i := range f.hands {
		if h := f.hands[(first+i)%len(f.hands)]; h.busy.TryLock() {
			return h
		}
	}
	return nil
}
