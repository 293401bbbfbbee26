package carrier

import (
	"errors"
	"strconv"
	"strings"

	"github.com/fencelock/fencelock"
)

// Refusal is a [fencelock.StaleError] on its way back to the client.
type Refusal struct {
	Scope     string // valid UTF-8, also where the lock's name is not
	Presented string // a token's text, or empty if the fence did not say
	Highest   string // the same
}

// Describe returns the refusal that err is of the token the request came with.
// ok is false if err is none, or is about another token: what a handler does
// with a token of its own is no fault of the client. A zero request stands for one
// whose token is not known, and any refusal is taken for one of it.
func Describe(err error, request fencelock.Token) (r Refusal, ok bool) {
	stale, bare := find(err, func(stale *fencelock.StaleError) bool {
		// By text and not by Equal: the handler may have to name the lock
		// differently at its own fence.
		return request.IsZero() || stale.Presented.IsZero() || stale.Presented.String() == request.String()
	})
	switch {
	case stale != nil:
		r = Refusal{Scope: valid(stale.Scope), Presented: text(stale.Presented), Highest: text(stale.Highest)}
	case bare:
		r = Refusal{Scope: valid(request.Name())}
	default:
		return Refusal{}, false
	}
	if r.Presented == "" { // the fence did not say, and it was this one
		r.Presented = text(request)
	}
	return r, true
}

// find looks through the tree of err for a StaleError that is wanted. Where there is
// none bare says whether something in it is fencelock.ErrStale and no StaleError.
// errors.As would not do: it finds the first one, and a handler that was refused at
// two fences joins the errors of both.
func find(err error, wanted func(*fencelock.StaleError) bool) (stale *fencelock.StaleError, bare bool) {
	if err == nil {
		return nil, false
	}
	stale, is := err.(*fencelock.StaleError)
	if as, ok := err.(interface{ As(any) bool }); ok && !is {
		is = as.As(&stale)
	}
	if is {
		if stale != nil && wanted(stale) {
			return stale, false
		}
		return nil, false
	}
	if err == fencelock.ErrStale {
		return nil, true
	}
	if is, ok := err.(interface{ Is(error) bool }); ok && is.Is(fencelock.ErrStale) {
		bare = true
	}
	var within []error
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		within = []error{e.Unwrap()}
	case interface{ Unwrap() []error }:
		within = e.Unwrap()
	}
	for _, err := range within {
		stale, b := find(err, wanted)
		if stale != nil {
			return stale, false
		}
		bare = bare || b
	}
	return nil, bare
}

// Error returns the refusal for people.
func (r Refusal) Error() string {
	highest := r.Highest
	if highest == "" {
		highest = "a newer one"
	}
	return "fencelock: stale fencing token: " + highest + " was seen before; the effect was not applied"
}

// Stale returns the refusal as the client's error, or nil if it cannot be one of
// the token that was sent. own is that token where the client still has it as
// such, else zero; sent is its text, or empty if even that is not known. The tokens
// in the error are zero if neither own nor the answer has a name for them.
func (r Refusal) Stale(own fencelock.Token, sent string) *fencelock.StaleError {
	if sent == "" {
		sent = r.Presented
	}
	if r.Presented != "" && r.Presented != sent {
		return nil // of a request that somebody else made, as a server does to another
	}
	// The client knows which lock it holds. The server's name for it is only a
	// name, and under it the holder would not recognise its own token.
	name := own.Name()
	if own.IsZero() {
		name = r.Scope
	}
	presented, err := fencelock.ParseToken(name, sent)
	if errors.Is(err, fencelock.ErrInvalidName) {
		// It is a refusal all the same, of a lock that the answer does not name, or
		// not so that a token can be of it: a name grows by what stands for bytes
		// that are no UTF-8.
		return &fencelock.StaleError{Scope: r.Scope}
	}
	if err != nil {
		return nil
	}
	var highest fencelock.Token
	if r.Highest != "" {
		highest, err = fencelock.ParseToken(name, r.Highest)
		if err != nil || highest.Compare(presented) < 0 || highest.Equal(presented) {
			return nil // no fence refuses that
		}
	}
	scope := r.Scope
	if scope == "" {
		scope = name
	}
	return &fencelock.StaleError{Scope: scope, Presented: presented, Highest: highest}
}

func text(t fencelock.Token) string {
	if t.IsZero() {
		return ""
	}
	return t.String() // not MarshalText: a refusal is no use of the token
}

// valid makes a lock's name, which is any bytes, fit for JSON and protobuf.
func valid(name string) string { return strings.ToValidUTF8(name, "\uFFFD") }

// Shortened quotes foreign text, and does not let it fill a log.
func Shortened(s string) string {
	if len(s) > 200 {
		return strconv.Quote(s[:200]) + "…"
	}
	return strconv.Quote(s)
}
