package fencelock

import (
	"bytes"
	"database/sql/driver"
	"encoding"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"math"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// A Token is accepted wherever these are.
var (
	_ driver.Valuer          = Token{}
	_ encoding.TextMarshaler = Token{}
	_ slog.LogValuer         = Token{}
	_ fmt.Stringer           = Token{}
)

// token makes a token as an acquisition does.
func token(name string, rev int64, holder string) Token {
	return Token{name: name, rev: rev, holder: holder, key: "fencelock/" + name + "/1-0", used: new(atomic.Bool)}
}

func mustParse(t *testing.T, name, text string) Token {
	t.Helper()
	tok, err := ParseToken(name, text)
	require.NoError(t, err)
	return tok
}

func TestParseToken(t *testing.T) {
	for _, c := range []struct {
		text   string
		rev    int64
		holder string
	}{
		{"1.h", 1, "h"},
		{"42.694d81417acd4754-00ff-9", 42, "694d81417acd4754-00ff-9"},
		{"9007199254740993.h", 1<<53 + 1, "h"}, // no float64
		{"9223372036854775807.h", math.MaxInt64, "h"},
		{"7.-_azAZ09", 7, "-_azAZ09"},
		{"7." + strings.Repeat("x", maxHolder), 7, strings.Repeat("x", maxHolder)},
	} {
		tok, err := ParseToken("n", c.text)
		require.NoError(t, err, c.text)
		assert.Equal(t, "n", tok.Name())
		assert.Equal(t, c.rev, tok.Revision())
		assert.Equal(t, c.holder, tok.Holder())
		assert.False(t, tok.IsZero())
		text, err := tok.MarshalText()
		require.NoError(t, err)
		assert.Equal(t, c.text, string(text), "one token has one spelling")
	}
}

func TestParseTokenRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want error
	}{
		"empty":                 {"", ErrNoToken},
		"no dot":                {"7", ErrInvalidToken},
		"only a dot":            {".", ErrInvalidToken},
		"no revision":           {".h", ErrInvalidToken},
		"no holder":             {"7.", ErrInvalidToken},
		"two dots":              {"7.a.b", ErrInvalidToken},
		"plus":                  {"+7.h", ErrInvalidToken},
		"leading zeros":         {"007.h", ErrInvalidToken},
		"zero":                  {"0.h", ErrInvalidToken},
		"minus zero":            {"-0.h", ErrInvalidToken},
		"negative":              {"-1.h", ErrInvalidToken},
		"2^63":                  {"9223372036854775808.h", ErrInvalidToken},
		"2^64":                  {"18446744073709551616.h", ErrInvalidToken},
		"MinInt64":              {"-9223372036854775808.h", ErrInvalidToken},
		"hex":                   {"0x7.h", ErrInvalidToken},
		"underscore":            {"1_000.h", ErrInvalidToken},
		"exponent":              {"1e3.h", ErrInvalidToken},
		"leading space":         {" 7.h", ErrInvalidToken},
		"trailing space":        {"7.h ", ErrInvalidToken},
		"newline":               {"7.h\n", ErrInvalidToken},
		"carriage return":       {"7.h\r\nX: y", ErrInvalidToken},
		"arabic digits":         {"٧.h", ErrInvalidToken},
		"full-width digits":     {"７.h", ErrInvalidToken},
		"NUL":                   {"7.h\x00", ErrInvalidToken},
		"quote in the holder":   {`7.h"`, ErrInvalidToken},
		"slash in the holder":   {"7.a/b", ErrInvalidToken},
		"letter not in ASCII":   {"7.hé", ErrInvalidToken},
		"holder is not UTF-8":   {"7.\xff", ErrInvalidToken},
		"revision is not UTF-8": {"\xff.h", ErrInvalidToken},
		"holder too long":       {"7." + strings.Repeat("x", maxHolder+1), ErrInvalidToken},
		"1 MiB of digits":       {strings.Repeat("9", 1<<20) + ".h", ErrInvalidToken},
		"1 MiB of holder":       {"7." + strings.Repeat("x", 1<<20), ErrInvalidToken},
		"1 MiB without a dot":   {strings.Repeat("\xff", 1<<20), ErrInvalidToken},
		"two texts joined":      {"7.h, 8.h", ErrInvalidToken},
		"the zero Token's text": {Token{}.String(), ErrInvalidToken},
	} {
		t.Run(name, func(t *testing.T) {
			tok, err := ParseToken("n", c.text)
			require.ErrorIs(t, err, c.want)
			assert.True(t, tok.IsZero(), "no token comes with an error")
			assert.Less(t, len(err.Error()), 600, "foreign text does not fill a log")
			assert.NotContains(t, err.Error(), "\n")
		})
	}
}

func TestParseTokenChecksTheName(t *testing.T) {
	for _, name := range []string{"", strings.Repeat("n", maxName+1)} {
		tok, err := ParseToken(name, "7.h")
		require.ErrorIs(t, err, ErrInvalidName)
		assert.True(t, tok.IsZero())
	}
}

func TestTokenCompare(t *testing.T) {
	low, high := token("n", 3, "a"), token("n", 5, "b")
	assert.Equal(t, -1, low.Compare(high))
	assert.Equal(t, +1, high.Compare(low))
	assert.Equal(t, 0, high.Compare(high))
	assert.Equal(t, 0, high.Compare(token("n", 5, "c")), "the holder has no order")
	assert.Equal(t, -1, token("n", math.MaxInt64-1, "a").Compare(token("n", math.MaxInt64, "a")))

	assert.Equal(t, -1, Token{}.Compare(low))
	assert.Equal(t, +1, low.Compare(Token{}))
	assert.Equal(t, 0, Token{}.Compare(Token{}))

	assert.PanicsWithValue(t, `fencelock: Compare of tokens of two locks, "n" and "m"`, func() {
		low.Compare(token("m", 3, "a"))
	})
}

func TestTokenEqual(t *testing.T) {
	tok := token("n", 5, "h")
	assert.True(t, tok.Equal(tok))
	assert.True(t, tok.Equal(mustParse(t, "n", "5.h")), "it came back over a wire")
	assert.True(t, Token{}.Equal(Token{}))
	for name, other := range map[string]Token{
		"another lock":     token("m", 5, "h"),
		"another revision": token("n", 6, "h"),
		"another holder":   token("n", 5, "g"),
		"none":             {},
	} {
		assert.False(t, tok.Equal(other), name)
		assert.False(t, other.Equal(tok), name)
	}
}

// The mark that a token was used is shared by its copies, so == would call
// equal tokens different. It must not compile; nor can a Token be a map's key.
func TestTokenIsNotComparable(t *testing.T) {
	assert.False(t, reflect.TypeFor[Token]().Comparable())
}

func TestZeroToken(t *testing.T) {
	var zero Token
	assert.True(t, zero.IsZero())
	assert.Empty(t, zero.Name())
	assert.Zero(t, zero.Revision())
	assert.Empty(t, zero.Holder())
	assert.Equal(t, "none", zero.String())

	value, err := zero.Value()
	assert.ErrorIs(t, err, ErrNoToken)
	assert.Nil(t, value)
	text, err := zero.MarshalText()
	assert.ErrorIs(t, err, ErrNoToken)
	assert.Nil(t, text)
}

func TestTokenValueIsItsRevision(t *testing.T) {
	for _, tok := range []Token{token("n", math.MaxInt64, "h"), mustParse(t, "n", "9223372036854775807.h")} {
		value, err := tok.Value()
		require.NoError(t, err)
		assert.Equal(t, int64(math.MaxInt64), value)
	}
}

func TestTokenIsOwner(t *testing.T) {
	tok := token("n", 5, "h")
	cmp := tok.IsOwner()
	assert.Equal(t, "fencelock/n/1-0", string(cmp.KeyBytes()))
	assert.Equal(t, pb.Compare_EQUAL, cmp.GetCompare().Result)
	assert.Equal(t, int64(5), cmp.GetCompare().GetCreateRevision())

	// A token that knows no key must make a compare that fails on every store,
	// also on one without the key: there the creation revision is 0.
	for name, tok := range map[string]Token{"zero": {}, "parsed": mustParse(t, "n", "5.h")} {
		inBubble(t, func(t *testing.T, _ *fakeEtcd, l *fakeLink) {
			for _, stored := range []bool{false, true} {
				cmp := tok.IsOwner()
				if stored {
					mustPut(t, l, string(cmp.KeyBytes()))
				}
				resp, err := l.client.Txn(t.Context()).If(cmp).Commit()
				require.NoError(t, err)
				assert.False(t, resp.Succeeded, "%s token, key stored: %v", name, stored)
			}
		})
	}
}

// A callback that only logs or compares its token has protected nothing.
func TestTokenUse(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(Token)
		used bool
	}{
		"nothing":      {func(Token) {}, false},
		"Name":         {func(tok Token) { _ = tok.Name() }, false},
		"Holder":       {func(tok Token) { _ = tok.Holder() }, false},
		"IsZero":       {func(tok Token) { _ = tok.IsZero() }, false},
		"String":       {func(tok Token) { _ = tok.String() }, false},
		"fmt":          {func(tok Token) { _ = fmt.Sprintf("%v %s", tok, tok) }, false},
		"LogValue":     {func(tok Token) { _ = tok.LogValue() }, false},
		"log":          {func(tok Token) { slog.New(slog.NewJSONHandler(new(bytes.Buffer), nil)).Info("x", "token", tok) }, false},
		"Compare":      {func(tok Token) { _ = tok.Compare(tok) }, false},
		"Equal":        {func(tok Token) { _ = tok.Equal(tok) }, false},
		"an error":     {func(tok Token) { _ = (&LostError{Token: tok}).Error() }, false},
		"Revision":     {func(tok Token) { _ = tok.Revision() }, true},
		"Value":        {func(tok Token) { _, _ = tok.Value() }, true},
		"MarshalText":  {func(tok Token) { _, _ = tok.MarshalText() }, true},
		"IsOwner":      {func(tok Token) { _ = tok.IsOwner() }, true},
		"Fence":        {func(tok Token) { _ = new(Fence).Do(tok, func() error { return nil }) }, true},
		"Advance":      {func(tok Token) { _ = new(Fence).Advance(tok) }, true},
		"stale, Fence": {func(tok Token) { _ = fenceAt(token("n", 9, "x")).Advance(tok) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			tok := token("n", 5, "h")
			c.do(tok) // a copy
			assert.Equal(t, c.used, tok.wasUsed())
		})
	}
	parsed := mustParse(t, "n", "5.h")
	parsed.Revision()
	assert.False(t, parsed.wasUsed(), "a parsed token has nobody to tell")
}

func TestTokenUseFromManyGoroutines(t *testing.T) {
	tok := token("n", 5, "h")
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				tok.Revision()
				tok.wasUsed()
			}
		})
	}
	wg.Wait()
	assert.True(t, tok.wasUsed())
}

func TestTokenInLogs(t *testing.T) {
	var out bytes.Buffer
	slog.New(slog.NewTextHandler(&out, nil)).Info("x", "token", token("n", 5, "h"))
	assert.Contains(t, out.String(), "token.name=n token.revision=5 token.holder=h")
	assert.Equal(t, "5.h", token("n", 5, "h").String())
}

func fenceAt(tok Token) *Fence {
	f := new(Fence)
	if err := f.Advance(tok); err != nil {
		panic(err)
	}
	return f
}

func TestFenceRule(t *testing.T) {
	mark := token("n", 5, "h")
	for name, c := range map[string]struct {
		tok  Token
		want error
	}{
		"the same":                       {mark, nil},
		"the same, parsed":               {mustParse(t, "n", "5.h"), nil},
		"newer":                          {token("n", 6, "g"), nil},
		"newer, same holder":             {token("n", 6, "h"), nil},
		"largest":                        {token("n", math.MaxInt64, "g"), nil},
		"older":                          {token("n", 4, "g"), ErrStale},
		"older, same holder":             {token("n", 4, "h"), ErrStale},
		"the same number, other holder":  {token("n", 5, "g"), ErrStale},
		"none":                           {Token{}, ErrNoToken},
		"of another lock":                {token("m", 9, "h"), ErrScope},
		"of another lock, older":         {token("m", 1, "h"), ErrScope},
		"of a name that has n in front":  {token("n/a", 9, "h"), ErrScope},
		"of another lock, same as mark":  {token("m", 5, "h"), ErrScope},
		"the same number, longer holder": {token("n", 5, "hh"), ErrStale},
	} {
		t.Run(name, func(t *testing.T) {
			f := fenceAt(mark)
			done := false
			err := f.Do(c.tok, func() error { done = true; return nil })
			require.ErrorIs(t, err, c.want)
			assert.Equal(t, c.want == nil, done)
			highest := mark
			if c.want == nil {
				highest = c.tok
			}
			assert.True(t, f.highest.Equal(highest), "the mark is %s", f.highest)

			assert.ErrorIs(t, fenceAt(mark).Advance(c.tok), c.want)
			if !errors.Is(c.want, ErrStale) {
				return
			}
			var stale *StaleError
			require.ErrorAs(t, err, &stale)
			assert.Equal(t, "n", stale.Scope)
			assert.True(t, stale.Presented.Equal(c.tok))
			assert.True(t, stale.Highest.Equal(mark))
		})
	}
}

func TestFenceBindsToItsFirstToken(t *testing.T) {
	var f Fence
	require.ErrorIs(t, f.Advance(Token{}), ErrNoToken)
	require.NoError(t, f.Advance(token("n", 5, "h")), "a refused token binds nothing")
	err := f.Advance(token("m", 9, "h"))
	require.ErrorIs(t, err, ErrScope)
	assert.Contains(t, err.Error(), `"m"`)
	assert.Contains(t, err.Error(), `"n"`)
	assert.NoError(t, f.Advance(token("n", 6, "g")))
}

func TestFenceKeepsTheMark(t *testing.T) {
	failed := errors.New("disk full")
	for name, effect := range map[string]func() error{
		"the effect fails":  func() error { return failed },
		"the effect panics": func() error { panic(failed) },
	} {
		t.Run(name, func(t *testing.T) {
			var f Fence
			err := func() (err error) {
				defer func() {
					if v := recover(); v != nil {
						err = v.(error)
					}
				}()
				return f.Do(token("n", 5, "h"), effect)
			}()
			require.Equal(t, failed, err, "the effect's own, unchanged")

			// Not stuck, and nothing older passes: the effect may have happened
			// in part.
			assert.ErrorIs(t, f.Advance(token("n", 4, "g")), ErrStale)
			assert.NoError(t, f.Advance(token("n", 5, "h")))
		})
	}
}

func TestFenceWithoutEffect(t *testing.T) {
	var f Fence
	require.ErrorIs(t, f.Do(token("n", 5, "h"), nil), ErrInvalidOption)
	assert.True(t, f.highest.IsZero())
}

// Effects never run beside each other, and in the order in which they run
// their tokens never go down.
func TestFenceUnderConcurrency(t *testing.T) {
	var f Fence
	var running, applied, refused atomic.Int64
	var order []int64 // written by effects only
	var wg sync.WaitGroup
	for g := range int64(8) {
		wg.Go(func() {
			for i := range int64(200) {
				rev := i*8 + g + 1
				err := f.Do(token("n", rev, fmt.Sprint("h", g)), func() error {
					assert.Equal(t, int64(1), running.Add(1))
					order = append(order, rev)
					running.Add(-1)
					return nil
				})
				if err == nil {
					applied.Add(1)
				} else {
					assert.ErrorIs(t, err, ErrStale)
					refused.Add(1)
				}
			}
		})
	}
	wg.Wait()
	assert.EqualValues(t, 1600, applied.Load()+refused.Load())
	require.Len(t, order, int(applied.Load()))
	assert.IsIncreasing(t, order)
	assert.EqualValues(t, 1600, f.highest.Revision(), "the newest of all is never refused")
}

func TestFenceTellsOfARejection(t *testing.T) {
	var got []TokenRejectedInfo
	f := Fence{Hooks: Hooks{TokenRejected: func(i TokenRejectedInfo) { got = append(got, i) }}}
	require.NoError(t, f.Advance(token("n", 5, "h")))
	require.Empty(t, got)
	for _, c := range []struct {
		tok  Token
		want error
	}{{token("n", 4, "g"), ErrStale}, {Token{}, ErrNoToken}, {token("m", 9, "h"), ErrScope}} {
		err := f.Advance(c.tok)
		require.Len(t, got, 1)
		assert.ErrorIs(t, got[0].Err, c.want)
		assert.Equal(t, err, got[0].Err)
		assert.True(t, got[0].Token.Equal(c.tok))
		got = nil
	}
}

func TestFenceContainsAPanickingHook(t *testing.T) {
	logged := captureLog(t)
	f := Fence{Hooks: Hooks{TokenRejected: func(TokenRejectedInfo) { panic("observer") }}}
	require.ErrorIs(t, f.Advance(Token{}), ErrNoToken)
	assert.Contains(t, logged.String(), "observer")
	assert.NoError(t, f.Advance(token("n", 5, "h")), "the fence goes on")
}

// A hook may look at the fence again: none of its locks is held.
func TestFenceHookMayUseTheFence(t *testing.T) {
	var f Fence
	var again error
	f.Hooks.TokenRejected = func(i TokenRejectedInfo) {
		if !i.Token.IsZero() {
			again = f.Advance(Token{})
		}
	}
	require.NoError(t, f.Advance(token("n", 5, "h")))
	require.ErrorIs(t, f.Advance(token("n", 4, "h")), ErrStale)
	assert.ErrorIs(t, again, ErrNoToken)
}

// captureLog makes slog.Default write to a buffer up to the end of the test.
func captureLog(t *testing.T) *bytes.Buffer {
	before, w, flags := slog.Default(), log.Writer(), log.Flags()
	t.Cleanup(func() {
		slog.SetDefault(before)
		log.SetOutput(w) // SetDefault redirects package log, and does not undo it
		log.SetFlags(flags)
	})
	out := new(bytes.Buffer)
	slog.SetDefault(slog.New(slog.NewTextHandler(out, nil)))
	return out
}
