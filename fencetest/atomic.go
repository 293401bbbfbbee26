package fencetest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencelock/fencelock"
)

// Without it the fence is a look at the mark before the effect, and not with it: a
// holder that is stalled between the two writes over what its successor did. It is the
// fault that most fences written by hand have, and that no sequential test sees.
//
// The kit cannot stop the fence of others at a place of its choice, so it comes from
// three sides: a call is stalled wherever it asks its context, while the next holder
// does its work; in a duel, many calls of one holder are under way when the next
// begins; and in a storm all tokens are different and nobody waits for anybody.
//
// The successor does not only write what the old holder writes: a lock or a version of
// the row makes those two wait for each other, and says nothing about the mark, which
// all keys share.
func atomicCheck(t tb, r Resource) {
	rev := r.stalls(t, first)
	rev = r.duels(t, rev)
	r.storm(t, rev)
}

// stalled is a call of the old holder that is stopped in its middle.
type stalled struct {
	fenced
	insert bool // where nothing is stored yet: another statement, and often another fault
}

// stalled returns the calls that are worth a stall.
func (r Resource) stalled(ctx context.Context) []stalled {
	var all []stalled
	for _, f := range r.fenced() {
		if f.name == "Update" {
			// Stopped in its function, which runs between its read and its write. That
			// function asks the context that stops it; the resource is given another.
			f.call = func(stop context.Context, token fencelock.Token, key, value string) error {
				return r.Update(ctx, token, key, func(string, bool) (string, error) { return value, stop.Err() })
			}
		}
		all = append(all, stalled{f, false})
		if f.name == "Write" || f.name == "Update" {
			all = append(all, stalled{f, true})
		}
	}
	return all
}

// overtaking is the call that the successor makes meanwhile.
type overtaking struct {
	fenced
	same bool // at the key of the stalled call
}

func (r Resource) overtaking() []overtaking {
	all := []overtaking{{fenced{"Write", r.Write}, true}}
	for _, f := range r.fenced() {
		if f.name != "Update" {
			all = append(all, overtaking{f, false})
		}
	}
	return all
}

// fewStops is how many places of a call are tried for most pairs, where it has more. A
// fence that asks its context so often does so in one step as in the next.
const fewStops = 8

// stalls stops each call at the places where it asks its context.
func (r Resource) stalls(t tb, rev int64) int64 {
	t.Helper()
	patience := r.patience(t, rev)
	for _, old := range r.stalled(t.Context()) {
		rev++
		lone := mint(scope, rev, "lone")
		n, err := stops(t.Context(), func(ctx context.Context) error {
			return old.call(ctx, lone, old.key(rev), "lone")
		})
		if err != nil {
			t.Fatalf("%s with token %s must pass: it is newer than the mark; it returned: %v", old.name, lone, err)
		}
		for _, next := range r.overtaking() {
			tries := n
			if !next.same || old.insert {
				tries = min(n, fewStops)
			}
			for try := range tries {
				rev += 4
				if !r.overtake(t, old, next, 1+try*n/tries, rev, patience) {
					return rev
				}
			}
		}
	}
	return rev
}

// key returns where the call is made.
func (s stalled) key(rev int64) string {
	if s.insert {
		return fmt.Sprint("new", rev)
	}
	return key
}

// overtake stalls a call at one place, and has the successor make one meanwhile. It
// reports whether the fence held. The tokens are rev and those before it.
func (r Resource) overtake(t tb, old stalled, next overtaking, at, rev int64, patience time.Duration) bool {
	t.Helper()
	base, older, between, newer := mint(scope, rev-3, "base"), mint(scope, rev-2, "older"), mint(scope, rev-1, "between"), mint(scope, rev, "newer")
	where := old.key(rev)
	if !old.insert {
		r.write(t, base, where, "base", "it is newer than the mark")
	}
	other := "other"
	if next.same {
		other = where
	}
	var newerErr, readErr error
	var want string
	var found bool
	meanwhile := newMeanwhile(patience, func() {
		if newerErr = next.call(t.Context(), newer, other, "newer"); newerErr != nil {
			return
		}
		want, found = "newer", true
		if !next.same {
			want, found, readErr = r.Read(t.Context(), scope, where)
		}
	})
	olderErr := old.call(&stopContext{Context: t.Context(), at: at, stop: meanwhile.once}, older, where, "stalled")
	if !meanwhile.wait() {
		return true // it asked less often this time
	}
	if errors.Is(newerErr, fencelock.ErrStale) {
		t.Errorf("%s with token %s must pass: nobody has a newer one; it returned: %v", next.name, newer, newerErr)
	}
	if readErr != nil {
		t.Errorf("Read of key %q in scope %q must not fail; it returned: %v", where, scope, readErr)
	}
	if newerErr != nil || readErr != nil {
		return true
	}
	value, still := r.read(t, scope, where)
	if value != want || still != found {
		t.Errorf("%s of key %q with token %s was acknowledged when key %q had %s; but a %s with token %s that had begun before it, "+
			"and ended after it with the result %v, made it %s: check and effect are two steps",
			next.name, other, newer, where, shown(want, found), old.name, older, olderErr, shown(value, still))
		return false
	}
	if err := r.Write(t.Context(), between, where, "between"); !errors.Is(err, fencelock.ErrStale) {
		t.Errorf("Write with token %s must be refused: %s with token %s was acknowledged; but a %s with token %s that had begun before it, "+
			"and ended after it with the result %v, took the mark back; it returned: %v",
			between, next.name, newer, old.name, older, olderErr, err)
		return false
	}
	return true
}
