package main

import (
	"math"
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/fencelock/fencelock/internal/integration/resource"
)

// history is what happened in one phase, put together from its records.
type history struct {
	requests  []*request // to the resource, in the order of their invocation
	holds     []*tenure  // in the order of their grants
	peaks     []int64    // the largest revision of a token up to each of them
	registers []*shelf   // in the order in which they were filled
	deletions map[int64]time.Duration
	stalls    map[string][]span // by worker
	from, to  time.Duration     // when the workers worked
	unlocked  int               // acquires that got no lock
	faults    int
	left      left
	trouble   []string // what no record should say

	verdicts func() []verdict // of the search for an order, which is made once
}

func newHistory() *history {
	h := &history{deletions: map[int64]time.Duration{}, stalls: map[string][]span{}}
	h.verdicts = sync.OnceValue(func() []verdict { return linearize(h) })
	return h
}

// never is a time that has not come.
const never = time.Duration(math.MaxInt64)

type span struct{ from, to time.Duration }

// request is one request to the resource.
type request struct {
	record
	answered       time.Duration // never without an answer
	outcome        outcome
	value          string // that was read
	token, highest stamp
}

// tenure is one hold of the lock, as its holder saw it.
type tenure struct {
	worker  string
	token   stamp
	invoked time.Duration // the acquire
	granted time.Duration
	alive   time.Duration // the last look that found it held
	told    time.Duration // of its loss; never if it was not
	reason  string
	ended   time.Duration // never if it did not
	kept    bool          // up to its release, says the library
	robber  string        // who took its key or lease, if that was not the library
}

// Those who take a lock from its holder.
const (
	byNemesis = "the nemesis"
	byLeader  = "a leader that was stopped"
)

// shelf is one register in the end.
type shelf struct {
	name      string
	value     string
	readFrom  time.Duration
	readTo    time.Duration
	decisions []resource.Entry
}

// acknowledged reports whether the resource said that it wrote.
func (r *request) acknowledged() bool { return r.writes() && r.outcome == done }

func (r *request) writes() bool { return r.Act == write || r.Act == overwrite }

// stalledIn reports whether the worker's process did not run at some time
// between the two.
func (h *history) stalledIn(worker string, from, to time.Duration) bool {
	return slices.ContainsFunc(h.stalls[worker], func(s span) bool { return s.from < to && from < s.to })
}

// successor returns the first who was granted a larger token than k has, nil
// without one. Mostly it is the next in the list.
func (h *history) successor(k *tenure) *tenure {
	i := sort.Search(len(h.peaks), func(i int) bool { return h.peaks[i] > k.token.revision })
	if i == len(h.peaks) {
		return nil
	}
	return h.holds[i]
}
