// Command bench measures fencelock side by side with etcd's own
// concurrency.Mutex and with the bare requests, against an etcd server it
// starts as a process of its own, and once against a cluster of three. It prints
// one line a figure:
//
//	name value unit min=… max=… runs=…
//
// where value is the median over the runs. The ratios are formed inside each
// run, in which the cases take turns, so they depend far less on the machine
// than the latencies do.
//
// -quick measures less, within 50 s; -dir says where etcd's data is; -runs sets how
// many runs there are; -json prints an object a figure, with the value of each run;
// -svg draws a picture. -peers measures, in the same runs, locks in Redis, ZooKeeper
// and PostgreSQL whose servers are installed, and says on standard error which are
// not, and what each of them promises; a run then takes minutes.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
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
	floor       amount // deletions, a run
	paced       amount // the same, each after a pause
	many        int    // names and locks where many are measured; 0: none are
	cycles      amount // on a name with a history, and on a fresh one
	parallel    time.Duration
	members     amount    // hand-overs on three members, once
	busy        busy      // once
	peers       peersSize // with -peers
	deadline    time.Duration
}

type amount struct {
	count  int
	within time.Duration
}

var (
	full = size{
		runs:        5,
		uncontended: amount{1000, 10 * time.Second},
		handover:    amount{200, 10 * time.Second},
		floor:       amount{300, 5 * time.Second},
		paced:       amount{150, 6 * time.Second},
		many:        10_000,
		cycles:      amount{500, 5 * time.Second},
		parallel:    9 * time.Second,
		members:     amount{24_000, 4 * time.Minute},
		busy:        busy{locks: 2000, ttl: 5 * time.Second, time: time.Minute},
		peers:       peersSize{amount{1000, 15 * time.Second}, 3 * time.Second, amount{100, 6 * time.Second}, 30 * time.Minute},
		deadline:    20 * time.Minute,
	}
	// The times of the parts add up to 41 s at most.
	quick = size{
		runs:        5,
		uncontended: amount{300, 1200 * time.Millisecond},
		handover:    amount{200, 1600 * time.Millisecond},
		floor:       amount{300, 500 * time.Millisecond},
		peers:       peersSize{amount{100, 2 * time.Second}, 300 * time.Millisecond, amount{30, time.Second}, 8 * time.Minute},
		deadline:    48 * time.Second,
	}
)

func main() {
	if dir := os.Getenv(etcdDirEnv); dir != "" {
		exitOn(serveEtcd(dir, os.Stdin, os.Stdout))
		return
	}
	dir := flag.String("dir", "", "folder for etcd's data, the temporary one by default: the disk it is on decides most of the latencies")
	isQuick := flag.Bool("quick", false, "fewer figures and smaller runs; ends within 50 s")
	runs := flag.Int("runs", 0, "how many runs the medians are of, 5 by default")
	asJSON := flag.Bool("json", false, "print one JSON object a figure, with the value of each run")
	picture := flag.String("svg", "", "file for a picture of the figures; one that is there is replaced")
	withPeers := flag.Bool("peers", false, "measure locks in Redis, ZooKeeper and PostgreSQL too, where their servers are installed, and a session for each concurrency.Mutex; takes longer")
	flag.Parse()
	if flag.NArg() > 0 || *runs < 0 {
		fmt.Fprintln(os.Stderr, "bench: it takes flags only, and a number of runs that is not negative")
		flag.Usage()
		os.Exit(2)
	}
	s := full
	if *isQuick {
		s = quick
	}
	s.runs = cmp.Or(*runs, s.runs)
	show := (*figures).print
	if *asJSON {
		show = (*figures).printJSON
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if !*withPeers {
		s.peers = peersSize{}
	}
	exitOn(run(ctx, *dir, *picture, s, show))
}

func exitOn(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, dir, picture string, s size, show func(*figures, io.Writer) error) (err error) {
	ctx, cancel := context.WithTimeout(ctx, s.deadline+s.peers.deadline)
	defer cancel()
	etcd, err := startEtcd(dir, 1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, etcd.stop()) }()

	var peers []peer
	if s.peers != (peersSize{}) {
		var stop func() error
		peers, stop, err = startPeers(ctx, etcd.endpoint, dir, os.Stderr)
		defer func() { err = errors.Join(err, stop()) }()
		if err != nil {
			return err
		}
	}

	// After a failure too: what was measured before it says what led to it.
	var out figures
	defer func() { err = errors.Join(err, show(&out, os.Stdout)) }()
	for n := range s.runs {
		if err := measure(ctx, etcd.endpoint, n, s, &out); err != nil {
			return err
		}
		if len(peers) > 0 {
			if err := measurePeers(ctx, peers, n, s.peers, &out); err != nil {
				return err
			}
		}
	}
	if s.many > 0 {
		if err := falseLosses(ctx, etcd.endpoint, "busy", s.busy, &out); err != nil {
			return err
		}
		if err := threeMembers(ctx, dir, s.members, &out); err != nil {
			return err
		}
	}
	if picture != "" {
		return drawSVG(picture, &out)
	}
	return nil
}

// measure is one run of everything. Names are new in each: etcd keeps deleted
// keys in its index, and a run must not pay for the one before.
func measure(ctx context.Context, endpoint string, run int, s size, out *figures) error {
	fresh := func(part string) string { return fmt.Sprintf("%s-%d", part, run) }
	if err := uncontended(ctx, endpoint, fresh("uncontended"), s.uncontended, out); err != nil {
		return err
	}
	var least floors
	var err error
	if least.busy, err = floor(ctx, endpoint, fresh("floor"), s.floor, 0); err != nil {
		return err
	}
	out.add("floor_mean_ms", milliseconds(least.busy), "ms")
	contests := quickContests
	if s.many > 0 {
		if least.paced, err = floor(ctx, endpoint, fresh("floor-paced"), s.paced, pacedHold); err != nil {
			return err
		}
		out.add("floor_paced20ms_mean_ms", milliseconds(least.paced), "ms")
		contests = fullContests
	}
	for _, c := range contests {
		if err := compare(ctx, endpoint, fresh("handover-"+c.name), run, c, s.handover, least, out); err != nil {
			return err
		}
	}
	if s.many == 0 {
		return nil
	}
	if err := parallel(ctx, endpoint, fresh("parallel"), s.many, s.parallel, out); err != nil {
		return err
	}
	if err := held(ctx, endpoint, fresh("held"), run, s.many, out); err != nil {
		return err
	}
	if err := heldShort(ctx, endpoint, fresh("short"), s.many/5, out); err != nil {
		return err
	}
	if err := history(ctx, endpoint, fresh("history"), s.many, s.cycles, out); err != nil {
		return err
	}
	return inProcess(ctx, out)
}
