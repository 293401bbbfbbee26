package fencetest_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/fencetest"
)

// sweeper is a service that calls a Locker, and declares what it needs of it.
type sweeper struct {
	locker interface {
		Do(ctx context.Context, name string, fn func(ctx context.Context, token fencelock.Token) error, opts ...fencelock.LockOption) error
	}
	sweep func(ctx context.Context, token fencelock.Token) error
}

// Sweep sweeps, unless another replica does or etcd cannot be reached; then the next
// tick is soon enough.
func (s *sweeper) Sweep(ctx context.Context) (string, error) {
	err := s.locker.Do(ctx, "sweep", s.sweep, fencelock.MaxWait(0))
	switch {
	case errors.Is(err, fencelock.ErrLost):
		return "interrupted", err
	case errors.Is(err, fencelock.ErrHeld):
		return "left to another", nil
	case errors.Is(err, fencelock.ErrNotAcquired):
		return "put off", nil
	case err != nil:
		return "failed", err
	}
	return "swept", nil
}

// What a unit test of a caller asks: does it run, does it leave the work to another
// holder, does it survive an outage, and does it stop when the lock is lost.
func ExampleLocker() {
	ctx := context.Background()
	locker := fencetest.NewLocker()
	var store fencelock.Fence // a resource that checks the token
	s := &sweeper{locker: locker, sweep: func(_ context.Context, token fencelock.Token) error {
		return store.Do(token, func() error { return nil })
	}}

	fmt.Println(s.Sweep(ctx))

	_ = locker.Do(ctx, "sweep", func(context.Context, fencelock.Token) error { // another replica
		fmt.Println(s.Sweep(ctx))
		return nil
	})

	locker.Refuse("sweep", context.DeadlineExceeded)
	fmt.Println(s.Sweep(ctx))
	locker.Refuse("sweep", nil)

	s.sweep = func(ctx context.Context, token fencelock.Token) error {
		if !locker.Lose("sweep", fencelock.LostExpired) {
			return errors.New("there was nothing to lose")
		}
		// The next holder comes while this one still runs.
		_ = locker.Do(context.Background(), "sweep", func(_ context.Context, next fencelock.Token) error {
			return store.Advance(next)
		})
		fmt.Println("told:", ctx.Err())
		return store.Do(token, func() error { return nil }) // late
	}
	result, err := s.Sweep(ctx)
	fmt.Println(result, errors.Is(err, fencelock.ErrLost), errors.Is(err, fencelock.ErrStale))

	// Output:
	// swept <nil>
	// left to another <nil>
	// put off <nil>
	// told: context canceled
	// interrupted true true
}

// A leader's second term, without a sleep: Lead runs in the background, and the callback
// reports each term.
func ExampleLocker_Lose() {
	locker := fencetest.NewLocker()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	terms := make(chan fencelock.Token)
	result := make(chan error)
	go func() {
		result <- locker.Lead(ctx, "leader", func(ctx context.Context, token fencelock.Token) error {
			terms <- token
			<-ctx.Done()
			return ctx.Err()
		})
	}()

	first := <-terms
	fmt.Println("lost:", locker.Lose("leader", fencelock.LostExpired))
	second := <-terms
	fmt.Println("newer:", second.Compare(first) > 0)
	cancel()
	fmt.Println(<-result)

	// Output:
	// lost: true
	// newer: true
	// context canceled
}
