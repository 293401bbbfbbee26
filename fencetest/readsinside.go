package fencetest

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencelock/fencelock"
)

// Without it an update is lost: what Update read is not what it writes over. Its
// function runs between the two, so no luck is needed: another holder's call is made
// from there, and ends there, or waits for the first as it should.
func updateReadsInside(t tb, r Resource) {
	rev := int64(first)
	patience := r.patience(t, rev)
	for _, c := range []struct {
		name         string
		outer, inner int64 // what is added to the number
	}{
		{"a holder is stalled in its Update, and its successor updates meanwhile", 1, 2},
		{"a holder is in its Update, and a late one of its predecessor comes", 2, 1},
	} {
		rev += 10
		outer, inner := mint(scope, rev+c.outer, "outer"), mint(scope, rev+c.inner, "inner")
		r.write(t, mint(scope, rev, "base"), key, "base", "it is newer than the mark")
		var innerErr error
		meanwhile := newMeanwhile(patience, func() { innerErr = r.Update(t.Context(), inner, key, add("inner")) })
		outerErr := r.Update(t.Context(), outer, key, func(old string, found bool) (string, error) {
			meanwhile.once()
			return add("outer")(old, found)
		})
		if !meanwhile.wait() {
			t.Fatalf("Update with token %s must call its function: it is not stale; it returned: %v", outer, outerErr)
		}
		value, _ := r.read(t, scope, key)
		for _, u := range []struct {
			name  string
			token fencelock.Token
			err   error
		}{{"outer", outer, outerErr}, {"inner", inner, innerErr}} {
			r.counted(t, value, u.name, 1, u.token, u.err, c.name)
		}
	}
	r.countTogether(t, rev+10)
}

// add returns a function for Update that adds a word to the value. It may run more
// than once, so it looks at nothing but the old value.
func add(word string) func(string, bool) (string, error) {
	return func(old string, _ bool) (string, error) { return old + " " + word, nil }
}

// counted checks that word is in value as often as its updates were acknowledged.
func (r Resource) counted(t tb, value, word string, want int, token fencelock.Token, err error, when string) {
	t.Helper()
	got := 0
	for _, w := range strings.Fields(value) {
		if w == word {
			got++
		}
	}
	switch {
	case err == nil && got != want:
		t.Errorf("Update with token %s was acknowledged, so its effect must be there once (%s); the value is %q", token, when, value)
	case errors.Is(err, fencelock.ErrStale) && got != 0:
		t.Errorf("Update with token %s was refused, so nothing of it may be applied (%s); the value is %q", token, when, value)
	case got > want:
		t.Errorf("Update with token %s must not be applied twice (%s); the value is %q", token, when, value)
	}
}

// countTogether has many holders update one value at once. Every number is used once,
// so each acknowledged update read what all acknowledged before it had written.
func (r Resource) countTogether(t tb, rev int64) {
	t.Helper()
	const holders, each = 4, 25
	r.write(t, mint(scope, rev, "base"), key, "", "it is newer than the mark")
	var next atomic.Int64
	next.Store(rev)
	var mu sync.Mutex
	results := make(map[string]error)
	var tokens []fencelock.Token
	var wg sync.WaitGroup
	for range holders {
		wg.Go(func() {
			for range each {
				token := mint(scope, next.Add(1), "h")
				err := r.Update(t.Context(), token, key, add(token.String()))
				mu.Lock()
				results[token.String()] = err
				tokens = append(tokens, token)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	value, _ := r.read(t, scope, key)
	for _, token := range tokens {
		r.counted(t, value, token.String(), 1, token, results[token.String()], "many holders update at once")
	}
}

// meanwhile runs something beside a call that is stopped in its middle, until it
// ends or patience is over: a fence that makes it wait is right, and goes on only
// when the stopped call does. Patience decides nothing but how slow a fence can be
// and still be caught.
type meanwhile struct {
	patience time.Duration
	run      func()
	started  sync.Once
	done     chan struct{}
}

func newMeanwhile(patience time.Duration, run func()) *meanwhile {
	return &meanwhile{patience: patience, run: run, done: make(chan struct{})}
}

// once starts it, at the first call, and returns when it is done or patience is over.
func (m *meanwhile) once() {
	m.started.Do(func() {
		go func() {
			defer close(m.done)
			m.run()
		}()
		limit := time.NewTimer(m.patience)
		defer limit.Stop()
		select {
		case <-m.done:
		case <-limit.C:
		}
	})
}

// wait waits for its end, and reports whether it was started.
func (m *meanwhile) wait() bool {
	ran := true
	m.started.Do(func() { ran = false })
	if ran {
		<-m.done
	}
	return ran
}

// patience measures lone Writes, and gives one beside a stopped call the time of many.
// The first can have a connection to open.
func (r Resource) patience(t tb, rev int64) time.Duration {
	t.Helper()
	least := time.Hour
	for range 3 {
		begun := time.Now()
		r.write(t, mint(scope, rev, "lone"), key, "lone", "it is newer than the mark")
		least = min(least, time.Since(begun))
	}
	return 20*time.Millisecond + 20*least
}
