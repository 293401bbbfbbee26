package fencelock

import (
	"database/sql/driver"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock/internal/hook"
	"github.com/fencelock/fencelock/internal/seam"
)

// maxHolder bounds the holder part of a token's text. Ours has at most 54
// bytes; the rest is room for holders written by something else.
const maxHolder = 128

// Token is a fencing token: the creation revision of the lock's key in etcd,
// and the id of the acquisition it was granted to. For one lock the revision
// rises strictly from grant to grant, so a resource that remembers the highest
// token it has seen can refuse everything that comes from an earlier holder.
//
// A Token is a small value; copy it freely. The zero Token is no token: every
// fence refuses it with [ErrNoToken]. Tokens are compared with [Token.Equal]
// and [Token.Compare]; == does not compile, because copies carry a shared mark
// that says whether the token was used.
//
// Used means: its number or text was taken with [Token.Value],
// [Token.MarshalText], [Token.IsOwner] or [Token.Revision], or it was given to
// a fence. [Locker.Do] warns about a callback that never used its token.
type Token struct {
	_      [0]func() // no ==
	name   string
	rev    int64
	holder string
	key    string       // the lock's key; only in a token from an acquisition
	used   *atomic.Bool // shared by all copies; only in a token from an acquisition
}

// ParseToken returns the token of lock name that text stands for: the form
// [Token.MarshalText] writes, "<revision>.<holder>", where the revision is a
// positive decimal int64 without sign or leading zeros, and the holder has 1 to
// 128 bytes of letters, digits, '-' and '_'. It is the only way to make a
// token from outside.
//
// The name is the receiver's own idea of which lock guards the resource; it
// never comes with the token. An empty text is [ErrNoToken], any other bad
// text [ErrInvalidToken], a bad name [ErrInvalidName].
func ParseToken(name, text string) (Token, error) {
	if err := checkName(name); err != nil {
		return Token{}, err
	}
	if text == "" {
		return Token{}, ErrNoToken
	}
	revText, holder, ok := strings.Cut(text, ".")
	if !ok {
		return Token{}, fmt.Errorf("%w: %s has no '.' between revision and holder", ErrInvalidToken, quote(text))
	}
	rev, err := strconv.ParseInt(revText, 10, 64)
	// ParseInt takes "+7" and "007"; a text with two spellings could pass one
	// check and fail another, so only the canonical one is a token.
	if err != nil || rev <= 0 || strconv.FormatInt(rev, 10) != revText {
		return Token{}, fmt.Errorf("%w: %s is not a positive decimal revision", ErrInvalidToken, quote(revText))
	}
	if len(holder) == 0 || len(holder) > maxHolder || strings.ContainsFunc(holder, notHolderChar) {
		return Token{}, fmt.Errorf("%w: %s is not a holder id of 1 to %d letters, digits, '-' and '_'",
			ErrInvalidToken, quote(holder), maxHolder)
	}
	return Token{name: name, rev: rev, holder: holder}, nil
}

func init() {
	seam.MintToken = func(name, text string, used *atomic.Bool) (any, error) {
		t, err := ParseToken(name, text)
		t.used = used
		return t, err
	}
}

func notHolderChar(r rune) bool {
	return (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z') && r != '-' && r != '_'
}

// quote shows foreign text in an error without letting it fill a log.
func quote(s string) string {
	if len(s) > 64 {
		return strconv.Quote(s[:64]) + "…"
	}
	return strconv.Quote(s)
}

// Name returns the name of the lock the token is of, "" for the zero Token.
func (t Token) Name() string { return t.name }

// Revision returns the creation revision of the lock's key in etcd, always
// positive, or 0 for the zero Token. It counts as use.
func (t Token) Revision() int64 {
	t.use()
	return t.rev
}

// Holder returns the id of the acquisition, unique among all acquisitions of
// all Lockers, "" for the zero Token. It tells apart two owners that share a
// number, which a restore of etcd can produce.
func (t Token) Holder() string { return t.holder }

// Compare returns -1, 0 or +1 as the revision of t is below, at or above u's.
// The zero Token is below every other. Two different holders with one revision
// compare as 0 and are not [Token.Equal]. Compare panics if both are tokens
// and of different locks, because their order means nothing.
func (t Token) Compare(u Token) int {
	if !t.IsZero() && !u.IsZero() && t.name != u.name {
		panic(fmt.Sprintf("fencelock: Compare of tokens of two locks, %q and %q", t.name, u.name))
	}
	switch {
	case t.rev < u.rev:
		return -1
	case t.rev > u.rev:
		return +1
	}
	return 0
}

// Equal reports whether t and u are the same acquisition's token: name,
// revision and holder.
func (t Token) Equal(u Token) bool {
	return t.name == u.name && t.rev == u.rev && t.holder == u.holder
}

// IsZero reports whether t is the zero Token, which is no token at all.
func (t Token) IsZero() bool { return t.rev == 0 }

// String returns the token for people: "<revision>.<holder>", or "none" for
// the zero Token. It does not count as use; what travels is
// [Token.MarshalText].
func (t Token) String() string {
	if t.IsZero() {
		return "none"
	}
	return t.text()
}

func (t Token) text() string { return strconv.FormatInt(t.rev, 10) + "." + t.holder }

// LogValue makes a token a group of name, revision and holder in a log. It
// does not count as use.
func (t Token) LogValue() slog.Value {
	return slog.GroupValue(
		slog.String("name", t.name),
		slog.Int64("revision", t.rev),
		slog.String("holder", t.holder),
	)
}

// Value makes a Token a SQL argument: its revision as int64. It counts as use,
// and fails with [ErrNoToken] for the zero Token.
func (t Token) Value() (driver.Value, error) {
	if t.IsZero() {
		return nil, ErrNoToken
	}
	t.use()
	return t.rev, nil
}

// MarshalText returns the form in which a token travels,
// "<revision>.<holder>", exact for every int64; [ParseToken] reads it. It
// counts as use, and fails with [ErrNoToken] for the zero Token. The name does
// not travel: the receiver decides which lock guards its resource.
func (t Token) MarshalText() ([]byte, error) {
	if t.IsZero() {
		return nil, ErrNoToken
	}
	t.use()
	return []byte(t.text()), nil
}

// IsOwner returns a compare that is true while etcd's record still has the key
// of this acquisition, for a Txn on the same etcd through the same (possibly
// namespaced) client: If(token.IsOwner()) makes the Txn a fenced effect. It
// counts as use.
//
// For a zero or parsed token, which knows no key, it is a compare that is
// never true; a compare on a key that does not exist could be.
func (t Token) IsOwner() clientv3.Cmp {
	t.use()
	if t.key == "" {
		return clientv3.Compare(clientv3.CreateRevision("fencelock/no-token"), "=", -1)
	}
	return clientv3.Compare(clientv3.CreateRevision(t.key), "=", t.rev)
}

func (t Token) use() {
	// Load first: the mark is shared, and a store on every statement of many
	// goroutines would move its cache line around.
	if t.used != nil && !t.used.Load() {
		t.used.Store(true)
	}
}

func (t Token) wasUsed() bool { return t.used != nil && t.used.Load() }

// Fence is the check at a resource that lives in one process's memory. The
// zero value is ready, and binds to the lock of its first token; tokens of
// another lock are refused with [ErrScope] from then on.
//
// The rule every fence keeps: a token is refused if it is below the highest
// seen, or equals it with another holder; otherwise it becomes the highest, and
// the effect is applied, with nothing in between. The mark is only as durable
// as the memory it protects: for a resource that survives the process use a
// fence that lives where the resource does.
//
// A Fence must not be copied after first use. Its methods can be called from
// any goroutine.
type Fence struct {
	// Hooks may be set before first use; only TokenRejected is called.
	Hooks Hooks

	mu      sync.Mutex
	highest Token
}

// Advance raises the mark to token without an effect: from its return on,
// nothing from an earlier holder is applied. Call it before the first read of
// what the lock guards. It returns nil if token is the highest now, else
// [ErrNoToken], [ErrScope] or a [*StaleError], and leaves the mark as it was.
func (f *Fence) Advance(token Token) error {
	return f.Do(token, func() error { return nil })
}

// Do runs effect if token is not stale, and returns its error. The check and
// the effect are one step: no other effect of this fence runs between or
// beside them, and effect must not call the Fence. The mark stays raised also
// if effect fails or panics.
//
// If the token is refused effect does not run, and the error is [ErrNoToken],
// [ErrScope] or a [*StaleError]. A nil effect is [ErrInvalidOption].
func (f *Fence) Do(token Token, effect func() error) error {
	if effect == nil {
		return fmt.Errorf("%w: the effect is nil", ErrInvalidOption)
	}
	refused, err := f.apply(token, effect)
	if refused {
		hook.Call(nil, f.Hooks.TokenRejected, TokenRejectedInfo{Token: token, Err: err})
	}
	return err
}

func (f *Fence) apply(token Token, effect func() error) (refused bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	token.use() // also if it is refused: it went where it is checked
	if err := checkMark(f.highest, token); err != nil {
		return true, err
	}
	f.highest = token
	return false, effect()
}

// checkMark is the rule of every fence, for a mark that was read.
func checkMark(highest, token Token) error {
	switch {
	case token.IsZero():
		return ErrNoToken
	case !highest.IsZero() && highest.name != token.name:
		return fmt.Errorf("%w: %q, this fence guards %q; give each lock a fence of its own", ErrScope, token.name, highest.name)
	case token.rev < highest.rev, token.rev == highest.rev && token.holder != highest.holder:
		return &StaleError{Scope: token.name, Presented: token, Highest: highest}
	}
	return nil
}

// staleFor returns the *StaleError in err whose refused token is t. It walks the
// tree by itself: errors.As finds the first one, which can be of another lock.
func staleFor(err error, t Token) *StaleError {
	if stale, ok := err.(*StaleError); ok && stale.Presented.Equal(t) {
		return stale
	}
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		return staleFor(e.Unwrap(), t)
	case interface{ Unwrap() []error }:
		for _, err := range e.Unwrap() {
			if stale := staleFor(err, t); stale != nil {
				return stale
			}
		}
	}
	return nil
}
