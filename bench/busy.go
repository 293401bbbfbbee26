package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencelock/fencelock"
)

// busy is a machine without a moment to spare, and locks held on it.
type busy struct {
	locks int
	ttl   time.Duration
	time  time.Duration
}

// falseLosses counts the locks that are lost although etcd is well, because renewals
// come late where every core is busy. Each such loss ends work that nobody else can
// take over before the lease has expired.
func falseLosses(ctx context.Context, endpoint, name string, b busy, out *figures) error {
	client, _, err := dial(endpoint)
	if err != nil {
		return err
	}
	defer client.Close()
	locker, err := fencelock.New(client, fencelock.WithTTL(b.ttl))
	if err != nil {
		return err
	}
	locks := make([]*fencelock.Lock, b.locks)
	err = each(ctx, b.locks, func(ctx context.Context, i int) (err error) {
		locks[i], err = locker.Acquire(ctx, fmt.Sprintf("%s-%d", name, i))
		return err
	})
	if err != nil {
		return fmt.Errorf("bench: acquiring locks to be held on a busy machine: %w", err)
	}

	var over atomic.Bool
	var spinning sync.WaitGroup
	for range runtime.NumCPU() {
		spinning.Go(func() {
			for !over.Load() {
			}
		})
	}
	err = sleep(ctx, b.time)
	over.Store(true)
	spinning.Wait()
	if err != nil {
		return err
	}

	lost := 0
	for _, lock := range locks {
		if err := lock.Release(ctx); errors.Is(err, fencelock.ErrLost) {
			lost++
		} else if err != nil {
			return fmt.Errorf("bench: release after the busy time: %w", err)
		}
	}
	out.add("false_losses_2000", float64(lost), "locks")
	return locker.Close()
}
