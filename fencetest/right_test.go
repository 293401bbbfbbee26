package fencetest

import (
	"context"
	"errors"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/fencelock/fencelock"
)

// The kit blames no fence that is right, whatever way it is right in.
func TestRightFences(t *testing.T) {
	memory := []string{"UnknownOutcome", "MarkSurvivesReopen", "MarkSurvivesExpire"}
	for name, c := range map[string]struct {
		build func() Resource
		skip  []string
	}{
		"a fencelock.Fence in memory": {inMemory, memory},
		"a durable store":             {func() Resource { return newStore().resource() }, nil},
		"one that makes nobody wait":  {optimistic, memory},
	} {
		t.Run(name, func(t *testing.T) {
			fail, skip, said := rulesThat(t, c.build)
			assert.Empty(t, fail, "%v", said)
			assert.Equal(t, c.skip, skip)
		})
	}
}

// What a resource cannot do is not passed over in silence.
func TestSkippedRulesSayWhatIsNotProved(t *testing.T) {
	raceFor(t, time.Millisecond)
	_, skip, said := rulesThat(t, func() Resource {
		r := newStore().resource()
		return Resource{Write: r.Write, Read: r.Read}
	})
	var want []string
	for _, c := range rules {
		if c.needs == "" {
			continue
		}
		want = append(want, c.name)
		assert.Contains(t, said[c.name], "has no "+string(c.needs)+", so it is not proved that "+c.proves)
	}
	assert.Equal(t, want, skip)
	assert.Len(t, skip, 10)
}

func TestResourceWithoutWriteOrRead(t *testing.T) {
	whole := newStore().resource()
	for _, r := range []Resource{{}, {Write: whole.Write}, {Read: whole.Read}} {
		for _, c := range rules {
			rec, _ := record(t, c, r)
			assert.Contains(t, rec.String(), "needs Write and Read", c.name)
		}
	}
}

// A resource that takes text only says so, and is asked for nothing else. One that does
// not say so must take every name.
func TestTextOnly(t *testing.T) {
	build := func(textOnly bool) func() Resource {
		return func() Resource {
			s := newStore()
			r := s.resource()
			write := r.Write
			r.Write = func(ctx context.Context, token fencelock.Token, key, value string) error {
				if name := token.Name(); !utf8.ValidString(name) || strings.Contains(name, "\x00") {
					return errors.New("store: invalid byte sequence for encoding UTF8")
				}
				return write(ctx, token, key, value)
			}
			r.TextOnly = textOnly
			return r
		}
	}
	i := slices.IndexFunc(rules, func(c rule) bool { return c.name == "ScopeNames" })
	rec, _ := record(t, rules[i], build(true)())
	assert.Empty(t, rec.String())
	rec, _ = record(t, rules[i], build(false)())
	assert.Contains(t, rec.String(), "invalid byte sequence")
}

// A store that fails where calls race proves nothing, and must not look as if it did.
func TestRacesThatFailProveNothing(t *testing.T) {
	raceFor(t, 20*time.Millisecond)
	s := newStore()
	write := s.resource().Write
	r := Resource{Read: s.resource().Read} // nothing beside it that does not fail
	busy := errors.New("store: busy, try again")
	calls := 0
	r.Write = func(ctx context.Context, token fencelock.Token, key, value string) error {
		s.mu.Lock()
		calls++
		fail := calls > 20 && calls%8 != 0
		s.mu.Unlock()
		if fail {
			return busy
		}
		return write(ctx, token, key, value)
	}
	rec := &recorder{ctx: t.Context()}
	r.duels(rec, first)
	assert.Contains(t, rec.String(), "nothing is proved")
	assert.Contains(t, rec.String(), busy.Error())
}

// The names are what users write after -run and -skip.
func TestDocumentationNamesEveryRule(t *testing.T) {
	doc, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	var listed []string
	for _, m := range regexp.MustCompile(`(?m)^//\t([A-Z]\w+)  +\S`).FindAllStringSubmatch(string(doc), -1) {
		listed = append(listed, m[1])
	}
	assert.Equal(t, all, listed)
}
