package fencetest

import (
	"context"
	"strings"

	"github.com/fencelock/fencelock"
)

// Without it the first holder owns the resource for ever, and every later one is
// refused though it has the lock.
func newerPasses(t tb, r Resource) {
	older, current, newer := three()
	r.empty(t, scope, key, "nothing was written yet; the factory must return an empty resource")
	r.write(t, older, key, "1", "it is the first that the resource sees")
	r.holds(t, scope, key, "1", "the write was acknowledged")
	r.write(t, current, key, "2", "it is newer than the mark")
	r.holds(t, scope, key, "2", "the write was acknowledged")
	r.write(t, newer, "k2", "3", "it is newer than the mark, also on a key that is new")
	r.holds(t, scope, "k2", "3", "the write was acknowledged")
	r.holds(t, scope, key, "2", "another key was written")
	// The number decides, not whether the holder changed.
	again := mint(scope, first+9, newer.Holder())
	r.write(t, again, key, "4", "it is newer than the mark; that it has the mark's holder and leaves numbers out says nothing")
	r.holds(t, scope, key, "4", "the write was acknowledged")
}

// Without it a holder that was stalled and comes back late overwrites what its
// successor did. That is what the whole thing is for.
func staleRefused(t tb, r Resource) {
	older, current, _ := three()
	r.write(t, older, key, "older", "it is the first")
	r.write(t, current, key, "current", "it is newer than the mark")
	// Twice: a refusal that writes the mark lets the second attempt pass.
	for range 2 {
		r.refuseWrite(t, older, key, fencelock.ErrStale, "a newer token was seen")
	}
	// A holder that reuses its text with a smaller number is stale as well.
	r.refuseWrite(t, mint(scope, first+1, current.Holder()), key, fencelock.ErrStale, "its number is below the mark; the holder does not matter then")
	r.refuseWrite(t, mint(scope, first, "h0"), key, fencelock.ErrStale, "its number is below the mark, and was never seen")
	// What passed once is no longer what it was.
	r.refuse(t, "Write", older, key, fencelock.ErrStale, "a newer token was seen; that this very write passed before it does not matter", func(ctx context.Context) error {
		return r.Write(ctx, older, key, "older")
	})
	r.holds(t, scope, key, "current", "all later writes were refused")

	// A write that changes nothing is one: "no row was changed, so there is nothing to
	// do" leaves the mark where it was.
	r.write(t, mint(scope, first+3, "h3"), key, "current", "it is newer than the mark; that the value is there already says nothing")
	r.refuseWrite(t, current, key, fencelock.ErrStale, "a newer token was seen, in a write of the value that was there already")
}

// Without it a holder can write once only, and its retry of a request that got no
// answer is called stale: a holder that lost nothing stops its work.
func sameHolderPasses(t tb, r Resource) {
	older, current, _ := three()
	r.write(t, older, key, "0", "it is the first")
	for _, value := range []string{"1", "2", "3", "3"} {
		r.write(t, current, key, value, "it is the mark itself, of the same holder")
		r.holds(t, scope, key, value, "the write was acknowledged")
	}
	// A token that came over a wire, and not a copy of the first.
	r.write(t, mint(scope, current.Revision(), current.Holder()), key, "4", "it is the mark itself, parsed again")
	r.holds(t, scope, key, "4", "the write was acknowledged")
}

// Without it two owners pass at once when etcd was restored from a snapshot without
// --bump-revision and gave the same number out again.
func otherHolderRefused(t tb, r Resource) {
	_, current, _ := three()
	r.write(t, current, key, "current", "it is the first")
	// Below and above it in the order of texts, and with it as a beginning: a holder
	// has no order, it is the same or it is not.
	for _, holder := range []string{"g", "h", "h1", "h22", "h3", "i", "2"} {
		r.refuseWrite(t, mint(scope, current.Revision(), holder), key, fencelock.ErrStale,
			"it has the number of the mark and is of another holder than "+current.Holder())
	}
}

// Without it a caller that forgot its token, or acts after its lock is gone, is the
// one that always passes. It is ErrNoToken and not ErrStale: nobody has taken over,
// the caller has a bug.
func noTokenRefused(t tb, r Resource) {
	var none fencelock.Token
	check := func(why string) {
		t.Helper()
		r.refuseWrite(t, none, key, fencelock.ErrNoToken, why)
		// A store that takes the scope of the zero Token as it is. That it refuses to
		// read there is fine.
		if value, found, err := r.Read(t.Context(), "", key); err == nil && found {
			t.Errorf("Write with the zero Token must apply nothing; scope \"\" has %q now", value)
		}
	}
	check("it is no token, and the resource is empty")
	_, current, _ := three()
	r.write(t, current, key, "current", "it is the first that is a token")
	check("it is no token")
}

// Without it a refused request does harm after all: it locks the rightful holder
// out, or takes the mark back and opens the door for the next stale one.
func refusalNotSticky(t tb, r Resource) {
	older, current, newer := three()
	other := mint(scope, current.Revision(), "other")
	var none fencelock.Token
	r.write(t, current, key, "0", "it is the first")
	for _, refused := range []fencelock.Token{older, other, none} {
		// Not looked at here: StaleRefused, OtherHolderRefused and NoTokenRefused are
		// about the refusal itself.
		_ = r.Write(t.Context(), refused, key, "refused")
		r.write(t, current, key, "current", "it is the mark; that "+refused.String()+" was refused changes nothing")
		r.holds(t, scope, key, "current", "the write was acknowledged")
		_ = r.Write(t.Context(), refused, key, "refused")
		r.refuseWrite(t, mint(scope, first, "h0"), key, fencelock.ErrStale,
			"the mark is "+current.String()+"; that "+refused.String()+" was refused does not lower it")
	}
	r.write(t, newer, key, "newer", "it is newer than the mark, whatever was refused before")
	r.holds(t, scope, key, "newer", "the write was acknowledged")
}

// Without it the smallest difference between two holders, one that a column's
// collation or length drops, makes two owners of one number the same.
func holderText(t tb, r Resource) {
	long := strings.Repeat("x", 127)
	for i, pair := range [][2]string{
		{"holder", "HOLDER"},
		{"a-b", "a_b"},
		{"-", "--"},
		{"_", "-"},
		{"a_c", "abc"}, // a pattern of LIKE
		{"1", "01"},
		{"1", "1-"},
		{"10", "1e1"},
		{"NULL", "null"},
		{"true", "1"},
		{"0", "-0"},
		{long + "y", long + "z"},
		{long + "y", long},
		{"abcdefghijklmnopqrstuvwxyz0123456789-_ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz0123456789-_ABCDEFGHIJKLMNOPQRSTUVWXYz"},
	} {
		rev := int64(first + i)
		mark, other := mint(scope, rev, pair[0]), mint(scope, rev, pair[1])
		r.write(t, mark, key, pair[0], "it is newer than the mark, and a holder is any text of 1 to 128 letters, digits, '-' and '_'")
		r.refuseEach(t, other, key, fencelock.ErrStale, "it has the number of the mark and is of another holder than "+pair[0])
		r.write(t, mark, key, pair[0]+"!", "it is the mark itself, of the same holder")
		r.holds(t, scope, key, pair[0]+"!", "the write was acknowledged")
	}
}

// refuseAll runs one call of the resource with each token that must be refused when
// the mark is current: a function beside Write that forgets one of the three is as
// good as no fence.
func (r Resource) refuseAll(t tb, name, key string, call func(ctx context.Context, token fencelock.Token) error) {
	t.Helper()
	older, current, _ := three()
	for _, c := range []struct {
		token fencelock.Token
		want  error
		why   string
	}{
		{older, fencelock.ErrStale, "a newer token was seen"},
		{mint(scope, current.Revision(), "other"), fencelock.ErrStale, "it has the number of the mark and is of another holder"},
		{fencelock.Token{}, fencelock.ErrNoToken, "it is no token"},
	} {
		r.refuse(t, name, c.token, key, c.want, c.why, func(ctx context.Context) error { return call(ctx, c.token) })
	}
}
