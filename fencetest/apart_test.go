package fencetest

import (
	"context"
	"strings"
	"sync"

	"github.com/fencelock/fencelock"
)

// Fences that guard one row well, and whose mark goes its own way. The gap is what
// happens between the two.

// lockPerKey has a lock for each key, and one mark for all keys that is read and raised
// without it.
func lockPerKey(gap func(), before bool) Resource {
	s := newStore()
	s.gap, s.gapBefore = gap, before
	r := s.resource()
	var mu sync.Mutex
	locks := make(map[string]*sync.Mutex)
	lock := func(scope, key string) *sync.Mutex {
		mu.Lock()
		defer mu.Unlock()
		name := scope + "/" + key
		if locks[name] == nil {
			locks[name] = new(sync.Mutex)
		}
		return locks[name]
	}
	write, update, del := r.Write, r.Update, r.Delete
	r.Write = func(ctx context.Context, token fencelock.Token, key, value string) error {
		l := lock(token.Name(), key)
		l.Lock()
		defer l.Unlock()
		return write(ctx, token, key, value)
	}
	r.Update = func(ctx context.Context, token fencelock.Token, key string, f func(string, bool) (string, error)) error {
		l := lock(token.Name(), key)
		l.Lock()
		defer l.Unlock()
		return update(ctx, token, key, f)
	}
	r.Delete = func(ctx context.Context, token fencelock.Token, key string) error {
		l := lock(token.Name(), key)
		l.Lock()
		defer l.Unlock()
		return del(ctx, token, key)
	}
	return r
}

// swap looks at the mark, then at the row, and has change make the new row; it is
// stored if nobody changed the row meanwhile, else all begins again.
func (s *store) swap(ctx context.Context, token fencelock.Token, key string, change func(old string, found bool) (value string, keep bool, err error)) error {
	for {
		if err := s.apply(ctx, token, key, func() error { return nil }); err != nil {
			return err
		}
		s.mu.Lock()
		old, found := s.rows[token.Name()][key]
		s.mu.Unlock()
		value, keep, err := change(old, found)
		if err != nil {
			return err
		}
		s.mu.Lock()
		now, still := s.rows[token.Name()][key]
		same := now == old && still == found
		switch {
		case same && keep:
			s.put(token.Name(), key, value)
		case same:
			delete(s.rows[token.Name()], key)
		}
		s.mu.Unlock()
		if same {
			return nil
		}
	}
}

func updateSwaps(s *store, r *Resource) {
	r.Update = func(ctx context.Context, token fencelock.Token, key string, f func(string, bool) (string, error)) error {
		return s.swap(ctx, token, key, func(old string, found bool) (string, bool, error) {
			value, err := f(old, found)
			return value, true, err
		})
	}
}

func deleteSwaps(gap func(context.Context)) func(*store, *Resource) {
	return func(s *store, r *Resource) {
		r.Delete = func(ctx context.Context, token fencelock.Token, key string) error {
			return s.swap(ctx, token, key, func(string, bool) (string, bool, error) {
				gap(ctx)
				return "", false, nil
			})
		}
	}
}

// insertsApart is fenced where it writes over something.
func insertsApart(gap func(context.Context)) func(*store, *Resource) {
	return func(s *store, r *Resource) {
		write := r.Write
		r.Write = func(ctx context.Context, token fencelock.Token, key, value string) error {
			s.mu.Lock()
			_, found := s.rows[token.Name()][key]
			lose := s.lose
			s.mu.Unlock()
			if found || lose {
				return write(ctx, token, key, value)
			}
			if err := r.Advance(ctx, token); err != nil {
				return err
			}
			gap(ctx)
			s.mu.Lock()
			defer s.mu.Unlock()
			s.put(token.Name(), key, value)
			return nil
		}
	}
}

// advanceSets compares and then sets, so that the mark can go back.
func advanceSets(gap func(context.Context)) func(*store, *Resource) {
	return func(s *store, r *Resource) {
		r.Advance = func(ctx context.Context, token fencelock.Token) error {
			s.mu.Lock()
			highest := s.marks[token.Name()]
			s.mu.Unlock()
			if err := check(highest, token); err != nil {
				return err
			}
			if err := ctx.Err(); err != nil {
				return err
			}
			gap(ctx)
			s.mu.Lock()
			defer s.mu.Unlock()
			s.marks[token.Name()] = markOf(token)
			return nil
		}
	}
}

// deleteMarksLate deletes in one step with the check, and then sets the mark.
func deleteMarksLate(gap func(context.Context)) func(*store, *Resource) {
	return func(s *store, r *Resource) {
		r.Delete = func(ctx context.Context, token fencelock.Token, key string) error {
			s.mu.Lock()
			err := check(s.marks[token.Name()], token)
			if err == nil {
				err = ctx.Err()
			}
			if err == nil {
				delete(s.rows[token.Name()], key)
			}
			s.mu.Unlock()
			if err != nil {
				return err
			}
			gap(ctx)
			s.mu.Lock()
			defer s.mu.Unlock()
			s.marks[token.Name()] = markOf(token)
			return nil
		}
	}
}

// asks is a gap in which a context is asked, as a round trip does.
func asks(ctx context.Context) { _ = ctx.Err() }

func nothing(context.Context) {}

// folded returns the mark instead of a token that differs from it in the case of the
// holder.
func (s *store) folded(token fencelock.Token) fencelock.Token {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.marks[token.Name()]; !token.IsZero() && m.rev == token.Revision() && strings.EqualFold(m.holder, token.Holder()) {
		return mint(token.Name(), m.rev, m.holder)
	}
	return token
}
