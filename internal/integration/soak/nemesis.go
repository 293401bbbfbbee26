package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// nemesis does harm, one fault after the other, as its random numbers say. Three
// are at work in a trial, so that one fault can fall into another: two on the
// workers, and one on etcd.
type nemesis struct {
	*ground
	fleet  *fleet
	random *rand.Rand
	faults []fault
}

// fault is one kind of harm.
type fault struct {
	name string
	// strike does it, once, and makes it good before it returns. It returns
	// early when ctx ends.
	strike func(n *nemesis, ctx context.Context)
}

// newNemesis returns one that harms what it is named after, with those of its
// faults which are wanted.
func newNemesis(g *ground, f *fleet, of string, faults []fault, wanted []string) *nemesis {
	n := &nemesis{ground: g, fleet: f, random: newRandom(g.seed, string(f.phase)+", nemesis of "+of)}
	for _, can := range faults {
		if slices.Contains(wanted, can.name) {
			n.faults = append(n.faults, can)
		}
	}
	return n
}

// rage does harm until ctx ends.
func (n *nemesis) rage(ctx context.Context) {
	for len(n.faults) > 0 && ctx.Err() == nil {
		n.faults[n.random.IntN(len(n.faults))].strike(n, ctx)
		sleep(ctx, between(n.random, ttl/10, ttl*6/10))
	}
}

// during does harm for a while, and takes it down.
func (n *nemesis) during(ctx context.Context, what string, d time.Duration, begin, end func()) {
	n.ledger.add(record{Kind: struck, Phase: n.fleet.phase, Note: fmt.Sprintf("%s for %v", what, d)})
	begin()
	sleep(ctx, d)
	end()
	n.ledger.add(record{Kind: healed, Phase: n.fleet.phase, Note: what})
}

// once takes down what is done in a moment.
func (n *nemesis) once(what string, do func() error) {
	n.ledger.add(record{Kind: struck, Phase: n.fleet.phase, Note: what})
	if err := do(); err != nil {
		what += ": " + err.Error()
	}
	n.ledger.add(record{Kind: healed, Phase: n.fleet.phase, Note: what})
}

// outage is how long what cuts a worker off lasts: some time longer than its
// lease, or twice as long.
func (n *nemesis) outage() time.Duration {
	if n.random.IntN(2) == 0 {
		return ttl + 600*time.Millisecond
	}
	return 2 * ttl
}

// faultNames returns the names of all faults.
func faultNames() []string {
	var names []string
	for _, f := range slices.Concat(workerFaults, etcdFaults) {
		names = append(names, f.name)
	}
	return names
}

// parseFaults reads a list of names, separated by commas; an empty one is all.
func parseFaults(list string) ([]string, error) {
	if list == "" {
		return faultNames(), nil
	}
	wanted := strings.Split(list, ",")
	for _, name := range wanted {
		if !slices.Contains(faultNames(), name) {
			return nil, fmt.Errorf("soak: no fault %q; there are %s", name, strings.Join(faultNames(), ", "))
		}
	}
	return wanted, nil
}
