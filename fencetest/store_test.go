package fencetest

import (
	"context"
	"errors"
	"maps"
	"sync"

	"github.com/fencelock/fencelock"
)

// store is a fence over a small durable store. As newStore returns it it is right; a
// broken one replaces one of its parts.
type store struct {
	mu    sync.Mutex
	marks map[string]mark              // by what guard says
	rows  map[string]map[string]string // by scope and key

	guard     func(scope, key string) string                       // where the mark stands
	check     func(highest mark, token fencelock.Token) error      // the rule
	raise     func(highest mark, token fencelock.Token) mark       // the mark after a token passed
	refused   func(highest mark, token fencelock.Token) mark       // the mark after a token was refused
	gap       func()                                               // between check and effect, without the lock
	gapBefore bool                                                 // and before the mark is raised
	ended     func(ctx context.Context, effect func() error) error // a call whose context has ended
	lose      bool                                                 // the next answer
}

// mark is what a store keeps of a token; the zero mark is none.
type mark struct {
	rev    int64
	holder string
}

func markOf(token fencelock.Token) mark { return mark{token.Revision(), token.Holder()} }

func newStore() *store {
	return &store{
		marks:   make(map[string]mark),
		rows:    make(map[string]map[string]string),
		guard:   func(scope, _ string) string { return scope },
		check:   check,
		raise:   func(_ mark, token fencelock.Token) mark { return markOf(token) },
		refused: func(highest mark, _ fencelock.Token) mark { return highest },
		ended:   func(ctx context.Context, _ func() error) error { return ctx.Err() },
	}
}

// check is the rule as it should be.
func check(highest mark, token fencelock.Token) error {
	m := markOf(token)
	switch {
	case token.IsZero():
		return fencelock.ErrNoToken
	case m.rev < highest.rev, m.rev == highest.rev && m.holder != highest.holder:
		return stale(highest, token)
	}
	return nil
}

func stale(highest mark, token fencelock.Token) error {
	err := &fencelock.StaleError{Scope: token.Name(), Presented: token}
	if highest != (mark{}) {
		err.Highest = mint(token.Name(), highest.rev, highest.holder)
	}
	return err
}

// apply runs effect if the rule lets token pass.
func (s *store) apply(ctx context.Context, token fencelock.Token, key string, effect func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx.Err() != nil {
		return s.ended(ctx, effect)
	}
	name := s.guard(token.Name(), key)
	highest := s.marks[name]
	if err := s.check(highest, token); err != nil {
		if s.refused(highest, token) != highest {
			s.marks[name] = s.refused(highest, token)
		}
		return err
	}
	if s.gap != nil && s.gapBefore {
		s.unlocked()
	}
	s.marks[name] = s.raise(highest, token)
	if s.gap != nil && !s.gapBefore {
		s.unlocked()
	}
	return effect()
}

func (s *store) unlocked() {
	s.mu.Unlock()
	s.gap()
	s.mu.Lock()
}

func (s *store) put(scope, key, value string) {
	if s.rows[scope] == nil {
		s.rows[scope] = make(map[string]string)
	}
	s.rows[scope][key] = value
}

var errLost = errors.New("store: the connection was cut")

// resource returns the store as the kit takes it. All it has is durable and for good.
func (s *store) resource() Resource {
	return Resource{
		Write: func(ctx context.Context, token fencelock.Token, key, value string) error {
			err := s.apply(ctx, token, key, func() error {
				s.put(token.Name(), key, value)
				return nil
			})
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.lose {
				s.lose = false
				return errLost
			}
			return err
		},
		Read: func(ctx context.Context, scope, key string) (string, bool, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			value, found := s.rows[scope][key]
			return value, found, ctx.Err()
		},
		Update: func(ctx context.Context, token fencelock.Token, key string, f func(string, bool) (string, error)) error {
			return s.apply(ctx, token, key, func() error {
				old, found := s.rows[token.Name()][key]
				value, err := f(old, found)
				if err != nil {
					return err
				}
				s.put(token.Name(), key, value)
				return nil
			})
		},
		Advance: func(ctx context.Context, token fencelock.Token) error {
			return s.apply(ctx, token, "", func() error { return nil })
		},
		Delete: func(ctx context.Context, token fencelock.Token, key string) error {
			return s.apply(ctx, token, key, func() error {
				delete(s.rows[token.Name()], key)
				return nil
			})
		},
		Reopen:     func() error { return nil },
		Expire:     func() error { return nil },
		LoseAnswer: func() { s.lose = true },
	}
}

// inMemory is a resource in one process's memory, behind a fencelock.Fence for each
// scope.
func inMemory() Resource {
	var mu sync.Mutex
	fences := make(map[string]*fencelock.Fence)
	rows := make(map[string]map[string]string)
	fenced := func(ctx context.Context, token fencelock.Token, effect func(rows map[string]string) error) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		if token.IsZero() {
			return fencelock.ErrNoToken
		}
		mu.Lock()
		fence, ok := fences[token.Name()]
		if !ok {
			fence = new(fencelock.Fence)
			fences[token.Name()] = fence
		}
		mu.Unlock()
		return fence.Do(token, func() error {
			mu.Lock()
			mine := maps.Clone(rows[token.Name()])
			mu.Unlock()
			if mine == nil {
				mine = make(map[string]string)
			}
			if err := effect(mine); err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			rows[token.Name()] = mine
			return nil
		})
	}
	return Resource{
		Write: func(ctx context.Context, token fencelock.Token, key, value string) error {
			return fenced(ctx, token, func(rows map[string]string) error { rows[key] = value; return nil })
		},
		Read: func(_ context.Context, scope, key string) (string, bool, error) {
			mu.Lock()
			defer mu.Unlock()
			value, found := rows[scope][key]
			return value, found, nil
		},
		Update: func(ctx context.Context, token fencelock.Token, key string, f func(string, bool) (string, error)) error {
			return fenced(ctx, token, func(rows map[string]string) error {
				old, found := rows[key]
				value, err := f(old, found)
				rows[key] = value
				return err
			})
		},
		Advance: func(ctx context.Context, token fencelock.Token) error {
			return fenced(ctx, token, func(map[string]string) error { return nil })
		},
		Delete: func(ctx context.Context, token fencelock.Token, key string) error {
			return fenced(ctx, token, func(rows map[string]string) error { delete(rows, key); return nil })
		},
	}
}

// optimistic is a store that makes nobody wait: a call reads a version of the scope,
// mark and data, and commits if it still is the newest, else it begins again. So two
// holders are in the middle of their calls at once, and that is no fault.
func optimistic() Resource {
	type version struct {
		mark mark
		rows map[string]string
	}
	var mu sync.Mutex
	newest := make(map[string]*version)
	load := func(scope string) *version {
		mu.Lock()
		defer mu.Unlock()
		return newest[scope]
	}
	fenced := func(ctx context.Context, token fencelock.Token, effect func(rows map[string]string) error) error {
		for {
			old := load(token.Name())
			next := version{markOf(token), make(map[string]string)}
			var highest mark
			if old != nil {
				highest = old.mark
				maps.Copy(next.rows, old.rows)
			}
			if err := check(highest, token); err != nil {
				return err
			}
			if err := effect(next.rows); err != nil {
				return err
			}
			if err := ctx.Err(); err != nil {
				return err
			}
			mu.Lock()
			committed := newest[token.Name()] == old
			if committed {
				newest[token.Name()] = &next
			}
			mu.Unlock()
			if committed {
				return nil
			}
		}
	}
	return Resource{
		Write: func(ctx context.Context, token fencelock.Token, key, value string) error {
			return fenced(ctx, token, func(rows map[string]string) error { rows[key] = value; return nil })
		},
		Read: func(_ context.Context, scope, key string) (string, bool, error) {
			v := load(scope)
			if v == nil {
				return "", false, nil
			}
			value, found := v.rows[key]
			return value, found, nil
		},
		Update: func(ctx context.Context, token fencelock.Token, key string, f func(string, bool) (string, error)) error {
			return fenced(ctx, token, func(rows map[string]string) error {
				old, found := rows[key]
				value, err := f(old, found)
				rows[key] = value
				return err
			})
		},
		Advance: func(ctx context.Context, token fencelock.Token) error {
			return fenced(ctx, token, func(map[string]string) error { return nil })
		},
		Delete: func(ctx context.Context, token fencelock.Token, key string) error {
			return fenced(ctx, token, func(rows map[string]string) error { delete(rows, key); return nil })
		},
	}
}
