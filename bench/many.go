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
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// spread is how many goroutines use many names at once.
const spread = 64

// parallel measures cycles a second of spread goroutines on many names: of one Locker,
// of the least requests there are, and of the very requests that a Locker sends,
// without one. They take turns, a part of the time each. With all processors busy this
// is what a cycle costs on both sides, and the last of the three tells what of that is
// in the requests and what in the library.
func parallel(ctx context.Context, endpoint, name string, names int, within time.Duration, out *figures) error {
	client, _, err := dial(endpoint)
	if err != nil {
		return err
	}
	defer client.Close()
	locker, err := fencelock.New(client, fencelock.WithTTL(leaseTTL))
	if err != nil {
		return err
	}
	lease, err := client.Grant(ctx, int64(leaseTTL/time.Second))
	if err != nil {
		return fmt.Errorf("bench: etcd lease: %w", err)
	}
	ours := func(ctx context.Context, i int) error {
		held, err := locker.Acquire(ctx, fmt.Sprintf("%s-%d", name, i))
		if err != nil {
			return err
		}
		return held.Release(ctx)
	}
	raw := func(ctx context.Context, i int) error {
		c := &rawContender{client: client, lease: lease.ID, key: fmt.Sprintf("raw/%s-%d", name, i)}
		if _, err := c.acquire(ctx); err != nil {
			return err
		}
		return c.release(ctx)
	}
	like := func(ctx context.Context, i int) error {
		c := &likeContender{client: client, lease: lease.ID, queue: fmt.Sprintf("like/%s-%d/", name, i)}
		if _, err := c.acquire(ctx); err != nil {
			return err
		}
		return c.release(ctx)
	}
	const parts = 4
	cases := []func(context.Context, int) error{ours, raw, like}
	rates := make([]float64, len(cases))
	for part := range parts {
		for j := range cases {
			which := (part + j) % len(cases)
			rate, err := cyclesPerSecond(ctx, names, within/time.Duration(len(cases)*parts), cases[which])
			if err != nil {
				return err
			}
			rates[which] += rate / parts
		}
	}
	if err := locker.Close(); err != nil {
		return fmt.Errorf("bench: close after the parallel cycles: %w", err)
	}
	out.add("parallel_10k_vs_raw", rates[0]/rates[1], "ratio")
	out.add("parallel_10k_requests_vs_raw", rates[2]/rates[1], "ratio")
	out.add("parallel_10k_vs_requests", rates[0]/rates[2], "ratio")
	out.add("parallel_10k_per_s", rates[0], "cycles/s")
	out.add("raw_parallel_10k_per_s", rates[1], "cycles/s")
	return nil
}

// cyclesPerSecond has spread goroutines go through names, each through those that are
// its own, so that no two use one at once.
func cyclesPerSecond(ctx context.Context, names int, within time.Duration, cycle func(context.Context, int) error) (float64, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var done atomic.Int64
	var wg sync.WaitGroup
	start := time.Now()
	for i := range spread {
		wg.Go(func() {
			for n := i; time.Since(start) < within && ctx.Err() == nil; n += spread {
				if err := cycle(ctx, n%(names/spread*spread)); err != nil {
					cancel(fmt.Errorf("bench: parallel cycle: %w", err))
					return
				}
				done.Add(1)
			}
		})
	}
	wg.Wait()
	return float64(done.Load()) / time.Since(start).Seconds(), context.Cause(ctx)
}

// held measures what it costs to hold many locks with one Locker: how fast they are
// acquired, beside concurrency.Mutex on one session, and then memory, goroutines and
// renewals.
func held(ctx context.Context, endpoint, name string, run, n int, out *figures) error {
	client, traffic, err := dial(endpoint)
	if err != nil {
		return err
	}
	defer client.Close()
	// Nobody is always first: the second has more in etcd's history, and the processors
	// of some machines are slower when they have been busy for a while.
	var theirs time.Duration
	mutexes := func() (err error) {
		theirs, err = acquireMutexes(ctx, client, name, n)
		return err
	}
	if run%2 == 0 {
		if err := mutexes(); err != nil {
			return err
		}
	}

	locker, err := fencelock.New(client, fencelock.WithTTL(heldTTL))
	if err != nil {
		return err
	}
	first, err := locker.Acquire(ctx, name) // its lease and its watch are not what is measured
	if err != nil {
		return fmt.Errorf("bench: acquire: %w", err)
	}
	locks, names := make([]*fencelock.Lock, n), namesOf(name, n)
	bytes, goroutines := memory(), runtime.NumGoroutine()
	start := time.Now()
	err = each(ctx, n, func(ctx context.Context, i int) (err error) {
		locks[i], err = locker.Acquire(ctx, names[i])
		return err
	})
	if err != nil {
		return fmt.Errorf("bench: acquiring many locks: %w", err)
	}
	ours := time.Since(start)

	// Longer than a second, after which a lock that is held is watched.
	if err := sleep(ctx, 2*time.Second); err != nil {
		return err
	}
	out.add("held_long_bytes", float64(memory()-bytes)/float64(n), "bytes")
	out.add("held_long_goroutines", float64(runtime.NumGoroutine()-goroutines)/float64(n), "goroutines")
	renewals := traffic.renewals.Load()
	if err := sleep(ctx, heldTTL); err != nil {
		return err
	}
	out.add("held_long_keepalives_per_ttl", float64(traffic.renewals.Load()-renewals), "renewals")

	if err := each(ctx, n, func(ctx context.Context, i int) error { return locks[i].Release(ctx) }); err != nil {
		return fmt.Errorf("bench: releasing many locks: %w", err)
	}
	if err := first.Release(ctx); err != nil {
		return err
	}
	if err := locker.Close(); err != nil {
		return fmt.Errorf("bench: close after many locks: %w", err)
	}
	if run%2 != 0 {
		if err := mutexes(); err != nil {
			return err
		}
	}
	out.add("acquire_10k_vs_mutex", theirs.Seconds()/ours.Seconds(), "ratio")
	out.add("acquire_10k_per_s", float64(n)/ours.Seconds(), "locks/s")
	return nil
}

// acquireMutexes measures how long it takes to acquire n mutexes on one session.
func acquireMutexes(ctx context.Context, client *clientv3.Client, name string, n int) (time.Duration, error) {
	session, err := concurrency.NewSession(client, concurrency.WithTTL(int(leaseTTL/time.Second)))
	if err != nil {
		return 0, fmt.Errorf("bench: etcd session: %w", err)
	}
	mutexes := make([]*concurrency.Mutex, n)
	runtime.GC() // as the locks begin
	start := time.Now()
	err = each(ctx, n, func(ctx context.Context, i int) error {
		mutexes[i] = concurrency.NewMutex(session, fmt.Sprintf("mutex/%s-%d", name, i))
		return mutexes[i].Lock(ctx)
	})
	if err != nil {
		return 0, fmt.Errorf("bench: acquiring many mutexes: %w", err)
	}
	took := time.Since(start)
	if err := session.Close(); err != nil {
		return 0, fmt.Errorf("bench: closing the session of many mutexes: %w", err)
	}
	return took, nil
}

// heldTTL is the TTL under which renewals are counted.
const heldTTL = 5 * time.Second

// heldShort measures memory and goroutines of locks that have just been acquired, as
// most are released before they are ever watched. It takes as many as can be had in a
// time that is below that.
func heldShort(ctx context.Context, endpoint, name string, n int, out *figures) error {
	client, _, err := dial(endpoint)
	if err != nil {
		return err
	}
	defer client.Close()
	locker, err := fencelock.New(client, fencelock.WithTTL(leaseTTL))
	if err != nil {
		return err
	}
	first, err := locker.Acquire(ctx, name)
	if err != nil {
		return fmt.Errorf("bench: acquire: %w", err)
	}
	// The goroutines that send the requests are as many as ask at once, not as many
	// as locks are held, and end a second after.
	err = each(ctx, 4*spread, func(ctx context.Context, i int) error {
		lock, err := locker.Acquire(ctx, fmt.Sprintf("%s-before-%d", name, i))
		if err != nil {
			return err
		}
		return lock.Release(ctx)
	})
	if err != nil {
		return fmt.Errorf("bench: cycles before: %w", err)
	}
	for fits := false; !fits; n /= 2 {
		if n == 0 {
			return errors.New("bench: this machine takes too long to acquire even one lock; held_short_* cannot be measured")
		}
		if fits, err = heldShortly(ctx, locker, fmt.Sprintf("%s-%d", name, n), n, out); err != nil {
			return err
		}
	}
	if err := first.Release(ctx); err != nil {
		return err
	}
	return locker.Close()
}

// heldShortly is one attempt with n locks. It reports false, and no figure, if they
// took longer than the time after which a held lock is watched.
func heldShortly(ctx context.Context, locker *fencelock.Locker, name string, n int, out *figures) (fits bool, err error) {
	locks, names := make([]*fencelock.Lock, n), namesOf(name, n)
	bytes, goroutines := memory(), runtime.NumGoroutine()
	start := time.Now()
	err = each(ctx, n, func(ctx context.Context, i int) (err error) {
		locks[i], err = locker.Acquire(ctx, names[i])
		return err
	})
	if err != nil {
		return false, fmt.Errorf("bench: acquiring locks: %w", err)
	}
	more, running := memory()-bytes, runtime.NumGoroutine()-goroutines
	if fits = time.Since(start) < 500*time.Millisecond; fits {
		out.add("held_short_bytes", float64(more)/float64(n), "bytes")
		out.add("held_short_goroutines", float64(running)/float64(n), "goroutines")
	}
	if err := each(ctx, n, func(ctx context.Context, i int) error { return locks[i].Release(ctx) }); err != nil {
		return false, fmt.Errorf("bench: releasing locks: %w", err)
	}
	return fits, nil
}

// history measures a cycle on a name with many earlier cycles, and on a fresh one, in
// turns. etcd keeps what was deleted until it compacts.
func history(ctx context.Context, endpoint, name string, earlier int, much amount, out *figures) error {
	client, _, err := dial(endpoint)
	if err != nil {
		return err
	}
	defer client.Close()
	locker, err := fencelock.New(client, fencelock.WithTTL(leaseTTL))
	if err != nil {
		return err
	}
	old := &fencelockContender{locker: locker, name: name + "-old"}
	for range earlier {
		if _, err := (&lane{contender: old}).cycle(ctx); err != nil {
			return err
		}
	}
	var took [2][]time.Duration
	for i, start := 0, time.Now(); i < much.count && time.Since(start) < much.within; i++ {
		fresh := &fencelockContender{locker: locker, name: fmt.Sprintf("%s-fresh-%d", name, i)}
		for j := range 2 {
			which := (i + j) % 2
			t, err := (&lane{contender: []contender{old, fresh}[which]}).cycle(ctx)
			if err != nil {
				return err
			}
			took[which] = append(took[which], t)
		}
	}
	out.add("history_10k_vs_fresh", microseconds(median(took[0]))/microseconds(median(took[1])), "ratio")
	return locker.Close()
}

// each calls fn for 0 to n-1 from spread goroutines, and returns the first error.
func each(ctx context.Context, n int, fn func(context.Context, int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var wg sync.WaitGroup
	for range spread {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && ctx.Err() == nil; i = int(next.Add(1)) - 1 {
				if err := fn(ctx, i); err != nil {
					cancel(err)
				}
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

// namesOf returns the names of n locks. They are the caller's memory, not the locks'.
func namesOf(name string, n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("%s-%d", name, i)
	}
	return names
}

// memory returns the bytes in use: what is reachable, and the stacks.
func memory() int64 {
	runtime.GC()
	runtime.GC() // what a finalizer or a pool kept over the first
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
