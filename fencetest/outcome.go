package fencetest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencelock/fencelock"
)

// Without it a holder whose write got no answer cannot find out by doing it again: the
// repetition is refused, or the half that was done stands in its way. The context ends
// at each place where the resource asks it.
func retryPasses(t tb, r Resource) {
	late, token := mint(scope, first, "late"), mint(scope, first+1, "h0")
	for range 3 {
		r.write(t, token, key, "same", "it is the same write again")
		r.holds(t, scope, key, "same", "the write was acknowledged")
	}
	n, err := stops(t.Context(), func(ctx context.Context) error { return r.Write(ctx, token, key, "same") })
	if err != nil {
		t.Fatalf("Write with token %s must pass: it is the mark; it returned: %v", token, err)
	}
	for at := range n {
		last := token
		// Newer each time, so that the mark can be raised and the effect missing.
		token = mint(scope, first+2+at, fmt.Sprint("h", at+1))
		value := fmt.Sprint("v", at)
		before, _ := r.read(t, scope, key)
		ctx, cancel := context.WithCancel(t.Context())
		err := r.Write(&stopContext{Context: ctx, at: at + 1, stop: cancel}, token, key, value)
		cancel()
		switch {
		case err == nil:
			r.holds(t, scope, key, value, "the write was acknowledged, though its context ended in the middle of it")
		case errors.Is(err, fencelock.ErrStale), errors.Is(err, fencelock.ErrNoToken):
			t.Errorf("Write with token %s whose context ended in the middle of it must not be called a refusal: nobody has taken over; it returned: %v", token, err)
		default:
			if now, found := r.read(t, scope, key); !found || now != before && now != value {
				t.Errorf("Write with token %s whose context ended in the middle of it must be applied as a whole or not at all; %q became %s", token, before, shown(now, found))
			}
		}
		// Before anything raises the mark again. Only the refusal is looked at, for what
		// was cut off can still be under way.
		if err := r.Write(t.Context(), late, key, "late"); !errors.Is(err, fencelock.ErrStale) {
			t.Errorf("Write with token %s must be refused: a newer token was seen before the context of a write ended in the middle of it; it returned: %v", late, err)
		}
		r.write(t, token, key, value, fmt.Sprintf("it is the same write again, after one that ended with: %v", err))
		r.holds(t, scope, key, value, "the write was acknowledged")
		r.refuseWrite(t, last, key, fencelock.ErrStale, "a newer token was seen")
	}
}

// Without it a lost answer is taken for a lost lock. An unknown outcome is an error of
// its own: it was applied, or it was not, and the holder may look or do it again.
func unknownOutcome(t tb, r Resource) {
	older, current, newer := three()
	lost := func(token fencelock.Token, value, why string) {
		t.Helper()
		r.LoseAnswer()
		err := r.Write(t.Context(), token, key, value)
		switch {
		case err == nil:
			t.Fatalf("Write after LoseAnswer must return an error; it returned nil, so nothing can be said about lost answers")
		case errors.Is(err, fencelock.ErrStale), errors.Is(err, fencelock.ErrNoToken):
			t.Errorf("Write with token %s whose answer was lost must not be called a refusal: %s; it returned: %v", token, why, err)
		}
		r.holds(t, scope, key, value, "LoseAnswer loses the answer only, and the write is applied")
	}
	lost(older, "1", "it is the first, and newer than nothing")
	r.write(t, older, key, "1", "it is the same write again, after its answer was lost")
	r.holds(t, scope, key, "1", "the write was acknowledged")
	lost(older, "2", "it is the mark")
	r.write(t, older, key, "2", "it is the same write again, after its answer was lost")
	lost(current, "3", "it is newer than the mark")
	r.refuseWrite(t, older, key, fencelock.ErrStale, "a newer token was seen; that its answer was lost does not matter")
	r.write(t, current, key, "3", "it is the same write again, after its answer was lost")
	r.holds(t, scope, key, "3", "the write was acknowledged")

	// A repetition that comes after the successor.
	lost(current, "4", "it is the mark")
	r.write(t, newer, key, "5", "it is newer than the mark")
	r.refuseWrite(t, current, key, fencelock.ErrStale, "a newer token was seen; the first attempt may have been applied, this one must not be")
	r.holds(t, scope, key, "5", "what came later was refused")
}

// Without it a holder is told that nothing was done while its effect is there, or the
// other way round. The context of a lost lock has ended, so this is the usual end of a
// holder, and no rare case. Whether an ended context stops a call is the resource's
// choice; that error and effect agree is not.
func contextEnded(t tb, r Resource) {
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancel := context.WithDeadline(t.Context(), time.Unix(0, 0))
	cancel()
	rev := int64(first)
	for _, ended := range []struct {
		name string
		ctx  context.Context
	}{{"a cancelled context", cancelled}, {"a context whose deadline is over", late}} {
		rev += 10
		older, current, newer := mint(scope, rev, "h1"), mint(scope, rev+1, "h2"), mint(scope, rev+2, "h3")
		agree := func(name string, token fencelock.Token, done string, call func() error) {
			t.Helper()
			before, had := r.read(t, scope, key)
			err := call()
			now, found := r.read(t, scope, key)
			switch {
			case errors.Is(err, fencelock.ErrStale), errors.Is(err, fencelock.ErrNoToken):
				t.Errorf("%s with token %s and %s must not be called a refusal: nobody has taken over; it returned: %v", name, token, ended.name, err)
			case err != nil && (now != before || found != had):
				t.Errorf("%s with token %s and %s returned an error, so it must apply nothing; %s became %s, the error is: %v",
					name, token, ended.name, shown(before, had), shown(now, found), err)
			case err == nil && done != shown(now, found):
				t.Errorf("%s with token %s and %s returned nil, so it must be applied; Read found %s instead of %s", name, token, ended.name, shown(now, found), done)
			}
			// What is undone is undone to what was there, and a mark was there.
			r.refuseWrite(t, older, key, fencelock.ErrStale, "a newer token was seen before "+name+" was called with "+ended.name+"; this context lives")
		}
		r.write(t, current, key, "0", "it is newer than the mark")
		agree("Write", current, `"1"`, func() error { return r.Write(ended.ctx, current, key, "1") })
		if r.Update != nil {
			agree("Update", current, `"2"`, func() error {
				return r.Update(ended.ctx, current, key, func(string, bool) (string, error) { return "2", nil })
			})
		}
		if r.Advance != nil {
			before, had := r.read(t, scope, key)
			agree("Advance", current, shown(before, had), func() error { return r.Advance(ended.ctx, current) })
		}
		r.write(t, current, key, "3", "it is the mark, and this context lives")
		if r.Delete != nil {
			agree("Delete", current, "no value", func() error { return r.Delete(ended.ctx, current, key) })
		}
		r.write(t, current, key, "4", "it is the mark, and this context lives")
		before, _ := r.read(t, scope, key)
		if err := r.Write(ended.ctx, older, key, "stale"); err == nil {
			t.Errorf("Write with token %s and %s must be refused or fail: a newer token was seen; it returned nil", older, ended.name)
		}
		if err := r.Write(ended.ctx, fencelock.Token{}, key, "none"); err == nil {
			t.Errorf("Write with the zero Token and %s must be refused or fail; it returned nil", ended.name)
		}
		r.holds(t, scope, key, before, "a stale token and none came with "+ended.name)
		r.refuseWrite(t, older, key, fencelock.ErrStale, "a newer token was seen; that it, or none, came with "+ended.name+" does not lower the mark")
		agree("Write", newer, `"5"`, func() error { return r.Write(ended.ctx, newer, key, "5") })
		r.write(t, newer, key, "6", "it is newer than the mark, or is the mark")
		r.holds(t, scope, key, "6", "the write was acknowledged")
	}
}
