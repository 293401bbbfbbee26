package carrier

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/fencelock/fencelock"
	"github.com/stretchr/testify/require"
)

func token(t testing.TB, name, text string) fencelock.Token {
	t.Helper()
	token, err := fencelock.ParseToken(name, text)
	require.NoError(t, err)
	return token
}

func TestPut(t *testing.T) {
	a := token(t, "s", "7.a")
	for name, c := range map[string]struct {
		have    []string
		token   fencelock.Token
		missing bool
		err     error
	}{
		"none":           {nil, a, true, nil},
		"empty list":     {[]string{}, a, true, nil},
		"there":          {[]string{"7.a"}, a, false, nil},
		"another":        {[]string{"7.b"}, a, false, ErrOtherToken},
		"twice":          {[]string{"7.a", "7.a"}, a, false, ErrOtherToken},
		"empty value":    {[]string{""}, a, false, ErrOtherToken},
		"another form":   {[]string{"07.a"}, a, false, ErrOtherToken},
		"zero":           {nil, fencelock.Token{}, false, fencelock.ErrNoToken},
		"zero and there": {[]string{"7.a"}, fencelock.Token{}, false, fencelock.ErrNoToken},
	} {
		t.Run(name, func(t *testing.T) {
			text, missing, err := Put(c.have, c.token)
			require.ErrorIs(t, err, c.err)
			require.Equal(t, c.missing, missing)
			require.Equal(t, err == nil, text == "7.a")
		})
	}
}

// TestAdmit: exactly one of a token and a denial, and the hook is told of each denial
// that is about a token.
func TestAdmit(t *testing.T) {
	for name, c := range map[string]struct {
		scope  string
		have   []string
		verify error
		kind   Kind
		hook   error // nil: not called
	}{
		"none":            {"s", nil, nil, NoToken, fencelock.ErrNoToken},
		"two":             {"s", []string{"7.a", "7.a"}, nil, InvalidToken, fencelock.ErrInvalidToken},
		"odd":             {"s", []string{"+7.a"}, nil, InvalidToken, fencelock.ErrInvalidToken},
		"no name":         {"", []string{"7.a"}, nil, NoScope, nil},
		"no name, two":    {"", []string{"7.a", "8.b"}, nil, NoScope, nil},
		"long name":       {strings.Repeat("x", 1025), nil, nil, NoScope, nil},
		"never issued":    {"s", []string{"7.a"}, fencelock.ErrInvalidToken, InvalidToken, fencelock.ErrInvalidToken},
		"superseded":      {"s", []string{"7.a"}, fencelock.ErrStale, Stale, fencelock.ErrStale},
		"both":            {"s", []string{"7.a"}, errors.Join(fencelock.ErrInvalidToken, fencelock.ErrStale), Stale, fencelock.ErrStale},
		"no result":       {"s", []string{"7.a"}, errors.New("down"), Unverified, ErrUnverified},
		"no result, odd":  {"s", []string{"7.a"}, fencelock.ErrNoToken, Unverified, ErrUnverified},
		"not asked about": {"s", []string{"7"}, errors.New("it was"), InvalidToken, fencelock.ErrInvalidToken},
	} {
		t.Run(name, func(t *testing.T) {
			var told []error
			g := &Gate{
				Verify: func(context.Context, fencelock.Token) error { return c.verify },
				Hooks:  fencelock.Hooks{TokenRejected: func(info fencelock.TokenRejectedInfo) { told = append(told, info.Err) }},
			}
			token, denial := g.Admit(t.Context(), c.scope, c.have)
			require.True(t, token.IsZero())
			require.NotNil(t, denial)
			require.Equal(t, c.kind, denial.Kind)
			require.NotEmpty(t, denial.Detail)
			if c.hook == nil {
				require.Empty(t, told)
				return
			}
			require.Len(t, told, 1)
			require.ErrorIs(t, told[0], c.hook)
		})
	}
	g := &Gate{Hooks: fencelock.Hooks{TokenRejected: func(info fencelock.TokenRejectedInfo) { t.Error(info.Err) }}}
	got, denial := g.Admit(t.Context(), "s", []string{"7.a"})
	require.Nil(t, denial)
	require.True(t, got.Equal(token(t, "s", "7.a")))
}

// TestHooksThatFail: the denial is the same, and somebody is told of the hook.
func TestHooksThatFail(t *testing.T) {
	for want, hook := range map[string]func(fencelock.TokenRejectedInfo){
		"panic in a hook":            func(fencelock.TokenRejectedInfo) { panic("oh") },
		"a hook ended its goroutine": func(fencelock.TokenRejectedInfo) { runtime.Goexit() },
	} {
		var log bytes.Buffer
		old := slog.Default()
		slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
		_, denial := (&Gate{Hooks: fencelock.Hooks{TokenRejected: hook}}).Admit(t.Context(), "s", nil)
		slog.SetDefault(old)
		require.Equal(t, NoToken, denial.Kind)
		require.Contains(t, log.String(), want)
	}
}

// TestWayBack: what a fence said arrives as it was, whatever bytes a name has.
func TestWayBack(t *testing.T) {
	for _, name := range []string{"s", "s\xff", strings.Repeat("\xffa", 512), "\x00", "<&>"} {
		presented, highest := token(t, name, "7.a"), token(t, name, "9.b")
		r, ok := Describe(&fencelock.StaleError{Scope: name, Presented: presented, Highest: highest}, presented)
		require.True(t, ok)
		require.True(t, utf8.ValidString(r.Scope))

		own := r.Stale(presented, "7.a")
		require.NotNil(t, own)
		require.True(t, own.Presented.Equal(presented), "the holder has to recognise its token")
		require.True(t, own.Highest.Equal(highest))

		// The client knows no more than the text, or not even that.
		for _, sent := range []string{"7.a", ""} {
			require.ErrorIs(t, r.Stale(fencelock.Token{}, sent), fencelock.ErrStale, "%q", name)
		}
	}
}

// TestRefusalWithoutAName: a service that only says "stale" has still refused it.
func TestRefusalWithoutAName(t *testing.T) {
	own := token(t, "s", "7.a")
	for _, sent := range []string{"7.a", ""} {
		stale := Refusal{}.Stale(fencelock.Token{}, sent)
		require.ErrorIs(t, stale, fencelock.ErrStale)
		require.True(t, stale.Presented.IsZero(), "of no lock that is known")
		require.NotEmpty(t, stale.Error())
	}
	stale := Refusal{}.Stale(own, "7.a")
	require.Equal(t, "s", stale.Scope)
	require.True(t, stale.Presented.Equal(own))
	require.True(t, stale.Highest.IsZero())
}

func TestRefusalThatNoFenceMakes(t *testing.T) {
	own := token(t, "s", "7.a")
	for name, r := range map[string]Refusal{
		"another token":         {Scope: "s", Presented: "8.a", Highest: "9.b"},
		"another holder":        {Scope: "s", Presented: "7.b", Highest: "9.b"},
		"a mark below":          {Scope: "s", Presented: "7.a", Highest: "6.b"},
		"the token as the mark": {Scope: "s", Presented: "7.a", Highest: "7.a"},
		"a mark that is none":   {Scope: "s", Presented: "7.a", Highest: "none"},
	} {
		require.Nil(t, r.Stale(own, "7.a"), name)
		if name != "another token" && name != "another holder" {
			require.Nil(t, r.Stale(fencelock.Token{}, ""), name)
		}
	}
	require.Nil(t, Refusal{Scope: "s", Presented: "none"}.Stale(fencelock.Token{}, ""))
}

// TestDescribeFillsIn what the fence did not say: it is known whose token it was.
func TestDescribeFillsIn(t *testing.T) {
	request := token(t, "s", "7.a")
	for _, err := range []error{fencelock.ErrStale, &fencelock.StaleError{Scope: "s"}, fmt.Errorf("x: %w", fencelock.ErrStale)} {
		r, ok := Describe(err, request)
		require.True(t, ok)
		require.Equal(t, Refusal{Scope: "s", Presented: "7.a"}, r)
	}
	var none *fencelock.StaleError
	_, ok := Describe(none, request)
	require.False(t, ok, "a nil pointer in an error is no refusal")
	_, ok = Describe(fmt.Errorf("no %d", 1), request)
	require.False(t, ok)
	_, ok = Describe(gap{}, request)
	require.False(t, ok)
}

// gap is an error that unwraps to nothing.
type gap struct{}

func (gap) Error() string   { return "gap" }
func (gap) Unwrap() []error { return []error{nil, nil} }

func TestShortened(t *testing.T) {
	require.Equal(t, `"a\nb"`, Shortened("a\nb"))
	for _, s := range []string{strings.Repeat("x", 201), strings.Repeat("\xff", 1<<20), strings.Repeat("ü", 200)} {
		short := Shortened(s)
		require.LessOrEqual(t, len(short), 1024)
		require.True(t, utf8.ValidString(short))
		require.True(t, strings.HasSuffix(short, "…"))
	}
}

// FuzzRefusal: whatever a server says, the client gets nothing or a refusal of the
// token it sent, with a mark that a fence refuses it for.
func FuzzRefusal(f *testing.F) {
	f.Add("s", "7.a", "9.b", "s", "7.a")
	f.Add("s\xff", "", "7.b", "", "7.a")
	f.Add("", "7.a", "7.a", "s", "")
	f.Add(strings.Repeat("n", 2000), "7.a", "9223372036854775808.b", "", "")
	f.Fuzz(func(t *testing.T, scope, presented, highest, name, sent string) {
		own, _ := fencelock.ParseToken(name, sent)
		stale := Refusal{Scope: scope, Presented: presented, Highest: highest}.Stale(own, sent)
		if stale == nil {
			return
		}
		require.ErrorIs(t, stale, fencelock.ErrStale)
		require.LessOrEqual(t, len(stale.Error()), 6*len(stale.Scope)+1024)
		if !own.IsZero() {
			require.True(t, stale.Presented.Equal(own))
		}
		if !stale.Highest.IsZero() {
			require.GreaterOrEqual(t, stale.Highest.Compare(stale.Presented), 0)
			require.False(t, stale.Highest.Equal(stale.Presented))
		}
	})
}
