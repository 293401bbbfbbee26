package fencetest

import (
	"context"
	"errors"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/fencelock/fencelock"
)

// broken is a fence with one fault. It is here so that the kit is known to find it,
// by the rule that is meant for it and by no rule that is not.
type broken struct {
	name  string
	build func() Resource
	meant []string // must fail
	may   []string // can fail, because it is the same fault, or races find it by chance
}

// with returns a store with one part replaced.
func with(replace func(*store)) func() Resource {
	return func() Resource {
		s := newStore()
		replace(s)
		return s.resource()
	}
}

// but returns a store with one function of its Resource replaced.
func but(replace func(*store, *Resource)) func() Resource {
	return func() Resource {
		s := newStore()
		r := s.resource()
		replace(s, &r)
		return r
	}
}

// comparing returns a rule in which less and same decide.
func comparing(less func(a, b mark) bool, same func(a, b mark) bool) func(*store) {
	return func(s *store) {
		s.check = func(highest mark, token fencelock.Token) error {
			if token.IsZero() {
				return fencelock.ErrNoToken
			}
			m := markOf(token)
			if highest == (mark{}) {
				return nil
			}
			if less(m, highest) || !less(highest, m) && !same(m, highest) {
				return stale(highest, token)
			}
			return nil
		}
	}
}

func lower(a, b mark) bool      { return a.rev < b.rev }
func sameHolder(a, b mark) bool { return a.holder == b.holder }

var all = func() (names []string) {
	for _, c := range rules {
		names = append(names, c.name)
	}
	return names
}()

var brokens = []broken{
	{
		name:  "no check at all",
		build: with(func(s *store) { s.check = func(mark, fencelock.Token) error { return nil } }),
		meant: []string{"StaleRefused", "OtherHolderRefused", "NoTokenRefused", "AtomicCheck"},
		may:   all,
	},
	{
		name:  "strict: what equals the mark is refused",
		build: with(comparing(lower, func(a, b mark) bool { return false })),
		meant: []string{"SameHolderPasses", "RetryPasses"},
		may:   all,
	},
	{
		name:  "the holder is not compared",
		build: with(comparing(lower, func(mark, mark) bool { return true })),
		meant: []string{"OtherHolderRefused", "HolderText"},
		may:   []string{"UpdateFenced", "AdvanceFenced", "AdvanceBeforeRead", "DeleteFenced", "MarkSurvivesDelete", "MarkSurvivesReopen", "MarkSurvivesExpire"},
	},
	{
		name:  "holders have an order",
		build: with(comparing(func(a, b mark) bool { return a.rev < b.rev || a.rev == b.rev && a.holder < b.holder }, sameHolder)),
		meant: []string{"OtherHolderRefused", "HolderText"},
		may:   []string{"RefusalNotSticky", "UpdateFenced", "AdvanceFenced", "AdvanceBeforeRead", "DeleteFenced", "MarkSurvivesDelete", "MarkSurvivesReopen", "MarkSurvivesExpire"},
	},
	{
		name:  "the case of a holder is not compared",
		build: with(comparing(lower, func(a, b mark) bool { return strings.EqualFold(a.holder, b.holder) })),
		meant: []string{"HolderText"},
	},
	{
		name: "a holder is cut to 64 bytes",
		build: with(comparing(lower, func(a, b mark) bool {
			return a.holder[:min(64, len(a.holder))] == b.holder[:min(64, len(b.holder))]
		})),
		meant: []string{"HolderText"},
	},
	{
		name: "holders are compared as numbers",
		build: with(comparing(lower, func(a, b mark) bool {
			x, errX := strconv.ParseFloat(a.holder, 64)
			y, errY := strconv.ParseFloat(b.holder, 64)
			return a.holder == b.holder || errX == nil && errY == nil && x == y
		})),
		meant: []string{"HolderText"},
	},
	{
		name: "only the first holder passes",
		build: with(func(s *store) {
			s.check = func(highest mark, token fencelock.Token) error {
				if err := check(highest, token); err != nil {
					return err
				}
				if highest != (mark{}) && highest.holder != token.Holder() {
					return stale(highest, token)
				}
				return nil
			}
		}),
		meant: []string{"NewerPasses"},
		may:   all,
	},
	{
		name: "the zero token passes",
		build: with(func(s *store) {
			s.check = func(highest mark, token fencelock.Token) error {
				if token.IsZero() {
					return nil
				}
				return check(highest, token)
			}
		}),
		meant: []string{"NoTokenRefused"},
		may:   []string{"UpdateFenced", "AdvanceFenced", "DeleteFenced", "ContextEnded"},
	},
	{
		name: "the zero token is called stale",
		build: with(func(s *store) {
			s.check = func(highest mark, token fencelock.Token) error {
				if token.IsZero() {
					return fencelock.ErrStale
				}
				return check(highest, token)
			}
		}),
		meant: []string{"NoTokenRefused", "UpdateFenced", "AdvanceFenced", "DeleteFenced"},
	},
	{
		name: "a refusal is an error of its own kind",
		build: with(func(s *store) {
			s.check = func(highest mark, token fencelock.Token) error {
				if err := check(highest, token); errors.Is(err, fencelock.ErrStale) {
					return errors.New("store: precondition failed")
				}
				return nil
			}
		}),
		meant: []string{"StaleRefused"},
		may:   all,
	},
	{
		name: "the error names the mark as the token that was refused",
		build: with(func(s *store) {
			s.check = func(highest mark, token fencelock.Token) error {
				if err := check(highest, token); !errors.Is(err, fencelock.ErrStale) {
					return err
				}
				return &fencelock.StaleError{Scope: token.Name(), Presented: mint(token.Name(), highest.rev, highest.holder)}
			}
		}),
		meant: []string{"StaleRefused"},
		may:   all,
	},
	{
		name: "refused, and applied all the same",
		build: but(func(s *store, r *Resource) {
			write := r.Write
			r.Write = func(ctx context.Context, token fencelock.Token, key, value string) error {
				err := write(ctx, token, key, value)
				if errors.Is(err, fencelock.ErrStale) {
					s.mu.Lock()
					defer s.mu.Unlock()
					s.put(token.Name(), key, value)
				}
				return err
			}
		}),
		meant: []string{"StaleRefused", "OtherHolderRefused", "AtomicCheck"},
		may:   all,
	},
	{
		name: "a refused token lowers the mark",
		build: with(func(s *store) {
			s.refused = func(highest mark, token fencelock.Token) mark {
				if token.IsZero() {
					return highest
				}
				return markOf(token)
			}
		}),
		meant: []string{"StaleRefused", "RefusalNotSticky"},
		may:   all,
	},
	{
		name: "a refused holder takes the mark over",
		build: with(func(s *store) {
			s.refused = func(highest mark, token fencelock.Token) mark {
				if token.IsZero() {
					return highest
				}
				return mark{highest.rev, token.Holder()}
			}
		}),
		meant: []string{"RefusalNotSticky"},
		may:   all,
	},
	{
		name: "the zero token resets the mark",
		build: but(func(s *store, r *Resource) {
			write := r.Write
			r.Write = func(ctx context.Context, token fencelock.Token, key, value string) error {
				if token.IsZero() {
					s.mu.Lock()
					clear(s.marks)
					s.mu.Unlock()
				}
				return write(ctx, token, key, value)
			}
		}),
		meant: []string{"RefusalNotSticky"},
		may:   []string{"ContextEnded"},
	},
	{
		name: "the first refusal closes the resource",
		build: with(func(s *store) {
			closed := false
			s.check = func(highest mark, token fencelock.Token) error {
				err := check(highest, token)
				if closed = closed || err != nil; closed && err == nil {
					return stale(highest, token)
				}
				return err
			}
		}),
		meant: []string{"RefusalNotSticky"},
		may:   all,
	},
	{
		name: "a mark for each key",
		build: but(func(s *store, r *Resource) {
			s.guard = func(scope, key string) string { return scope + " " + key }
			r.Advance = nil // it has no key
		}),
		meant: []string{"ScopeCoversAllKeys", "UpdateFenced", "MarkSurvivesDelete", "MarkSurvivesReopen", "MarkSurvivesExpire"},
		may:   []string{"ScopesIndependent", "DeleteFenced", "AtomicCheck"},
	},
	{
		name: "the mark stands in the row and goes with it",
		build: but(func(s *store, r *Resource) {
			s.guard = func(scope, key string) string { return scope + " " + key }
			r.Advance, r.Reopen, r.Expire = nil, nil, nil
			del := r.Delete
			r.Delete = func(ctx context.Context, token fencelock.Token, key string) error {
				err := del(ctx, token, key)
				if err == nil {
					s.mu.Lock()
					defer s.mu.Unlock()
					delete(s.marks, s.guard(token.Name(), key))
				}
				return err
			}
		}),
		meant: []string{"ScopeCoversAllKeys", "UpdateFenced", "MarkSurvivesDelete"},
		may:   []string{"ScopesIndependent", "DeleteFenced", "AtomicCheck"},
	},
	{
		name: "the mark goes with the last row",
		build: but(func(s *store, r *Resource) {
			del := r.Delete
			r.Delete = func(ctx context.Context, token fencelock.Token, key string) error {
				err := del(ctx, token, key)
				s.mu.Lock()
				defer s.mu.Unlock()
				if err == nil && len(s.rows[token.Name()]) == 0 {
					delete(s.marks, token.Name())
				}
				return err
			}
		}),
		meant: []string{"MarkSurvivesDelete"},
		may:   []string{"AtomicCheck", "MarkSurvivesReopen", "MarkSurvivesExpire"},
	},
	{
		name:  "one mark for all scopes",
		build: with(func(s *store) { s.guard = func(string, string) string { return "" } }),
		meant: []string{"ScopesIndependent", "ScopeNames"},
	},
	{
		name:  "names without regard to case share a mark",
		build: with(func(s *store) { s.guard = func(scope, _ string) string { return strings.ToLower(scope) } }),
		meant: []string{"ScopeNames"},
	},
	{
		name:  "names are padded with spaces",
		build: with(func(s *store) { s.guard = func(scope, _ string) string { return strings.TrimRight(scope, " ") } }),
		meant: []string{"ScopeNames"},
	},
	{
		name:  "names are cut to 255 bytes",
		build: with(func(s *store) { s.guard = func(scope, _ string) string { return scope[:min(255, len(scope))] } }),
		meant: []string{"ScopeNames"},
	},
	{
		name: "names end at NUL",
		build: with(func(s *store) {
			s.guard = func(scope, _ string) string { scope, _, _ = strings.Cut(scope, "\x00"); return scope }
		}),
		meant: []string{"ScopeNames"},
	},
	{
		name:  "names that are no UTF-8 become the same text",
		build: with(func(s *store) { s.guard = func(scope, _ string) string { return strings.ToValidUTF8(scope, "\ufffd") } }),
		meant: []string{"ScopeNames"},
	},
	{
		name: "scopes have marks of their own and share the data",
		build: but(func(s *store, r *Resource) {
			r.Write = func(ctx context.Context, token fencelock.Token, key, value string) error {
				return s.apply(ctx, token, key, func() error { s.put("", key, value); return nil })
			}
			read := r.Read
			r.Read = func(ctx context.Context, _, key string) (string, bool, error) { return read(ctx, "", key) }
			r.Update, r.Delete, r.LoseAnswer = nil, nil, nil
		}),
		meant: []string{"NoTokenRefused", "ScopesIndependent", "ScopeNames"},
	},
	{
		name:  "numbers are compared as float64",
		build: with(comparing(func(a, b mark) bool { return float64(a.rev) < float64(b.rev) }, sameHolder)),
		meant: []string{"ExactNumbers"},
	},
	{
		name:  "numbers are compared as float64, and equal ones pass",
		build: with(comparing(func(a, b mark) bool { return float64(a.rev) < float64(b.rev) }, func(a, b mark) bool { return a.rev != b.rev || a.holder == b.holder })),
		meant: []string{"ExactNumbers"},
	},
	{
		name:  "numbers are cut to 32 bits",
		build: with(comparing(func(a, b mark) bool { return int32(a.rev) < int32(b.rev) }, sameHolder)),
		meant: []string{"ExactNumbers"},
	},
	{
		name:  "numbers are cut to 32 bits without a sign",
		build: with(comparing(func(a, b mark) bool { return uint32(a.rev) < uint32(b.rev) }, sameHolder)),
		meant: []string{"ExactNumbers"},
	},
	{
		name:  "numbers are compared as texts",
		build: with(comparing(func(a, b mark) bool { return strconv.FormatInt(a.rev, 10) < strconv.FormatInt(b.rev, 10) }, sameHolder)),
		meant: []string{"ExactNumbers"},
	},
	{
		name:  "a difference decides, and overflows",
		build: with(comparing(func(a, b mark) bool { return int32(a.rev-b.rev) < 0 }, sameHolder)),
		meant: []string{"ExactNumbers"},
	},
	{
		name: "the store is durable, the mark in memory",
		build: but(func(s *store, r *Resource) {
			r.Reopen = func() error { clear(s.marks); return nil }
		}),
		meant: []string{"MarkSurvivesReopen"},
	},
	{
		name: "the number is durable, the holder in memory",
		build: but(func(s *store, r *Resource) {
			holders := make(map[string]string)
			r.Reopen = func() error { clear(holders); return nil }
			s.check = func(highest mark, token fencelock.Token) error {
				if holder, known := holders[token.Name()]; !known {
					highest.holder = token.Holder()
				} else {
					highest.holder = holder
				}
				err := check(highest, token)
				if err == nil {
					holders[token.Name()] = token.Holder()
				}
				return err
			}
		}),
		meant: []string{"MarkSurvivesReopen"},
	},
	{
		name: "only a write makes the mark durable, an Advance does not",
		build: but(func(s *store, r *Resource) {
			durable := make(map[string]mark)
			write := r.Write
			r.Write = func(ctx context.Context, token fencelock.Token, key, value string) error {
				err := write(ctx, token, key, value)
				if err == nil {
					s.mu.Lock()
					defer s.mu.Unlock()
					durable[token.Name()] = markOf(token)
				}
				return err
			}
			r.Reopen = func() error { s.marks = maps.Clone(durable); return nil }
		}),
		meant: []string{"MarkSurvivesReopen"},
	},
	{
		name: "the mark is bound to a lease",
		build: but(func(s *store, r *Resource) {
			r.Expire = func() error { clear(s.marks); return nil }
		}),
		meant: []string{"MarkSurvivesExpire"},
	},
	{
		name: "an ended context is seen after the effect",
		build: with(func(s *store) {
			s.ended = func(ctx context.Context, effect func() error) error { return errors.Join(effect(), ctx.Err()) }
		}),
		meant: []string{"ContextEnded"},
	},
	{
		name:  "an ended context is no error, and nothing is done",
		build: with(func(s *store) { s.ended = func(context.Context, func() error) error { return nil } }),
		meant: []string{"ContextEnded"},
		may:   []string{"RetryPasses"}, // it ended in the middle
	},
	{
		name:  "an ended context is called stale",
		build: with(func(s *store) { s.ended = func(context.Context, func() error) error { return fencelock.ErrStale } }),
		meant: []string{"RetryPasses", "ContextEnded"},
	},
	{
		name: "a lost answer is called stale",
		build: but(func(_ *store, r *Resource) {
			// It repeats the write by itself, and takes what is there for a successor's.
			write := r.Write
			r.Write = func(ctx context.Context, token fencelock.Token, key, value string) error {
				err := write(ctx, token, key, value)
				if errors.Is(err, errLost) {
					return fencelock.ErrStale
				}
				return err
			}
		}),
		meant: []string{"UnknownOutcome"},
	},
	{
		name: "a lost answer ends the holder",
		build: but(func(s *store, r *Resource) {
			write := r.Write
			r.Write = func(ctx context.Context, token fencelock.Token, key, value string) error {
				err := write(ctx, token, key, value)
				if errors.Is(err, errLost) {
					s.mu.Lock()
					defer s.mu.Unlock()
					s.marks[token.Name()] = mark{token.Revision(), "nobody"}
				}
				return err
			}
		}),
		meant: []string{"UnknownOutcome"},
	},
	{
		name: "Update is not fenced",
		build: but(func(s *store, r *Resource) {
			r.Update = func(_ context.Context, token fencelock.Token, key string, f func(string, bool) (string, error)) error {
				s.mu.Lock()
				defer s.mu.Unlock()
				old, found := s.rows[token.Name()][key]
				value, err := f(old, found)
				if err == nil {
					s.put(token.Name(), key, value)
				}
				return err
			}
		}),
		meant: []string{"UpdateFenced"},
		may:   []string{"HolderText", "ExactNumbers", "AtomicCheck", "MarkSurvivesReopen", "MarkSurvivesExpire"},
	},
	{
		name: "Update reads outside of the fence",
		build: but(func(s *store, r *Resource) {
			r.Update = func(ctx context.Context, token fencelock.Token, key string, f func(string, bool) (string, error)) error {
				old, found, err := r.Read(ctx, token.Name(), key)
				if err != nil {
					return err
				}
				value, err := f(old, found)
				if err != nil {
					return err
				}
				return r.Write(ctx, token, key, value)
			}
		}),
		meant: []string{"UpdateReadsInside"},
	},
	{
		name: "Update checks first, then reads and writes",
		build: but(func(s *store, r *Resource) {
			r.Update = func(ctx context.Context, token fencelock.Token, key string, f func(string, bool) (string, error)) error {
				if err := r.Advance(ctx, token); err != nil {
					return err
				}
				old, found, err := r.Read(ctx, token.Name(), key)
				if err != nil {
					return err
				}
				value, err := f(old, found)
				if err != nil {
					return err
				}
				s.mu.Lock()
				defer s.mu.Unlock()
				s.put(token.Name(), key, value)
				return nil
			}
		}),
		meant: []string{"UpdateReadsInside"},
		may:   []string{"AtomicCheck"},
	},
	{
		name: "an Update whose callback failed is stored",
		build: but(func(s *store, r *Resource) {
			r.Update = func(ctx context.Context, token fencelock.Token, key string, f func(string, bool) (string, error)) error {
				return s.apply(ctx, token, key, func() error {
					old, found := s.rows[token.Name()][key]
					value, err := f(old, found)
					s.put(token.Name(), key, value)
					return err
				})
			}
		}),
		meant: []string{"UpdateFails"},
	},
	{
		name: "Advance checks and does not raise",
		build: but(func(s *store, r *Resource) {
			r.Advance = func(_ context.Context, token fencelock.Token) error {
				s.mu.Lock()
				defer s.mu.Unlock()
				return check(s.marks[token.Name()], token)
			}
		}),
		meant: []string{"AdvanceBeforeRead"},
		may:   []string{"MarkSurvivesReopen", "MarkSurvivesExpire", "AtomicCheck"},
	},
	{
		name: "Advance sets the mark and does not check",
		build: but(func(s *store, r *Resource) {
			r.Advance = func(_ context.Context, token fencelock.Token) error {
				if token.IsZero() {
					return fencelock.ErrNoToken
				}
				s.mu.Lock()
				defer s.mu.Unlock()
				s.marks[token.Name()] = markOf(token)
				return nil
			}
		}),
		meant: []string{"AdvanceFenced"},
		may:   []string{"HolderText", "ExactNumbers", "AtomicCheck"},
	},
	{
		name: "Delete is not fenced",
		build: but(func(s *store, r *Resource) {
			r.Delete = func(_ context.Context, token fencelock.Token, key string) error {
				s.mu.Lock()
				defer s.mu.Unlock()
				delete(s.rows[token.Name()], key)
				return nil
			}
		}),
		meant: []string{"DeleteFenced", "MarkSurvivesDelete", "AtomicCheck"},
		may:   []string{"HolderText", "ExactNumbers", "ContextEnded", "MarkSurvivesReopen", "MarkSurvivesExpire"},
	},
	{
		name: "Delete checks and does not raise",
		build: but(func(s *store, r *Resource) {
			r.Delete = func(ctx context.Context, token fencelock.Token, key string) error {
				s.mu.Lock()
				defer s.mu.Unlock()
				if ctx.Err() != nil {
					return ctx.Err()
				}
				if err := check(s.marks[token.Name()], token); err != nil {
					return err
				}
				delete(s.rows[token.Name()], key)
				return nil
			}
		}),
		meant: []string{"MarkSurvivesDelete"},
		may:   []string{"AtomicCheck", "MarkSurvivesReopen", "MarkSurvivesExpire"},
	},
	{
		name: "only the first write of a key raises the mark",
		build: with(func(s *store) {
			s.raise = func(highest mark, token fencelock.Token) mark {
				if highest != (mark{}) {
					return highest
				}
				return markOf(token)
			}
		}),
		meant: []string{"StaleRefused"},
		may:   all,
	},
	{
		name:  "check, then write",
		build: with(func(s *store) { s.gap = func() {} }),
		meant: []string{"AtomicCheck"},
		may:   []string{"UpdateReadsInside"},
	},
	{
		name:  "check, then mark and write",
		build: with(func(s *store) { s.gap, s.gapBefore = func() {}, true }),
		meant: []string{"AtomicCheck"},
		may:   []string{"UpdateReadsInside"},
	},
	{
		name: "scope and key are joined to one name",
		build: but(func(s *store, r *Resource) {
			r.Update, r.Delete = nil, nil
			r.Write = func(ctx context.Context, token fencelock.Token, key, value string) error {
				return s.apply(ctx, token, key, func() error {
					s.put("", token.Name()+"/"+key, value)
					return nil
				})
			}
			r.Read = func(_ context.Context, scope, key string) (string, bool, error) {
				s.mu.Lock()
				defer s.mu.Unlock()
				value, found := s.rows[""][scope+"/"+key]
				return value, found, nil
			}
		}),
		meant: []string{"ScopesIndependent"},
		may:   []string{"UnknownOutcome"}, // it has none to lose
	},
	{
		name: "a write of the value that is there is none",
		build: but(func(s *store, r *Resource) {
			write := r.Write
			r.Write = func(ctx context.Context, token fencelock.Token, key, value string) error {
				s.mu.Lock()
				old, found := s.rows[token.Name()][key]
				err := check(s.marks[token.Name()], token)
				s.mu.Unlock()
				if err == nil && found && old == value {
					return ctx.Err()
				}
				return write(ctx, token, key, value)
			}
		}),
		meant: []string{"StaleRefused"},
		may:   []string{"UnknownOutcome", "AtomicCheck"},
	},
	{
		name: "what Update and Delete raise is not durable",
		build: but(func(s *store, r *Resource) {
			durable := make(map[string]mark)
			keep := func(token fencelock.Token, err error) error {
				s.mu.Lock()
				defer s.mu.Unlock()
				if err == nil {
					durable[token.Name()] = s.marks[token.Name()]
				}
				return err
			}
			write, advance := r.Write, r.Advance
			r.Write = func(ctx context.Context, token fencelock.Token, key, value string) error {
				return keep(token, write(ctx, token, key, value))
			}
			r.Advance = func(ctx context.Context, token fencelock.Token) error { return keep(token, advance(ctx, token)) }
			r.Reopen = func() error { s.marks = maps.Clone(durable); return nil }
		}),
		meant: []string{"MarkSurvivesReopen"},
	},
	{
		name: "a name that is no text is folded",
		build: but(func(s *store, r *Resource) {
			r.TextOnly = true
			s.guard = func(scope, _ string) string { return strings.ToValidUTF8(scope, "?") }
		}),
		meant: []string{"ScopeNames"},
	},
	{
		name: "each of two processes has a mark in its memory",
		build: with(func(s *store) {
			// The factory hands the calls to both in turn.
			turn := 0
			s.guard = func(scope, _ string) string { turn++; return scope + strconv.Itoa(turn%2) }
		}),
		meant: []string{"StaleRefused", "OtherHolderRefused"},
		may:   all,
	},
	{
		name:  "a lock for each key, and a mark for all of them that is raised without it",
		build: func() Resource { return lockPerKey(runtime.Gosched, false) },
		meant: []string{"AtomicCheck"},
	},
	{
		name:  "Update compares and swaps the row, and looks at the mark before",
		build: but(updateSwaps),
		meant: []string{"AtomicCheck"},
	},
	{
		name:  "Delete compares and swaps the row, and looks at the mark before",
		build: but(deleteSwaps(asks)),
		meant: []string{"AtomicCheck"},
	},
	{
		name:  "an insert comes after the check, an update with it",
		build: but(insertsApart(asks)),
		meant: []string{"AtomicCheck"},
	},
	{
		name:  "Advance compares, then sets",
		build: but(advanceSets(asks)),
		meant: []string{"AtomicCheck"},
	},
	{
		name:  "Delete sets the mark after its effect",
		build: but(deleteMarksLate(asks)),
		meant: []string{"AtomicCheck"},
	},
	{
		name: "an Update whose callback failed takes the mark with it",
		build: but(func(s *store, r *Resource) {
			update := r.Update
			r.Update = func(ctx context.Context, token fencelock.Token, key string, f func(string, bool) (string, error)) error {
				var failed error
				err := update(ctx, token, key, func(old string, found bool) (value string, err error) {
					value, failed = f(old, found)
					return value, failed
				})
				if failed != nil {
					s.mu.Lock()
					defer s.mu.Unlock()
					delete(s.marks, token.Name())
				}
				return err
			}
		}),
		meant: []string{"UpdateFails"},
	},
	{
		name: "a refused Update of the mark's number takes it over",
		build: but(func(s *store, r *Resource) {
			update := r.Update
			r.Update = func(ctx context.Context, token fencelock.Token, key string, f func(string, bool) (string, error)) error {
				err := update(ctx, token, key, f)
				s.mu.Lock()
				defer s.mu.Unlock()
				if err != nil && s.marks[token.Name()].rev == token.Revision() && !token.IsZero() {
					s.marks[token.Name()] = markOf(token)
				}
				return err
			}
		}),
		meant: []string{"UpdateFenced", "HolderText"},
	},
	{
		name: "a call whose context has ended takes the mark with it",
		build: with(func(s *store) {
			s.ended = func(ctx context.Context, _ func() error) error {
				clear(s.marks)
				return ctx.Err()
			}
		}),
		meant: []string{"ContextEnded", "RetryPasses"},
	},
	{
		name: "Delete of what is not there passes, whoever asks",
		build: but(func(s *store, r *Resource) {
			del := r.Delete
			r.Delete = func(ctx context.Context, token fencelock.Token, key string) error {
				s.mu.Lock()
				_, found := s.rows[token.Name()][key]
				if !found && !token.IsZero() && ctx.Err() == nil {
					s.marks[token.Name()] = markOf(token)
					s.mu.Unlock()
					return nil
				}
				s.mu.Unlock()
				return del(ctx, token, key)
			}
		}),
		meant: []string{"DeleteFenced"},
		may:   []string{"AtomicCheck"},
	},
	{
		name: "a refused Delete of what is not there lowers the mark",
		build: but(func(s *store, r *Resource) {
			del := r.Delete
			r.Delete = func(ctx context.Context, token fencelock.Token, key string) error {
				err := del(ctx, token, key)
				s.mu.Lock()
				defer s.mu.Unlock()
				if _, found := s.rows[token.Name()][key]; !found && errors.Is(err, fencelock.ErrStale) {
					s.marks[token.Name()] = markOf(token)
				}
				return err
			}
		}),
		meant: []string{"DeleteFenced"},
		may:   []string{"AtomicCheck"},
	},
	{
		name: "Advance does not compare the case of a holder",
		build: but(func(s *store, r *Resource) {
			advance := r.Advance
			r.Advance = func(ctx context.Context, token fencelock.Token) error { return advance(ctx, s.folded(token)) }
		}),
		meant: []string{"HolderText"},
	},
	{
		name: "Update does not compare the case of a holder",
		build: but(func(s *store, r *Resource) {
			update := r.Update
			r.Update = func(ctx context.Context, token fencelock.Token, key string, f func(string, bool) (string, error)) error {
				return update(ctx, s.folded(token), key, f)
			}
		}),
		meant: []string{"HolderText"},
	},
	{
		name: "Delete does not compare the case of a holder",
		build: but(func(s *store, r *Resource) {
			del := r.Delete
			r.Delete = func(ctx context.Context, token fencelock.Token, key string) error {
				return del(ctx, s.folded(token), key)
			}
		}),
		meant: []string{"HolderText"},
	},
	{
		name: "who has the mark's holder is known again, whatever its number",
		build: but(func(s *store, r *Resource) {
			write := r.Write
			fresh := false
			again := func() error { fresh = true; return nil }
			r.Reopen, r.Expire = again, again
			r.Write = func(ctx context.Context, token fencelock.Token, key, value string) error {
				s.mu.Lock()
				if fresh && s.marks[token.Name()].holder == token.Holder() {
					s.marks[token.Name()] = markOf(token)
				}
				s.mu.Unlock()
				return write(ctx, token, key, value)
			}
		}),
		meant: []string{"MarkSurvivesReopen", "MarkSurvivesExpire"},
	},
	{
		name: "a write that passed once passes again",
		build: but(func(s *store, r *Resource) {
			write := r.Write
			done := make(map[string]bool)
			r.Write = func(ctx context.Context, token fencelock.Token, key, value string) error {
				id := strings.Join([]string{token.Name(), token.String(), key, value}, "|")
				s.mu.Lock()
				if done[id] && ctx.Err() == nil && !s.lose {
					s.put(token.Name(), key, value)
					s.mu.Unlock()
					return nil
				}
				s.mu.Unlock()
				err := write(ctx, token, key, value)
				s.mu.Lock()
				defer s.mu.Unlock()
				done[id] = err == nil
				return err
			}
		}),
		meant: []string{"StaleRefused"},
		may:   []string{"AtomicCheck"},
	},
}

// Each broken fence fails the rules that are meant for it, and no rule that has
// nothing to do with it.
func TestBrokenFencesAreCaught(t *testing.T) {
	try := func(t *testing.T, b broken) {
		fail, _, said := rulesThat(t, b.build)
		for _, name := range b.meant {
			assert.Contains(t, fail, name, "the rule that is meant for it")
			assert.Contains(t, all, name, "a rule")
		}
		for _, name := range fail {
			assert.True(t, slices.Contains(b.meant, name) || slices.Contains(b.may, name), "%s is not meant for it, and says:\n%s", name, said[name])
		}
	}
	meant := make(map[string]bool)
	raced := func(b broken) bool { return slices.Contains(b.meant, "AtomicCheck") }
	for _, b := range brokens {
		for _, name := range b.meant {
			meant[name] = true
		}
		if raced(b) {
			t.Run(b.name, func(t *testing.T) { try(t, b) })
		}
	}
	t.Run("without luck", func(t *testing.T) {
		raceFor(t, 50*time.Millisecond) // a race would find nothing, in any time
		for _, b := range brokens {
			if !raced(b) {
				t.Run(b.name, func(t *testing.T) { t.Parallel(); try(t, b) })
			}
		}
	})
	for _, name := range all {
		assert.True(t, meant[name], "no broken fence shows that %s can fail", name)
	}
}
