package fencelock

import (
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// A text is a token's or an error, and a token's text is the only one that
// gives that token: with two spellings of one number a check by text and a check
// by number could disagree.
func FuzzParseToken(f *testing.F) {
	for _, s := range []string{
		"", ".", "7.h", "07.h", "+7.h", "-7.h", "7", "7.", ".h", "7.h.h", "7 .h", "0.h",
		"9223372036854775807.h", "9223372036854775808.h", "٧.h", "7.ü", "7.\x00", "1e3.h", "0x7.h", "1_000.h",
		"7." + strings.Repeat("h", 128), "7." + strings.Repeat("h", 129), strings.Repeat("9", 1<<10),
	} {
		f.Add("lock", s)
	}
	f.Add("", "7.h")
	f.Add(strings.Repeat("n", 1025), "7.h")
	f.Fuzz(func(t *testing.T, name, text string) {
		tok, err := ParseToken(name, text)
		if err != nil {
			require.True(t, tok.IsZero())
			known := errors.Is(err, ErrNoToken) || errors.Is(err, ErrInvalidToken) || errors.Is(err, ErrInvalidName)
			require.True(t, known, "an error of no kind: %v", err)
			require.LessOrEqual(t, len(err.Error()), 512)
			return
		}
		require.Equal(t, name, tok.Name())
		require.Positive(t, tok.Revision())
		back, err := tok.MarshalText()
		require.NoError(t, err)
		require.Equal(t, text, string(back))
	})
}

// Two names are two queues, and no key of one is in the range of the other's.
func FuzzNameEscaping(f *testing.F) {
	names := []string{"a", "a/b", "ab", "a//b", "../a", "a%2Fb", "a\x00", "a\xff", "a\xfe", "/", "%", "%2F", ".", "..", " ", "ä"}
	for _, a := range names {
		for _, b := range names {
			f.Add(a, b)
		}
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		if checkName(a) != nil || checkName(b) != nil {
			return
		}
		qa, qb := queuePrefix("p/", a), queuePrefix("p/", b)
		require.True(t, strings.HasPrefix(qa, "p/") && strings.HasSuffix(qa, "/"))
		require.Equal(t, 2, strings.Count(qa, "/"), "a name is one path segment: %q", qa)
		if a == b {
			require.Equal(t, qa, qb)
			return
		}
		require.False(t, strings.HasPrefix(qa, qb), "%q is in the queue of %q", a, b)
		end := clientv3.GetPrefixRangeEnd(qb)
		key := string(slotKey(qa, 1<<60, 0))
		require.False(t, key >= qb && key < end, "a key of %q is in the range of %q", a, b)
	})
}

// An option is refused with ErrInvalidOption or leaves a configuration that
// keeps its own rules.
func FuzzOptions(f *testing.F) {
	f.Add(int64(0), int64(0), "", "", int64(0), int64(0))
	f.Add(int64(-1), int64(time.Second), "p", "label", int64(-1), int64(-1))
	f.Add(int64(999*time.Millisecond), int64(1), "p/", "\xff", int64(1), int64(1))
	f.Add(int64(1500*time.Millisecond), int64(2*time.Second), "/", strings.Repeat("l", 257), int64(5), int64(5))
	f.Add(int64(1<<63-1), int64(1<<63-1), "p//", "l", int64(1<<63-1), int64(1<<63-1))
	f.Fuzz(func(t *testing.T, ttl, margin int64, prefix, label string, wait, hold int64) {
		c, err := newConfig([]Option{
			WithTTL(time.Duration(ttl)), WithMargin(time.Duration(margin)), WithPrefix(prefix), WithLabel(label),
			MaxWait(time.Duration(wait)), MaxHold(time.Duration(hold)),
		})
		if err != nil {
			require.ErrorIs(t, err, ErrInvalidOption)
			require.LessOrEqual(t, len(err.Error()), 512)
			return
		}
		require.GreaterOrEqual(t, c.ttl, time.Second)
		require.Zero(t, c.ttl%time.Second, "etcd's TTLs are whole seconds")
		require.GreaterOrEqual(t, c.ttl, time.Duration(ttl), "rounded up, never down")
		require.Less(t, c.ttl-time.Duration(ttl), time.Second)
		require.True(t, c.margin > 0 && c.margin < c.ttl)
		require.True(t, strings.HasSuffix(c.prefix, "/"))
		require.True(t, len(c.label) <= maxLabel && utf8.ValidString(c.label))
		require.GreaterOrEqual(t, c.lock.maxWait, time.Duration(0))
		require.Positive(t, c.lock.maxHold)
	})
}

// Whatever somebody put into a queue is shown as a claim whose token keeps the
// form of one; and what we write ourselves is read back as it was.
func FuzzClaim(f *testing.F) {
	f.Add([]byte(""), "1a", "label", "host", 1)
	f.Add([]byte("{"), "1a-0", "", "", 0)
	f.Add([]byte(`{"holder":"x.y"}`), "ä", "ä", "\xff", -1)
	f.Add([]byte(`{"holder":7}`), strings.Repeat("k", 200), "l", "h", 1)
	f.Add([]byte(`{"holder":"h","since":"yesterday"}`), "", "l", "h", 1)
	f.Add([]byte(`null`), "x", "l", "h", 1)
	f.Fuzz(func(t *testing.T, value []byte, keyEnd, label, host string, pid int) {
		queue := queuePrefix("p/", "n")
		c := claimOf("n", queue, &mvccpb.KeyValue{Key: []byte(queue + keyEnd), Value: value, CreateRevision: 7})
		require.Equal(t, int64(7), c.Token.Revision())
		require.False(t, strings.ContainsFunc(c.Token.Holder(), notHolderChar), "%q", c.Token.Holder())
		if c.Token.Holder() != "" && len(c.Token.Holder()) <= maxHolder {
			_, err := ParseToken("n", c.Token.String())
			require.NoError(t, err)
		}

		label, host = strings.ToValidUTF8(label, "?"), strings.ToValidUTF8(host, "?")
		since := time.Unix(1_800_000_000, 123_456_789).UTC()
		own := newAbout(label, host, pid).record("1a-1", since)
		c = claimOf("n", queue, &mvccpb.KeyValue{Key: []byte(queue + keyEnd), Value: own, CreateRevision: 8})
		require.Equal(t, Claim{Token: Token{name: "n", rev: 8, holder: "1a-1"}, Label: label, Host: host, PID: pid, Since: since}, c)
	})
}
