package fencetest

import (
	"fmt"

	"github.com/fencelock/fencelock"
)

// Without it the new holder's clean-up opens the door: it deletes the data and with it
// the mark, and the late insert of its predecessor finds an empty place. The mark lives
// apart from the data.
func markSurvivesDelete(t tb, r Resource) {
	older, current, newer := three()
	del := func(token fencelock.Token, key, why string) {
		t.Helper()
		if err := r.Delete(t.Context(), token, key); err != nil {
			t.Fatalf("Delete with token %s must pass: %s; it returned: %v", token, why, err)
		}
		r.empty(t, scope, key, "the delete was acknowledged")
	}
	r.write(t, older, key, "older", "it is the first")
	r.write(t, current, key, "current", "it is newer than the mark")
	del(current, key, "it is the mark")
	r.refuseWrite(t, older, key, fencelock.ErrStale, "a newer token was seen; that it deleted its data does not matter")
	r.refuseWrite(t, mint(scope, current.Revision(), "other"), key, fencelock.ErrStale,
		"it has the number of the mark and is of another holder; that the data was deleted does not matter")
	// The delete is the first and only thing that this holder does.
	r.write(t, current, key, "again", "it is the mark")
	del(newer, key, "it is newer than the mark")
	r.refuseWrite(t, current, key, fencelock.ErrStale, "a newer token was seen, in a Delete")
	// What it deletes is not there.
	last := mint(scope, first+4, "h4")
	del(last, "nothing", "it is newer than the mark; a key that is not there is no error")
	r.refuseWrite(t, newer, key, fencelock.ErrStale, "a newer token was seen, in a Delete of a key that was not there")
}

// Without it a restart at the wrong moment lets the stalled holder in: data and mark
// must be equally durable.
func markSurvivesReopen(t tb, r Resource) {
	survives(t, r, "Reopen", r.Reopen)
}

// Without it a holder need only be late enough. A mark on a lease, in a cache or under
// a retention rule is gone when it is needed, for it is the long stalls that a fence is
// for.
func markSurvivesExpire(t tb, r Resource) {
	survives(t, r, "Expire", r.Expire)
}

func survives(t tb, r Resource, name string, event func() error) {
	t.Helper()
	happens := func() {
		t.Helper()
		if err := event(); err != nil {
			t.Fatalf("%s must not fail; it returned: %v", name, err)
		}
	}
	older, current, newer := three()
	r.write(t, older, key, "older", "it is the first")
	r.write(t, current, key, "current", "it is newer than the mark")
	happens()
	r.refuseWrite(t, older, key, fencelock.ErrStale, "a newer token was seen before "+name)
	r.refuseWrite(t, older, "new", fencelock.ErrStale, "a newer token was seen before "+name)
	r.refuseWrite(t, mint(scope, older.Revision(), current.Holder()), key, fencelock.ErrStale,
		"a newer token was seen before "+name+"; that it has the mark's holder does not matter")
	// The holder is part of the mark.
	r.refuseWrite(t, mint(scope, current.Revision(), "other"), key, fencelock.ErrStale,
		"it has the number of the mark and is of another holder than before "+name)
	r.write(t, current, key, "again", "it is the mark, also after "+name)
	r.holds(t, scope, key, "again", "the write was acknowledged")
	// Each way to raise the mark, as the first and only thing that a holder does.
	mark := current
	for i, way := range r.fenced()[1:] {
		next := mint(scope, newer.Revision()+int64(i), fmt.Sprint("next", i))
		if err := way.call(t.Context(), next, key, "raised"); err != nil {
			t.Fatalf("%s with token %s must pass: it is newer than the mark; it returned: %v", way.name, next, err)
		}
		happens()
		why := "a newer token was seen before " + name + ", in the only call of its holder, " + way.name
		r.refuseWrite(t, mark, key, fencelock.ErrStale, why)
		r.refuseWrite(t, mint(scope, mark.Revision(), next.Holder()), key, fencelock.ErrStale, why+"; that it has the mark's holder does not matter")
		mark = next
	}
}
