// Command bench measures fencelock side by side with etcd's own
// concurrency.Mutex and with the bare requests, against an etcd server it
// starts as a process of its own with its data in the temporary folder. It
// prints one line a figure:
//
//	name value unit min=… max=… runs=…
//
// where value is the median over the runs. The ratios are formed inside each
// run, in which the cases take turns, so they depend far less on the machine
// than the latencies do.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// size is how much is measured. An amount ends at its time as well: on a slow
// disk a measurement is coarser, not longer.
type size struct {
	runs        int
	uncontended amount // cycles of each case, a run
	handover    amount // hand-overs, a run and case
	deadline    time.Duration
}

type amount struct {
	count  int
	within time.Duration
}

var (
	full = size{
		runs:        15,
		uncontended: amount{1000, 10 * time.Second},
		handover:    amount{200, 10 * time.Second},
		deadline:    15 * time.Minute,
	}
	// The times of the parts add up to 38 s at most.
	quick = size{
		runs:        5,
		uncontended: amount{300, 1200 * time.Millisecond},
		handover:    amount{200, 1600 * time.Millisecond},
		deadline:    48 * time.Second,
	}
)

func main() {
	if dir := os.Getenv(etcdDirEnv); dir != "" {
		exitOn(serveEtcd(dir, os.Stdin, os.Stdout))
		return
	}
	isQuick := flag.Bool("quick", false, "fewer and smaller runs; ends within 50 s")
	flag.Parse()
	s := full
	if *isQuick {
		s = quick
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	exitOn(run(ctx, s))
}

func exitOn(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, s size) (err error) {
	ctx, cancel := context.WithTimeout(ctx, s.deadline)
	defer cancel()
	etcd, err := startEtcd()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, etcd.stop()) }()

	var out figures
	for n := range s.runs {
		if err := measure(ctx, etcd.endpoint, n, s, &out); err != nil {
			return err
		}
	}
	return out.print(os.Stdout)
}

// measure is one run of everything. Names are new in each: etcd keeps deleted
// keys in its index, and a run must not pay for the one before.
func measure(ctx context.Context, endpoint string, run int, s size, out *figures) error {
	if err := uncontended(ctx, endpoint, fmt.Sprintf("uncontended-%d", run), s.uncontended, out); err != nil {
		return err
	}
	for _, w := range []int{2, 8} {
		var took [2]time.Duration
		kinds := [2]kind{newFencelock, newMutex}
		for i := range kinds {
			which := (i + run) % len(kinds) // nobody is always first
			var err error
			took[which], err = handover(ctx, endpoint, fmt.Sprintf("handover-%d-%d", w, run), kinds[which], w, s.handover)
			if err != nil {
				return err
			}
		}
		ours, mutex := milliseconds(took[0]), milliseconds(took[1])
		out.add(fmt.Sprintf("handover_w%d_vs_mutex", w), ours/mutex, "ratio")
		out.add(fmt.Sprintf("handover_w%d_mean_ms", w), ours, "ms")
		out.add(fmt.Sprintf("mutex_handover_w%d_mean_ms", w), mutex, "ms")
	}
	return nil
}
