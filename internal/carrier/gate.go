package carrier

import (
	"context"
	"errors"
	"fmt"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/hook"
)

// ErrUnverified is what the hook's error is, besides the verifier's own, when a
// verifier came to no result.
var ErrUnverified = errors.New("fencelock: the fencing token could not be verified now; try again")

// Gate is what stands before a server's handler.
type Gate struct {
	Verify func(context.Context, fencelock.Token) error // optional
	Hooks  fencelock.Hooks
}

// Kind is why a request was not admitted.
type Kind int

// The kinds, in no order.
const (
	NoScope      Kind = iota // the server found no lock that guards what the request is for
	NoToken                  // there is none
	InvalidToken             // more than one, a malformed one, or one that was never issued
	Stale                    // the verifier says that it is superseded
	Unverified               // the verifier came to no result
)

// Denial is what the client is told of a request that was not admitted.
//
// It is no error, and its Kind says where in the gate the request was stopped. To
// go by what an error wraps was not enough: a verifier that is refused something
// itself, or has no token of its own, wraps sentinels that say nothing about the
// request's token.
type Denial struct {
	Kind    Kind
	Detail  string  // for people; valid UTF-8
	Refusal Refusal // of a Stale one
}

// Unscoped is the Denial of a request whose lock the server could not name. What
// went wrong is not passed on: it is the server's own.
func Unscoped() *Denial {
	return &Denial{Kind: NoScope, Detail: "fencelock: the request is for nothing that a lock guards here"}
}

// Admit returns the token of a request that is for what the lock scope guards, and
// carries the values in have, or why it is not admitted. In that case the hook was
// called, except for NoScope, which is about no token.
func (g *Gate) Admit(ctx context.Context, scope string, have []string) (fencelock.Token, *Denial) {
	token, err := One(scope, have)
	if errors.Is(err, fencelock.ErrInvalidName) {
		return fencelock.Token{}, Unscoped()
	}
	var denial *Denial
	switch {
	case errors.Is(err, fencelock.ErrNoToken):
		denial = &Denial{Kind: NoToken, Detail: err.Error()}
	case err != nil:
		denial = &Denial{Kind: InvalidToken, Detail: err.Error()} // it shows what the client itself sent
	default:
		denial, err = g.verify(ctx, token)
	}
	if denial != nil {
		hook.Call(nil, g.Hooks.TokenRejected, fencelock.TokenRejectedInfo{Token: token, Err: err})
		return fencelock.Token{}, denial
	}
	return token, nil
}

// verify returns, if it does not admit the token, also the error for the hook. What
// the verifier found is for the hook alone: to tell a forger how high etcd is would
// be to tell how high to go.
func (g *Gate) verify(ctx context.Context, token fencelock.Token) (*Denial, error) {
	if g.Verify == nil {
		return nil, nil
	}
	err := g.Verify(ctx, token)
	switch {
	case err == nil:
		return nil, nil
	case errors.Is(err, fencelock.ErrStale):
		r, ok := Describe(err, token)
		if !ok { // whatever it compared, this token is the one it refused
			r = Refusal{Scope: valid(token.Name()), Presented: text(token)}
		}
		return &Denial{Kind: Stale, Detail: r.Error(), Refusal: r}, err
	case errors.Is(err, fencelock.ErrInvalidToken):
		return &Denial{Kind: InvalidToken, Detail: "fencelock: a fencing token that was never issued"}, err
	}
	return &Denial{Kind: Unverified, Detail: ErrUnverified.Error()}, fmt.Errorf("%w: %w", ErrUnverified, err)
}
