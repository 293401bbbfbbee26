package fencetest

import (
	"context"
	"errors"

	"github.com/fencelock/fencelock"
)

// Without it one statement that forgets the fence undoes all the others.
func updateFenced(t tb, r Resource) {
	older, current, newer := three()
	set := func(value string) func(string, bool) (string, error) {
		return func(string, bool) (string, error) { return value, nil }
	}
	if err := r.Update(t.Context(), older, key, func(old string, found bool) (string, error) {
		if found {
			t.Errorf("Update must call its function with found false: nothing was written; it is called with %q", old)
		}
		return "0", nil
	}); err != nil {
		t.Fatalf("Update with token %s must pass: it is the first; it returned: %v", older, err)
	}
	r.holds(t, scope, key, "0", "the update was acknowledged")
	if err := r.Update(t.Context(), current, key, func(old string, _ bool) (string, error) { return old + "1", nil }); err != nil {
		t.Fatalf("Update with token %s must pass: it is newer than the mark; it returned: %v", current, err)
	}
	r.holds(t, scope, key, "01", "the update was acknowledged, and was given what was there")
	r.refuseWrite(t, older, key, fencelock.ErrStale, "a newer token was seen, in an Update")
	r.refuseAll(t, "Update", key, func(ctx context.Context, token fencelock.Token) error {
		return r.Update(ctx, token, key, set("refused"))
	})
	r.refuseAll(t, "Update", "new", func(ctx context.Context, token fencelock.Token) error {
		return r.Update(ctx, token, "new", set("refused"))
	})
	r.refuseWrite(t, older, key, fencelock.ErrStale, "a newer token was seen, and no refused Update lowers the mark")
	r.write(t, current, key, "again", "it is the mark; every Update of others was refused")
	r.write(t, newer, key, "newer", "it is newer than the mark, whatever was refused before")
}

// Without it a holder that found out in the middle of its work that it must not go on
// has written all the same.
func updateFails(t tb, r Resource) {
	older, current, newer := three()
	r.write(t, current, key, "before", "it is the first")
	failed := errors.New("fencetest: the callback failed on purpose")
	for _, token := range []fencelock.Token{current, newer} {
		err := r.Update(t.Context(), token, key, func(string, bool) (string, error) { return "half", failed })
		if !errors.Is(err, failed) {
			t.Errorf("Update with token %s must return the error of its function; it returned: %v", token, err)
		}
		r.holds(t, scope, key, "before", "the function of Update failed, so nothing is stored")
		// What is undone is undone to what was there, and a mark was there.
		r.refuseWrite(t, older, key, fencelock.ErrStale, "a newer token was seen before an Update failed")
		r.refuseWrite(t, mint(scope, first+1, current.Holder()), key, fencelock.ErrStale, "a newer token was seen before an Update failed; the holder does not matter then")
	}
	// The mark may have been raised or not; the newest passes in both cases.
	r.write(t, newer, key, "after", "it is the mark, or newer than it")
	r.holds(t, scope, key, "after", "the write was acknowledged")
}

// Without it a stale holder locks its successor out, or lowers the mark and lets itself
// in: Advance has no effect on the data, but it has one on everybody.
func advanceFenced(t tb, r Resource) {
	_, current, newer := three()
	r.write(t, current, key, "current", "it is the first")
	r.refuseAll(t, "Advance", key, r.Advance)
	r.write(t, current, key, "again", "it is the mark; every other Advance was refused")
	r.refuseWrite(t, mint(scope, first+1, "h1"), key, fencelock.ErrStale, "a newer token was seen, and no refused Advance lowers the mark")
	for range 2 {
		if err := r.Advance(t.Context(), current); err != nil {
			t.Errorf("Advance with token %s must pass: it is the mark; it returned: %v", current, err)
		}
	}
	if err := r.Advance(t.Context(), newer); err != nil {
		t.Errorf("Advance with token %s must pass: it is newer than the mark; it returned: %v", newer, err)
	}
	r.holds(t, scope, key, "again", "an Advance changes nothing but the mark")
}

// Without it an update is lost: the new holder reads, the late write of its predecessor
// lands, and the new holder writes over it what it made of the older value. A holder
// claims first, and reads then.
func advanceBeforeRead(t tb, r Resource) {
	older, current, _ := three()
	r.write(t, older, key, "10", "it is the first")
	if err := r.Advance(t.Context(), current); err != nil {
		t.Fatalf("Advance with token %s must pass: it is newer than the mark; it returned: %v", current, err)
	}
	r.holds(t, scope, key, "10", "an Advance changes nothing but the mark")
	r.refuseWrite(t, older, key, fencelock.ErrStale, "a newer token was seen, in an Advance; its holder may have read what is there")
	r.refuseWrite(t, mint(scope, current.Revision(), "other"), key, fencelock.ErrStale, "it has the number of the mark and is of another holder")
	r.write(t, current, key, "11", "it is the mark")
	r.holds(t, scope, key, "11", "the write was acknowledged")
}

// Without it a stale holder deletes what its successor wrote.
func deleteFenced(t tb, r Resource) {
	older, current, newer := three()
	r.write(t, current, key, "current", "it is the first")
	// Also where nothing is there to delete, and so nothing that would be missed.
	for _, at := range []string{key, "absent"} {
		r.refuseAll(t, "Delete", at, func(ctx context.Context, token fencelock.Token) error { return r.Delete(ctx, token, at) })
		r.refuseWrite(t, older, key, fencelock.ErrStale, "a newer token was seen, and no refused Delete lowers the mark")
		r.write(t, current, key, "again", "it is the mark; every Delete was refused")
	}
	if err := r.Delete(t.Context(), newer, key); err != nil {
		t.Fatalf("Delete with token %s must pass: it is newer than the mark; it returned: %v", newer, err)
	}
	r.empty(t, scope, key, "the delete was acknowledged")
}
