package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// contest is how a lock is contended for.
type contest struct {
	waiters   int           // contenders for the one name
	processes int           // how many clients they share; 0: one each
	hold      time.Duration // how long each keeps the lock
	puts      int           // unrelated puts a second by somebody else meanwhile
	much      amount        // hand-overs
	yield     bool          // who released asks again when another has been granted; nobody is promised a turn
	wrong     *violations   // counts them; nil: the first one ends the contest
}

// contested is what came of it.
type contested struct {
	mean, p99 time.Duration
	unary     float64 // requests a grant, over all contenders
	events    float64 // watch events delivered a release, over all contenders
	grants    int     // all of them
}

// handover measures how long a contended lock is nobody's: from just before
// one holder calls release to the next one's acquire returning. Each contender
// has a Locker (or a session) of its own, as a process would, and, where the contest
// does not say otherwise, a client of its own.
func handover(ctx context.Context, endpoint, name string, k kind, c contest) (contested, error) {
	clients := make([]*clientv3.Client, cmp.Or(c.processes, c.waiters))
	counts := make([]*traffic, len(clients))
	for i := range clients {
		var err error
		if clients[i], counts[i], err = dial(endpoint); err != nil {
			return contested{}, err
		}
		defer clients[i].Close()
	}
	contenders := make([]contender, c.waiters)
	for i := range contenders {
		var err error
		if contenders[i], err = k(clients[i%len(clients)], name); err != nil {
			return contested{}, err
		}
	}

	turns := newTurns(c)
	turns.measuring = func(sign int64) {
		for _, t := range counts {
			turns.unary += sign * t.unary.Load()
			turns.events += sign * t.events.Load()
		}
	}
	var meanwhile func(ctx context.Context, quiet <-chan struct{}) error
	if c.puts > 0 {
		meanwhile = func(ctx context.Context, quiet <-chan struct{}) error {
			return disturb(ctx, endpoint, name, c.puts, quiet)
		}
	}
	if err := hold(ctx, contenders, c, turns, meanwhile); err != nil {
		return contested{}, err
	}

	var errs []error
	for _, each := range contenders {
		errs = append(errs, each.close())
	}
	if err := errors.Join(errs...); err != nil {
		return contested{}, fmt.Errorf("bench: close after the hand-overs: %w", err)
	}
	return contested{
		mean: turns.mean(), p99: percentile(turns.took, 99),
		grants: turns.grants,
		unary:  float64(turns.unary) / float64(turns.counted), events: float64(turns.events) / float64(turns.counted),
	}, nil
}

// hold lets the contenders contend until there are enough turns, and fails with the
// first error of any of them, or when nobody is granted any more. meanwhile, where it
// is not nil, runs beside them until its quiet is closed.
func hold(ctx context.Context, contenders []contender, c contest, turns *turns,
	meanwhile func(ctx context.Context, quiet <-chan struct{}) error,
) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg, others sync.WaitGroup
	quiet := make(chan struct{})
	if meanwhile != nil {
		others.Go(func() {
			if err := meanwhile(ctx, quiet); err != nil {
				cancel(err)
			}
		})
	}
	watched, watchedEnough := context.WithCancel(ctx)
	defer watchedEnough()
	others.Go(func() { watchStall(watched, turns.progress, stallAfter+c.hold, cancel) })
	for i, each := range contenders {
		wg.Go(func() {
			if err := contend(ctx, each, i, c, turns); err != nil {
				cancel(err) // the first one is kept
			}
		})
	}
	wg.Wait()
	close(quiet)
	watchedEnough()
	others.Wait()
	return context.Cause(ctx)
}

// disturb puts keys that have nothing to do with the lock, at a steady pace, until
// quiet is closed.
func disturb(ctx context.Context, endpoint, name string, perSecond int, quiet <-chan struct{}) error {
	client, _, err := dial(endpoint)
	if err != nil {
		return err
	}
	defer client.Close()
	pace := time.NewTicker(time.Second / time.Duration(perSecond))
	defer pace.Stop()
	for {
		select {
		case <-quiet:
			return nil
		case <-ctx.Done():
			return nil
		case <-pace.C:
			if _, err := client.Put(ctx, "unrelated/"+name, "x"); err != nil && ctx.Err() == nil {
				return fmt.Errorf("bench: unrelated put: %w", err)
			}
		}
	}
}

func contend(ctx context.Context, c contender, id int, how contest, turns *turns) error {
	for {
		turns.asking(id)
		token, err := c.acquire(ctx)
		now := time.Now()
		if err != nil {
			if err := turns.failed(ctx, fmt.Errorf("bench: contended acquire: %w", err)); err != nil {
				return err
			}
			continue
		}
		enough, err := turns.granted(id, token, now)
		if err != nil {
			return err
		}
		if how.hold > 0 {
			time.Sleep(how.hold)
		}
		turns.releasing()
		if err := c.release(ctx); err != nil {
			if err := turns.failed(ctx, fmt.Errorf("bench: contended release: %w", err)); err != nil {
				return err
			}
		}
		if enough {
			return nil
		}
		if how.yield {
			if over, err := turns.yield(ctx, id); over || err != nil {
				return err
			}
		}
	}
}

// floor measures what no hand-over can be faster than: from just before a key is
// deleted by one client to the event of that at another, which has watched it since
// before. The key is there for pace before it is deleted: after a pause its event
// comes later, for whoever slept meanwhile must be woken first.
func floor(ctx context.Context, endpoint, name string, much amount, pace time.Duration) (time.Duration, error) {
	holder, _, err := dial(endpoint)
	if err != nil {
		return 0, err
	}
	defer holder.Close()
	waiter, _, err := dial(endpoint)
	if err != nil {
		return 0, err
	}
	defer waiter.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	key := "floor/" + name
	events := waiter.Watch(ctx, key, clientv3.WithFilterPut(), clientv3.WithCreatedNotify())
	if resp := <-events; resp.Err() != nil {
		return 0, fmt.Errorf("bench: watch for the floor: %w", resp.Err())
	}
	var took []time.Duration
	for start := time.Now(); len(took) < much.count && time.Since(start) < much.within; {
		if _, err := holder.Put(ctx, key, ""); err != nil {
			return 0, fmt.Errorf("bench: put for the floor: %w", err)
		}
		if err := sleep(ctx, pace); err != nil {
			return 0, err
		}
		released := time.Now()
		if _, err := holder.Delete(ctx, key); err != nil {
			return 0, fmt.Errorf("bench: delete for the floor: %w", err)
		}
		resp, ok := <-events
		if !ok || resp.Err() != nil || len(resp.Events) != 1 {
			return 0, fmt.Errorf("bench: no event for the floor: %w", resp.Err())
		}
		took = append(took, time.Since(released))
	}
	return mean(took), nil
}

// turns watches the holders from outside: it keeps the latencies, and fails
// the measurement if two hold at once or tokens do not rise. A fast lock that
// does not exclude would be worth nothing.
type turns struct {
	mu       sync.Mutex
	held     bool
	holder   int
	token    int64
	released time.Time // just before the release was called

	skip, want int
	within     time.Duration // from the first grant that is not skipped
	until      time.Time
	took       []time.Duration
	enough     bool
	wrong      *violations

	// Who asks waits for those who asked before, whose number is that of the
	// contenders. How soon a request is in the queue after it was asked for is not
	// the lock's to say, hence several times that.
	patience int   // grants to others that may come between; 0: not checked
	grants   int   // so far
	asked    []int // grants when each contender asked

	progress chan struct{} // a token after a grant, for who watches
	next     chan struct{} // closed at the next grant

	// measuring subtracts or adds what was counted up to now; nil for none.
	measuring     func(sign int64)
	counted       int // grants between its two calls
	unary, events int64
}

// newTurns returns what watches the holders of a contest. The first grants obtain
// leases and open watches; they are not measured.
func newTurns(c contest) *turns {
	t := &turns{
		skip: 2 * c.waiters, want: c.much.count, within: c.much.within,
		patience: 4*c.waiters + 16, asked: make([]int, c.waiters), wrong: c.wrong,
		progress: make(chan struct{}, 1),
	}
	if c.yield {
		t.patience = 0
	}
	return t
}

// mean returns the mean of the hand-overs. It panics where there was none.
func (t *turns) mean() time.Duration { return mean(t.took) }

// yield returns when another than id has been granted since id was, or with over when
// there are enough grants, or with the cause of ctx's end.
func (t *turns) yield(ctx context.Context, id int) (over bool, err error) {
	for {
		t.mu.Lock()
		enough, another := t.enough, t.holder != id
		if t.next == nil {
			t.next = make(chan struct{})
		}
		next := t.next
		t.mu.Unlock()
		if enough || another {
			return enough, nil
		}
		select {
		case <-next:
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
}

// granted records a grant; one to who had the lock last is no hand-over (it
// asked again before anybody else did). It reports whether there are enough;
// those who still wait then get their turn and leave too.
func (t *turns) granted(id int, token int64, now time.Time) (enough bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch overlap, regression := t.held, token != 0 && token <= t.token; {
	case t.wrong != nil && overlap:
		t.wrong.overlaps++
	case t.wrong != nil && regression:
		t.wrong.regressions++
	case overlap:
		return false, fmt.Errorf("bench: contenders %d and %d hold the lock at once", t.holder, id)
	case regression:
		return false, fmt.Errorf("bench: token %d was granted after token %d", token, t.token)
	}
	t.grants++
	if t.progress != nil {
		select {
		case t.progress <- struct{}{}:
		default: // one is enough
		}
	}
	if t.next != nil {
		close(t.next)
		t.next = nil
	}
	if t.patience > 0 && t.grants-t.asked[id] > t.patience {
		return false, fmt.Errorf("bench: contender %d of %d waited for %d grants to others", id, len(t.asked), t.grants-t.asked[id]-1)
	}
	t.held, t.token = true, token
	again := t.holder == id
	t.holder = id
	switch {
	case t.skip > 0:
		if t.skip--; t.skip == 0 {
			t.until = now.Add(t.within)
			t.count(-1)
		}
	case !t.enough:
		t.counted++
		if !again {
			t.took = append(t.took, now.Sub(t.released))
		}
		if len(t.took) == t.want || len(t.took) > 0 && now.After(t.until) {
			t.enough = true
			t.count(+1)
		}
	}
	return t.enough, nil
}

func (t *turns) count(sign int64) {
	if t.measuring != nil {
		t.measuring(sign)
	}
}

// failed counts a call that failed where that is counted, and returns err elsewhere,
// and where the contest is over anyway.
func (t *turns) failed(ctx context.Context, err error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.wrong == nil || ctx.Err() != nil {
		return err
	}
	t.wrong.errors++
	return nil
}

func (t *turns) asking(id int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.patience > 0 {
		t.asked[id] = t.grants
	}
}

func (t *turns) releasing() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.held = false
	t.released = time.Now()
}
