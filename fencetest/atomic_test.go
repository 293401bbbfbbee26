package fencetest

import (
	"context"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/fencelock/fencelock"
)

// A check that is one step before the effect is found every time, also where the step
// between is as small as it can be, and where the fence does not ask its context. The
// races alone must find it: stalls, which need no luck, are left out.
func TestRacesFindEveryCheckThenWrite(t *testing.T) {
	runs := 100
	switch {
	case testing.Short():
		runs = 5
	case runtime.GOMAXPROCS(0) == 1:
		runs = 20 // there it takes a preemption at the right place, and ten times as long
	}
	gap := func(gap func(), before bool) func() Resource {
		return with(func(s *store) { s.gap, s.gapBefore = gap, before })
	}
	for name, build := range map[string]func() Resource{
		"a mutex given back after the check":                gap(func() {}, true),
		"a mutex given back after the mark":                 gap(func() {}, false),
		"the processor given away":                          gap(runtime.Gosched, false),
		"a round trip between":                              gap(func() { time.Sleep(200 * time.Microsecond) }, false),
		"an atomic mark, compared and swapped":              func() Resource { return atomicMark(true) },
		"an atomic mark, compared and then stored":          func() Resource { return atomicMark(false) },
		"a read lock for the check and another for writing": readLock,
	} {
		t.Run(name, func(t *testing.T) { racesFind(t, runs, build) })
	}
}

// racesFind has the races find a fault every time, but for one in twenty where
// something else has the processors and nothing races.
func racesFind(t *testing.T, runs int, build func() Resource) {
	missed := 0
	for range runs {
		rec := &recorder{ctx: t.Context()}
		r := build()
		done := make(chan struct{})
		go func() {
			defer close(done)
			if rev := r.duels(rec, first); !rec.failed() {
				r.storm(rec, rev)
			}
		}()
		<-done
		if !rec.failed() {
			missed++
		}
	}
	assert.LessOrEqual(t, missed, runs/20, "of %d", runs)
}

// So is a row that is guarded well, and a mark that is not guarded with it. On one
// processor some of these take a preemption between two instructions, and the race is
// over before it comes; a stall is what finds them there.
func TestRacesFindAMarkApartFromTheRow(t *testing.T) {
	if runtime.GOMAXPROCS(0) == 1 {
		if os.Getenv("CI") == "true" {
			t.Fatal("nothing races on one processor; give the tests two")
		}
		t.Skip("nothing races on one processor")
	}
	runs := 100
	if testing.Short() {
		runs = 5
	}
	for name, build := range map[string]func() Resource{
		"a lock for each key, the processor given away": func() Resource { return lockPerKey(runtime.Gosched, false) },
		"a lock for each key":                           func() Resource { return lockPerKey(func() {}, false) },
		"a lock for each key, and the mark goes back":   func() Resource { return lockPerKey(func() {}, true) },
		"Update compares and swaps the row":             but(updateSwaps),
		"Delete compares and swaps the row":             but(deleteSwaps(nothing)),
		"an insert apart from the check":                but(insertsApart(nothing)),
		"Advance compares, then sets":                   but(advanceSets(nothing)),
		"Delete sets the mark late":                     but(deleteMarksLate(nothing)),
	} {
		t.Run(name, func(t *testing.T) { racesFind(t, runs, build) })
	}
}

// A stall finds it without any luck: in one call, if the fence asks its context between
// the check and the effect.
func TestStallFindsItAtOnce(t *testing.T) {
	build := func(between func(context.Context) error) Resource {
		s := newStore()
		r := s.resource()
		r.Write = func(ctx context.Context, token fencelock.Token, key, value string) error {
			if err := r.Advance(ctx, token); err != nil {
				return err
			}
			if err := between(ctx); err != nil {
				return err
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			s.put(token.Name(), key, value)
			return nil
		}
		return r
	}
	for range 20 {
		rec := &recorder{ctx: t.Context()}
		build(context.Context.Err).stalls(rec, first)
		assert.Contains(t, rec.String(), "check and effect are two steps")
	}
}

// atomicMark is a fence without a lock for its mark. Two holders can be between check
// and effect, and the mark itself can go back if it is not swapped.
func atomicMark(swap bool) Resource {
	var highest atomic.Int64
	var mu sync.Mutex
	rows := make(map[string]string)
	return Resource{
		Write: func(_ context.Context, token fencelock.Token, key, value string) error {
			for {
				seen := highest.Load()
				if token.Revision() < seen {
					return fencelock.ErrStale
				}
				if !swap {
					highest.Store(token.Revision())
				} else if !highest.CompareAndSwap(seen, token.Revision()) {
					continue
				}
				mu.Lock()
				defer mu.Unlock()
				rows[key] = value
				return nil
			}
		},
		Read: func(_ context.Context, _, key string) (string, bool, error) {
			mu.Lock()
			defer mu.Unlock()
			value, found := rows[key]
			return value, found, nil
		},
	}
}

// readLock is a fence that checks under a read lock, and takes another one to write.
func readLock() Resource {
	var mu sync.RWMutex
	var highest int64
	rows := make(map[string]string)
	return Resource{
		Write: func(_ context.Context, token fencelock.Token, key, value string) error {
			mu.RLock()
			stale := token.Revision() < highest
			mu.RUnlock()
			if stale {
				return fencelock.ErrStale
			}
			mu.Lock()
			defer mu.Unlock()
			highest = token.Revision()
			rows[key] = value
			return nil
		},
		Read: func(_ context.Context, _, key string) (string, bool, error) {
			mu.RLock()
			defer mu.RUnlock()
			value, found := rows[key]
			return value, found, nil
		},
	}
}
