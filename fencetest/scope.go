package fencetest

import (
	"fmt"
	"math"
	"strings"
	"unicode/utf8"

	"github.com/fencelock/fencelock"
)

// Without it a stale holder passes wherever its successor has not written yet: a
// mark for each row guards each row, and not the work that spans them.
func scopeCoversAllKeys(t tb, r Resource) {
	older, current, _ := three()
	r.write(t, older, "k1", "older", "it is the first")
	r.write(t, current, "k2", "current", "it is newer than the mark")
	r.refuseWrite(t, older, "k1", fencelock.ErrStale, "a newer token was seen, at another key of the scope")
	r.refuseWrite(t, older, "k3", fencelock.ErrStale, "a newer token was seen; that nobody has written this key does not matter")
}

// Without it the locks of a resource share one mark: tokens are numbers of one etcd,
// so the holder of a lock that was granted earlier is refused for a lock that has
// nothing to do with it, and it is the rightful holder.
func scopesIndependent(t tb, r Resource) {
	const a, b = scope, scope + "/b"
	low, high := mint(b, first+1, "h1"), mint(a, first+7, "h7")
	r.write(t, high, key, "high", "it is the first")
	r.empty(t, b, key, "the same key was written in another scope")
	r.write(t, low, key, "low", "it is the first of its own scope; the high one is of another")
	r.holds(t, b, key, "low", "the write was acknowledged")
	r.holds(t, a, key, "high", "the later write was in another scope")
	// The number and holder of the other scope's mark are nothing here.
	r.write(t, mint(b, first+7, "other"), key, "b", "it is the newest of its own scope")
	r.write(t, high, key, "a", "it is the mark of its own scope")
	r.holds(t, a, key, "a", "the write was acknowledged")
	r.holds(t, b, key, "b", "the later write was in another scope")

	// Where scope and key are joined to one name, what ends the one and begins the other
	// must not be in either. The number of the second is lower, so that neither its
	// mark nor its data may be the first's.
	for i, joint := range []string{"/", ":", ".", "-", "_", "|", ",", ";", "#", " ", ""} {
		outer, inner := fmt.Sprint("joint", i), fmt.Sprint("joint", i, joint, "x")
		r.write(t, mint(outer, first+2, "h2"), "x"+joint+"k", "outer", "it is the first of its scope")
		r.write(t, mint(inner, first+1, "h1"), "k", "inner", "it is the first of its own scope; its name joined with the key is that of another scope with another key")
		r.holds(t, outer, "x"+joint+"k", "outer", "the later write was in another scope")
		r.holds(t, inner, "k", "inner", "the write was acknowledged")
	}
}

// Without it two locks whose names differ in what a store does not see (the case of a
// letter, a space at the end, what comes after a NUL or after 255 bytes) share a
// mark or even data.
func scopeNames(t tb, r Resource) {
	long := strings.Repeat("n", 1023)
	names := []string{
		"A", "a", "a ", " a", "a  ", "a/b", "a/", "/a", "a//b", "a.b", "a:b", "a%2Fb", "a%", "a_", "%",
		"../a", ".", "..", "a\n", "a\t", "a'b", `a"b`, `a\b`, `a\\b`, "a;--", "a?b=c&d", "a#b",
		"é", "e\u0301", "É", "ß", "ss", "İ", "i", "I", "ı", "日本", "日本 ", "😀", "😁", "\u200b", "\ufeffa", "\ufffd",
		"0", "00", "0.0", "1e0", "1", "null", "NULL",
		long[:255], long[:256], long[:511], long[:512], long + "x", long + "y", long,
		strings.Repeat("é", 512), strings.Repeat("é", 511) + "ee",
	}
	bytes := []string{
		"\x00", "\x00\x00", "a\x00", "a\x00b", "a\x00c", "\xff", "\xfe", "a\xff", "\xc3", "\xc3(", "\xed\xa0\x80",
		strings.Repeat("\xff", 1024), strings.Repeat("\xff", 1023) + "\xfe",
	}
	if r.TextOnly {
		// What is no text is refused, and not folded into something else.
		for _, name := range bytes {
			if err := r.Write(t.Context(), mint(name, first, "h"), key, "folded"); err == nil {
				t.Errorf("Write with a token of scope %s must be refused: the Resource is TextOnly, and this is no text; it passed", quoted(name))
			}
		}
	} else {
		names = append(names, bytes...)
	}
	// Numbers that fall, so that a name which is taken for an earlier one is refused.
	// The mark alone can be mixed up as well as the data: both are looked at, and all
	// names once more when all were written.
	for i, name := range names {
		if !utf8.ValidString(name) && r.TextOnly {
			panic("fencetest: a name that is no text")
		}
		rev := int64(first + len(names) - i)
		if value, found := r.read(t, name, key); found {
			t.Errorf("scope %s must have no value yet; it has that of scope %s", quoted(name), value)
		}
		if err := r.Write(t.Context(), mint(name, rev, "h"), key, fmt.Sprint(i)); err != nil {
			t.Errorf("Write with the first token of scope %s must pass; it returned: %v", quoted(name), err)
		}
	}
	for i, name := range names {
		r.holds(t, name, key, fmt.Sprint(i), "the write was acknowledged, and all others were in other scopes")
		rev := int64(first + len(names) - i)
		if err := r.Write(t.Context(), mint(name, rev-1, "h"), key, "stale"); err == nil {
			t.Errorf("Write with a stale token of scope %s must be refused; it passed", quoted(name))
		}
	}
}

func quoted(name string) string {
	if len(name) > 40 {
		return fmt.Sprintf("%+q… (%d bytes)", name[:40], len(name))
	}
	return fmt.Sprintf("%+q", name)
}

// Without it two neighbouring tokens are one, or their order turns round, once the
// numbers have grown: after 2^53 in a float64 (and in JSON, JavaScript and Lua), after
// 2^31 in 32 bits, from 9 to 10 in a text. It is late then to find out.
func exactNumbers(t tb, r Resource) {
	for _, low := range []int64{
		1, 9, 99, 127, 255, 32767, 65535, 99_999,
		1<<24 - 1, 1 << 24,
		1<<31 - 2, 1<<31 - 1, 1 << 31, 1<<32 - 1, 1 << 32, 1<<32 + 1,
		1<<53 - 1, 1 << 53, 1<<53 + 1, 9_999_999_999_999_999, 999_999_999_999_999_999,
		1<<62 - 1, 1 << 62, math.MaxInt64 - 2, math.MaxInt64 - 1,
	} {
		high := low + 1
		// At the end of a row of neighbours the low one is the mark already.
		lower, higher := mint(scope, low, fmt.Sprint("h", low)), mint(scope, high, fmt.Sprint("h", high))
		r.write(t, lower, key, "low", "it is not below the mark")
		r.write(t, higher, key, "high", fmt.Sprintf("it is newer by one than the mark, %d", low))
		r.refuseEach(t, lower, key, fencelock.ErrStale, fmt.Sprintf("it is below the mark by one, %d", high))
		r.refuseWrite(t, mint(scope, low, higher.Holder()), key, fencelock.ErrStale, fmt.Sprintf("it is below the mark by one, %d, also with the mark's holder", high))
		r.holds(t, scope, key, "high", "what came later was refused")
	}
}
