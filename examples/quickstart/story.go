package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/examples/internal/link"
	"github.com/fencelock/fencelock/examples/internal/timeline"
	"golang.org/x/sync/errgroup"
)

const lockName = "account/alice"

var nobody fencelock.Token

// ending is what the story has to show, beside what is in the file.
type ending struct {
	aCancelled time.Time // when A's context ended
	bGranted   time.Time // when B got the lock
}

func play(ctx context.Context, out io.Writer, a, b *worker, way *link.Link) (ending, error) {
	say := timeline.New(out).Say
	aWrote, bWrote := make(chan struct{}), make(chan struct{})
	aCancelled, bGranted := make(chan time.Time, 1), make(chan time.Time, 1)
	g, ctx := errgroup.WithContext(ctx)

	g.Go(func() error {
		say("A", nobody, "asks for the lock")
		err := a.locker.Do(ctx, lockName, func(held context.Context, token fencelock.Token) error {
			say("A", token, "has the lock")
			context.AfterFunc(held, func() {
				aCancelled <- time.Now()
				if lost, ok := errors.AsType[*fencelock.LostError](context.Cause(held)); ok {
					say("A", token, "context cancelled: the lock is lost (%s), another may get it soon", lost.Reason)
				}
			})
			balance, err := deposit(held, a.fence, token, a.name, 100)
			if err != nil {
				return err
			}
			say("A", token, "deposits 100: the balance is %d", balance)
			close(aWrote)
			way.Cut()
			say("A", token, "link to etcd is cut; A does not notice, and goes on working")

			// A worker should stop when held is cancelled. A does not look. It need not
			// be badly written for that: a process that is paused, or a write that is
			// late on its way, does the same.
			err = await(ctx, bWrote)
			way.Restore()
			if err != nil {
				return err
			}
			_, err = deposit(context.WithoutCancel(held), a.fence, token, a.name, 100)
			switch {
			case err == nil:
				say("A", token, "deposits 100, late: APPLIED")
			case errors.Is(err, fencelock.ErrStale):
				say("A", token, "deposits 100, late: REFUSED, a newer token was seen")
			}
			return err
		})
		if !errors.Is(err, fencelock.ErrLost) {
			return fmt.Errorf("worker A should have lost the lock: %w", err)
		}
		say("A", nobody, "is told by Do: the lock was lost, a stale write was refused: %t", errors.Is(err, fencelock.ErrStale))
		return nil
	})

	g.Go(func() error {
		if err := await(ctx, aWrote); err != nil {
			return err
		}
		say("B", nobody, "asks for the lock, and waits until A's lease has expired")
		return b.locker.Do(ctx, lockName, func(held context.Context, token fencelock.Token) error {
			bGranted <- time.Now()
			say("B", token, "has the lock, and a larger token")
			balance, err := deposit(held, b.fence, token, b.name, 10)
			if err != nil {
				return err
			}
			say("B", token, "deposits 10: the balance is %d", balance)
			close(bWrote)
			return nil
		})
	})

	if err := g.Wait(); err != nil {
		return ending{}, err
	}
	return ending{aCancelled: <-aCancelled, bGranted: <-bGranted}, nil
}

func await(ctx context.Context, event <-chan struct{}) error {
	select {
	case <-event:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
