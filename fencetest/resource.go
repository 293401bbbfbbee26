package fencetest

import (
	"context"
	"testing"

	"github.com/fencelock/fencelock"
)

// Resource is one fenced store as the kit sees it: a few functions over keys and
// values that are grouped by scope, the lock's name. What the store really keeps
// does not matter; a key and a value are short texts of ASCII characters, and can
// stand for a row, a file or an object.
//
// Write and Read are needed. The rules of each other function are skipped where it
// is nil, and the skipped test says what is not proved then. All functions must be
// callable from many goroutines at once, and return.
//
// The errors the kit expects of a refusal are [fencelock.ErrStale] for a token that
// was superseded, best as a [*fencelock.StaleError], and [fencelock.ErrNoToken] for
// the zero Token, both as [errors.Is] sees them. After a refusal nothing may be
// applied. Any other error means that the call failed, and fails the rule, except
// where calls race: there up to half of them may fail so.
type Resource struct {
	// Write stores value at key, in the data of the scope that token.Name says,
	// if the fence lets token pass.
	Write func(ctx context.Context, token fencelock.Token, key, value string) error

	// Read returns what is stored at key in the data of scope. It is not fenced, it
	// must see every write that was acknowledged, and found is false if nothing is
	// there.
	Read func(ctx context.Context, scope, key string) (value string, found bool, err error)

	// Update stores at key what f returns for the value that is there, if the
	// fence lets token pass. The read is made inside of the fence: nothing of an
	// earlier holder is applied between it and the write. f may be called more than
	// once, the last call counts. An error of f is returned, as errors.Is sees it,
	// and nothing is stored.
	Update func(ctx context.Context, token fencelock.Token, key string,
		f func(old string, found bool) (string, error)) error

	// Advance raises the mark to token without an effect, if the fence lets token
	// pass.
	Advance func(ctx context.Context, token fencelock.Token) error

	// Delete deletes the value at key if the fence lets token pass. A key that is
	// not there is no error, and raises the mark as well.
	Delete func(ctx context.Context, token fencelock.Token, key string) error

	// Reopen does what a restart of the process and of the store does: all that is
	// not durable is forgotten. It is called while no other call is under way. A
	// resource that lives in memory only leaves it nil, and its durability rule is
	// skipped.
	Reopen func() error

	// Expire does what the passing of time can do: leases end, entries with a time to
	// live go, caches are emptied, a retention job runs. It is called while no other
	// call is under way.
	Expire func() error

	// LoseAnswer makes the next Write, of whatever token, be applied and return an
	// error as if its answer had been lost: a connection cut after the request was
	// sent, a proxy that drops the reply.
	LoseAnswer func()

	// TextOnly says that a scope must be valid UTF-8 without NUL, as in a text column
	// of PostgreSQL. The names of locks can be any bytes; a resource with TextOnly
	// must refuse the others by itself.
	TextOnly bool
}

// Factory returns a fresh and empty resource: no mark and no value of an earlier
// call. It is called once for each rule, with the rule's own t. What has to be
// closed is closed with t.Cleanup; the functions are not called after the rule has
// returned.
type Factory func(t *testing.T) Resource

// Run runs the resource of factory through all rules, each as a subtest. The names
// of the rules are stable; they and what goes wrong without each are listed in the
// package's documentation. A rule can be run alone with go test -run, or left out with
// go test -skip.
func Run(t *testing.T, factory Factory) {
	t.Helper()
	if factory == nil {
		t.Fatal("fencetest: the factory is nil; pass a function that returns a fresh Resource")
	}
	for _, r := range rules {
		t.Run(r.name, func(t *testing.T) {
			defer func() {
				if t.Failed() {
					t.Logf("without %s: %s", r.name, r.wrong)
				}
			}()
			if skipped := r.run(t, factory(t)); skipped != "" {
				t.Skip(skipped)
			}
		})
	}
}
