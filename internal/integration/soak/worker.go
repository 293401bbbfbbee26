package main

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"runtime"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/integration/harness"
	"github.com/fencelock/fencelock/internal/integration/resource"
)

const workerRoleName = "soak worker"

// workerConfig is what a worker is told, as JSON, in its one argument.
type workerConfig struct {
	Name     string
	Lock     string // also what its registers are called, with a number
	Strategy strategy
	Etcd     []string // "host:port"
	Resource string   // the same
	TTL      time.Duration
	Margin   time.Duration
	Seed     uint64
}

// worker adds elements to a set, one section after the other.
type worker struct {
	workerConfig
	*scribe
	random   *rand.Rand
	locking  locking
	resource *resource.Client
	register int // the one it last found room in
}

// workerRole is a worker as a child process.
func workerRole(c *harness.Child) error {
	leaks := goleak.IgnoreCurrent()
	goroutines := runtime.NumGoroutine()
	w := &worker{scribe: &scribe{child: c}}
	if err := json.Unmarshal([]byte(c.Args()[0]), &w.workerConfig); err != nil {
		return err
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints: w.Etcd, DialTimeout: 2 * time.Second, Logger: zap.NewNop(),
	})
	if err != nil {
		return err
	}
	w.random = newRandom(w.Seed, w.Name)
	w.resource = resource.NewClient(w.Resource)
	if w.locking, err = newLocking(w.Strategy, client, w.Lock, w.TTL, w.Margin); err != nil {
		return err
	}
	stopPace := w.keepPace()
	w.run(c.Context())
	stopPace()
	err = errors.Join(w.locking.close(), w.resource.Close(), client.Close())
	w.put(record{Kind: leftBehind, Left: &left{Goroutines: goroutinesLeft(leaks, goroutines)}, Note: text(err)})
	return nil
}

func (w *worker) run(ctx context.Context) {
	for n := 1; ctx.Err() == nil; n++ {
		p := newPlan(w.random, w.Strategy, elementName(w.Name, n), w.TTL)
		rest := between(w.random, 0, 30*time.Millisecond)
		if !w.section(ctx, p) {
			rest += between(w.random, 20*time.Millisecond, 100*time.Millisecond)
		}
		sleep(ctx, rest)
	}
}

// section carries out one plan, and reports whether it got the lock.
func (w *worker) section(ctx context.Context, p plan) (ran bool) {
	ctx, cancel := context.WithTimeout(ctx, p.within)
	defer cancel()
	op := w.invoke(record{Act: acquire})
	err := w.locking.section(ctx, p, func(h hold) error {
		ran = true
		w.put(record{Kind: granted, Op: op, Token: h.token.String()})
		stop := h.onLoss(func(reason string) { w.put(record{Kind: told, Op: op, Reason: reason}) })
		defer stop()
		return w.work(op, h, p)
	})
	switch {
	case ran:
		o := sectionOutcome(err)
		if w.Strategy == peer && o == bad {
			o = unconfirmed // the errors of an unlock, which are etcd's own
		}
		w.put(record{Kind: ended, Op: op, Outcome: o, Note: text(err)})
	case errors.Is(err, fencelock.ErrNotAcquired) || w.Strategy == peer:
		w.put(record{Kind: returned, Op: op, Outcome: failed, Note: text(err)})
	default:
		w.put(record{Kind: returned, Op: op, Outcome: bad, Note: text(err)})
	}
	return ran
}

// errGivenUp is why a section did not write although nothing failed.
var errGivenUp = errors.New("soak: the section looked and gave up")

// work is what is done under the lock: read, think, look, write. A section that
// gets no clear answer from the resource ends, since its next request could
// overtake the one that is still on its way.
func (w *worker) work(op int, h hold, p plan) error {
	w.look(op, h)
	requests := h.ctx
	if !p.heeds {
		requests = context.WithoutCancel(h.ctx)
	}
	requests, cancel := context.WithTimeout(requests, 30*w.TTL)
	defer cancel()
	register, value, err := w.findRoom(requests, h.token)
	if err != nil {
		return err
	}
	if p.heeds {
		sleep(h.ctx, p.think)
	} else {
		sleep(context.Background(), p.think)
	}
	if !w.look(op, h) && p.heeds {
		return errors.Join(errGivenUp, context.Cause(h.ctx))
	}
	return w.add(requests, register, h.token, value, p.element)
}

// look looks whether the lock is still held. What counts is the time before the
// look: if the process is stopped in between, the answer was given later.
func (w *worker) look(op int, h hold) bool {
	at := now()
	alive := h.alive()
	w.put(record{At: at, Kind: looked, Op: op, Alive: alive})
	return alive
}

// sectionOutcome says what became of a section that ran.
func sectionOutcome(err error) outcome {
	switch {
	case err == nil:
		return done
	case errors.Is(err, fencelock.ErrTokenRegression), errors.Is(err, fencelock.ErrTokenUnused):
		return bad
	case errors.Is(err, fencelock.ErrLost):
		return lost
	case errors.Is(err, fencelock.ErrUnconfirmed):
		return unconfirmed
	case errors.Is(err, errGivenUp), errors.Is(err, resource.ErrUnanswered),
		errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return given
	default:
		return bad
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// sleep sleeps, until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// goroutinesLeft returns how many goroutines there are that were not there
// before, after it has waited for them to end.
func goroutinesLeft(before goleak.Option, n int) int {
	limit := time.Now().Add(5 * time.Second)
	for time.Now().Before(limit) {
		if goleak.Find(before) == nil {
			return 0
		}
	}
	return max(1, runtime.NumGoroutine()-n)
}
