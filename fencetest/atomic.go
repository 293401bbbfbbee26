package fencetest

import (
	"context"
	"errors"

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
func atomicCheck(t tb, r Resource) {
	rev := r.stall(t, first)
	rev = r.duels(t, rev)
	r.storm(t, rev)
}

// stall stops a write, and then a delete, at each place where it asks its context.
func (r Resource) stall(t tb, rev int64) int64 {
	t.Helper()
	patience := r.patience(t, rev)
	type call func(ctx context.Context, token fencelock.Token) error
	calls := []struct {
		name string
		call call
	}{{"Write", func(ctx context.Context, token fencelock.Token) error { return r.Write(ctx, token, key, "stalled") }}}
	if r.Delete != nil {
		calls = append(calls, struct {
			name string
			call call
		}{"Delete", func(ctx context.Context, token fencelock.Token) error { return r.Delete(ctx, token, key) }})
	}
	for _, c := range calls {
		rev++
		lone := mint(scope, rev, "lone")
		n, err := stops(t.Context(), func(ctx context.Context) error { return c.call(ctx, lone) })
		if err != nil {
			t.Fatalf("%s with token %s must pass: it is newer than the mark; it returned: %v", c.name, lone, err)
		}
		for at := range n {
			rev += 2
			older, newer := mint(scope, rev, "older"), mint(scope, rev+1, "newer")
			rev++
			var newerErr error
			meanwhile := newMeanwhile(patience, func() { newerErr = r.Write(t.Context(), newer, key, "newer") })
			olderErr := c.call(&stopContext{Context: t.Context(), at: at + 1, stop: meanwhile.once}, older)
			if !meanwhile.wait() {
				break // it asked less often this time
			}
			if errors.Is(newerErr, fencelock.ErrStale) {
				t.Errorf("Write with token %s must pass: nobody has a newer one; it returned: %v", newer, newerErr)
			}
			if value, found := r.read(t, scope, key); newerErr == nil && (!found || value != "newer") {
				t.Errorf("Write with token %s was acknowledged, so it must be there; but a %s with token %s that had begun before it, "+
					"and ended after it with the result %v, made it %s: check and effect are two steps",
					newer, c.name, older, olderErr, shown(value, found))
				return rev
			}
		}
	}
	return rev
}
