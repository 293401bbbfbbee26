package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"
)

// process is what one process has of a lock service: connections, and locks over them.
type process interface {
	// contender returns one who takes the lock of that name. It is cheap: what is
	// dear, a connection or a session, belongs to the process, or to acquire where
	// the peer is that there is one for each lock.
	contender(name string) contender
	close() error
}

// peer is a lock service that is measured beside fencelock.
type peer struct {
	name    string
	promise string // what a grant means there, for who compares the figures
	connect func(ctx context.Context) (process, error)
}

// peersSize is how much is measured of each peer, in each run.
type peersSize struct {
	uncontended amount
	parallel    time.Duration
	handover    amount
	deadline    time.Duration // more than without peers
}

// errNoServer says that a server's program is not on this machine.
var errNoServer = errors.New("no such server here")

// startPeers starts a server for each peer whose program is here, and says on notes
// which are left out, and what the others promise. The servers end with stop, which
// is never nil.
func startPeers(ctx context.Context, endpoint, dir string, notes io.Writer) (peers []peer, stop func() error, err error) {
	var servers []*server
	stop = func() error {
		var errs []error
		for _, s := range servers {
			errs = append(errs, s.stop())
		}
		return errors.Join(errs...)
	}
	peers = etcdPeers(endpoint)
	for _, start := range []func(context.Context, string) (*server, []peer, error){
		startRedisAlways, startRedisOff, startZooKeeper, startPostgres,
	} {
		s, more, err := start(ctx, dir)
		if errors.Is(err, errNoServer) {
			fmt.Fprintf(notes, "bench: left out: %v\n", err)
			continue
		}
		if err != nil {
			return nil, stop, err
		}
		servers = append(servers, s)
		peers = append(peers, more...)
	}
	for _, p := range peers {
		fmt.Fprintf(notes, "bench: peer %s: %s\n", p.name, p.promise)
	}
	return peers, stop, nil
}

// measurePeers is one run of all peers, the first of which is fencelock. They take
// turns in each case.
func measurePeers(ctx context.Context, peers []peer, run int, s peersSize, out *figures) (err error) {
	processes := make([]process, len(peers))
	for i, p := range peers {
		if processes[i], err = p.connect(ctx); err != nil {
			return fmt.Errorf("bench: peer %s: %w", p.name, err)
		}
		defer func() { err = errors.Join(err, processes[i].close()) }()
	}
	if err := peersUncontended(ctx, peers, processes, run, s.uncontended, out); err != nil {
		return err
	}
	if err := peersParallel(ctx, peers, processes, run, s.parallel, out); err != nil {
		return err
	}
	for _, waiters := range []int{2, 8} {
		if err := peersHandover(ctx, peers, run, waiters, s.handover, out); err != nil {
			return err
		}
	}
	return nil
}

// report adds a case of all peers, and fencelock's ratio to each of the others.
func report(peers []peer, name, unit string, values []float64, out *figures) {
	for i, p := range peers {
		out.add("peer_"+p.name+"_"+name+"_"+suffix(unit), values[i], unit)
	}
	for i, p := range peers[1:] {
		out.add(name+"_vs_"+p.name, values[0]/values[i+1], "ratio")
	}
}

// suffix returns the unit as it stands in a figure's name.
func suffix(unit string) string {
	if unit == "cycles/s" {
		return "per_s"
	}
	return unit
}

func peersUncontended(ctx context.Context, peers []peer, processes []process, run int, much amount, out *figures) error {
	lanes := make([]*lane, len(peers))
	for i := range peers {
		lanes[i] = &lane{contender: processes[i].contender(fmt.Sprintf("peers-uncontended-%d", run))}
	}
	cycle := func(i int) (time.Duration, error) {
		took, err := lanes[i].cycle(ctx)
		if err != nil {
			return 0, fmt.Errorf("bench: peer %s: %w", peers[i].name, err)
		}
		return took, nil
	}
	for range warmupCycles {
		for i := range lanes {
			if _, err := cycle(i); err != nil {
				return err
			}
		}
	}
	// In a fixed order one would always come right after another lock in the same
	// server, which is awake then, and one after a server has slept.
	shuffled := rand.New(rand.NewPCG(uint64(run), 0))
	for n, start := 0, time.Now(); n == 0 || n < much.count && time.Since(start) < much.within; n++ {
		for _, i := range shuffled.Perm(len(lanes)) {
			took, err := cycle(i)
			if err != nil {
				return err
			}
			lanes[i].took = append(lanes[i].took, took)
		}
	}
	p50, p99 := make([]float64, len(lanes)), make([]float64, len(lanes))
	for i, l := range lanes {
		p50[i], p99[i] = microseconds(median(l.took)), microseconds(percentile(l.took, 99))
	}
	report(peers, "uncontended_p50", "us", p50, out)
	report(peers, "uncontended_p99", "us", p99, out)
	return nil
}

// peersNames are the names of the parallel case: several for each goroutine, so that
// nobody waits for a lock.
const peersNames = 4 * spread

func peersParallel(ctx context.Context, peers []peer, processes []process, run int, within time.Duration, out *figures) error {
	rates := make([]float64, len(peers))
	cycle := func(i int) func(context.Context, int) error {
		return func(ctx context.Context, n int) error {
			c := processes[i].contender(fmt.Sprintf("peers-parallel-%d-%d", run, n))
			if _, err := c.acquire(ctx); err != nil {
				return err
			}
			return c.release(ctx)
		}
	}
	// Not measured: pools open their connections, and ZooKeeper's lock makes a node
	// for each name at its first use.
	for i, p := range peers {
		if err := each(ctx, peersNames, cycle(i)); err != nil {
			return fmt.Errorf("bench: peer %s: %w", p.name, err)
		}
	}
	const parts = 4
	shuffled := rand.New(rand.NewPCG(uint64(run), 1))
	for range parts {
		for _, i := range shuffled.Perm(len(peers)) {
			rate, err := cyclesPerSecond(ctx, peersNames, within/parts, cycle(i))
			if err != nil {
				return fmt.Errorf("bench: peer %s: %w", peers[i].name, err)
			}
			rates[i] += rate / parts
		}
	}
	report(peers, "parallel", "cycles/s", rates, out)
	return nil
}

// peersHandover has each contender in a process of its own. All peers, and fencelock,
// go through the same loop, in which who released asks again only when another has
// been granted: a lock that polls would otherwise be taken by who released it, again
// and again, and there would be no hand-over to measure. Who is passed over is not
// checked, since a lock that polls promises no order; overlap is.
func peersHandover(ctx context.Context, peers []peer, run, waiters int, much amount, out *figures) error {
	means := make([]float64, len(peers))
	c := contest{waiters: waiters, hold: pacedHold, much: much, yield: true}
	for j := range peers {
		i := (run + j) % len(peers)
		mean, err := peerHandover(ctx, peers[i], fmt.Sprintf("peers-w%d-%d", waiters, run), c)
		if err != nil {
			return fmt.Errorf("bench: peer %s: %w", peers[i].name, err)
		}
		means[i] = milliseconds(mean)
	}
	report(peers, fmt.Sprintf("handover_hold20ms_w%d_mean", waiters), "ms", means, out)
	return nil
}

func peerHandover(ctx context.Context, p peer, name string, c contest) (mean time.Duration, err error) {
	contenders := make([]contender, c.waiters)
	for i := range contenders {
		own, errConnect := p.connect(ctx)
		if errConnect != nil {
			return 0, errConnect
		}
		defer func() { err = errors.Join(err, own.close()) }()
		contenders[i] = own.contender(name)
	}
	turns := newTurns(c)
	if err := hold(ctx, contenders, c, turns, nil); err != nil {
		return 0, err
	}
	return turns.mean(), nil
}
