package fencetest

import (
	"context"
	"errors"
	"strconv"
	"strings"

	"github.com/fencelock/fencelock"
)

// What most rules use. The numbers of their tokens have one length: a fence that
// compares them as texts fails ExactNumbers and not everything.
const (
	scope = "fencetest"
	key   = "k"
	first = 1_000_000
)

// mint makes a token as if a lock had been granted.
func mint(scope string, rev int64, holder string) fencelock.Token {
	token, err := fencelock.ParseToken(scope, strconv.FormatInt(rev, 10)+"."+holder)
	if err != nil {
		panic("fencetest: a token that the kit made is none: " + err.Error())
	}
	return token
}

// three returns the tokens of three holders one after the other.
func three() (older, current, newer fencelock.Token) {
	return mint(scope, first+1, "h1"), mint(scope, first+2, "h2"), mint(scope, first+3, "h3")
}

// write writes and must pass. The rule ends if it does not: what follows would say
// nothing.
func (r Resource) write(t tb, token fencelock.Token, key, value, why string) {
	t.Helper()
	if err := r.Write(t.Context(), token, key, value); err != nil {
		if errors.Is(err, fencelock.ErrStale) && strings.HasPrefix(why, "it is the first") {
			why += " (if the factory returned a fresh and empty resource, as it must)"
		}
		t.Fatalf("Write with token %s must pass: %s; it returned: %v", token, why, err)
	}
}

// refuseWrite writes and must be refused with want, ErrStale or ErrNoToken, and what
// is stored must be as it was.
func (r Resource) refuseWrite(t tb, token fencelock.Token, key string, want error, why string) {
	t.Helper()
	r.refuse(t, "Write", token, key, want, why, func(ctx context.Context) error {
		return r.Write(ctx, token, key, "refused:"+token.String())
	})
}

// refuse runs call, which must be refused with want and leave key as it was.
func (r Resource) refuse(t tb, name string, token fencelock.Token, key string, want error, why string, call func(context.Context) error) {
	t.Helper()
	// A zero Token names no scope; the one a careless store would take is ours.
	look := token.Name()
	if token.IsZero() {
		look = scope
	}
	before, found := r.read(t, look, key)
	err := call(t.Context())
	switch {
	case err == nil:
		t.Errorf("%s with token %s must be refused: %s; it passed", name, token, why)
	case !errors.Is(err, want):
		t.Errorf("%s with token %s must be refused with an error that is %q: %s; it returned: %v", name, token, want, why, err)
	}
	var stale *fencelock.StaleError
	// Do looks for its own token in the error, to tell tokens that went backwards.
	if errors.As(err, &stale) && !stale.Presented.IsZero() && !stale.Presented.Equal(token) {
		t.Errorf("%s with token %s returned a *StaleError of token %s; Presented is the token that was refused", name, token, stale.Presented)
	}
	after, still := r.read(t, look, key)
	if before != after || found != still {
		t.Errorf("%s with token %s must apply nothing: %s; %s became %s (the call returned: %v)",
			name, token, why, shown(before, found), shown(after, still), err)
	}
}

// holds checks what is stored at key.
func (r Resource) holds(t tb, scope, key, want, why string) {
	t.Helper()
	if value, found := r.read(t, scope, key); !found || value != want {
		t.Errorf("key %q of scope %s must have %q: %s; Read found %s", key, quoted(scope), want, why, shown(value, found))
	}
}

// empty checks that nothing is stored at key.
func (r Resource) empty(t tb, scope, key, why string) {
	t.Helper()
	if value, found := r.read(t, scope, key); found {
		t.Errorf("key %q of scope %s must have no value: %s; Read found %s", key, quoted(scope), why, shown(value, found))
	}
}

func (r Resource) read(t tb, scope, key string) (string, bool) {
	t.Helper()
	value, found, err := r.Read(t.Context(), scope, key)
	if err != nil {
		t.Fatalf("Read of key %q in scope %s must not fail; it returned: %v", key, quoted(scope), err)
	}
	return value, found
}

func shown(value string, found bool) string {
	if !found {
		return "no value"
	}
	return strconv.Quote(value)
}
