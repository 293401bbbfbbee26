package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// handover measures how long a contended lock is nobody's: from just before
// one holder calls release to the next one's acquire returning. Each of w
// contenders has a client and a Locker (or a session) of its own, as w
// processes would, and there is no critical section: whoever has the lock gives
// it back at once and asks again.
func handover(ctx context.Context, endpoint, name string, k kind, w int, much amount) (time.Duration, error) {
	contenders := make([]contender, w)
	for i := range contenders {
		client, _, err := dial(endpoint)
		if err != nil {
			return 0, err
		}
		defer client.Close()
		if contenders[i], err = k(client, name); err != nil {
			return 0, err
		}
	}

	// The first grants obtain leases and open watches; they are not measured.
	turns := &turns{skip: 2 * w, want: much.count, until: time.Now().Add(much.within)}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for i, c := range contenders {
		wg.Go(func() {
			if err := contend(ctx, c, i, turns); err != nil {
				cancel(err) // the first one is kept
			}
		})
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return 0, err
	}

	var errs []error
	for _, c := range contenders {
		errs = append(errs, c.close())
	}
	if err := errors.Join(errs...); err != nil {
		return 0, fmt.Errorf("bench: close after the hand-overs: %w", err)
	}
	return mean(turns.took), nil
}

func contend(ctx context.Context, c contender, id int, turns *turns) error {
	for {
		token, err := c.acquire(ctx)
		now := time.Now()
		if err != nil {
			return fmt.Errorf("bench: contended acquire: %w", err)
		}
		enough, err := turns.granted(id, token, now)
		if err != nil {
			return err
		}
		turns.releasing()
		if err := c.release(ctx); err != nil {
			return fmt.Errorf("bench: contended release: %w", err)
		}
		if enough {
			return nil
		}
	}
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
	until      time.Time
	took       []time.Duration
}

// granted records a grant; one to who had the lock last is no hand-over (it
// asked again before anybody else did). It reports whether there are enough;
// those who still wait then get their turn and leave too.
func (t *turns) granted(id int, token int64, now time.Time) (enough bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.held {
		return false, fmt.Errorf("bench: contenders %d and %d hold the lock at once", t.holder, id)
	}
	if token != 0 && token <= t.token {
		return false, fmt.Errorf("bench: token %d was granted after token %d", token, t.token)
	}
	t.held, t.token = true, token
	again := t.holder == id
	t.holder = id
	switch {
	case t.skip > 0:
		t.skip--
	case len(t.took) < t.want && !again:
		t.took = append(t.took, now.Sub(t.released))
	}
	return len(t.took) == t.want || len(t.took) > 0 && now.After(t.until), nil
}

func (t *turns) releasing() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.held = false
	t.released = time.Now()
}
