package httpfence

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/carrier"
)

// Header is the name of the header in which a token travels, in the text form
// of [fencelock.Token.MarshalText].
const Header = "Fencing-Token"

// ErrOtherToken is returned by [SetToken] and [Transport] for a request that
// already carries a token, unless it is the same one. Nothing was sent, and the
// request is as it was.
var ErrOtherToken = carrier.ErrOtherToken

// Keys of context values. A token that a service was sent is not one it sends:
// passing on a request's context must not pass on its token to whoever is called
// next.
type (
	outgoing struct{}
	incoming struct{}
)

// WithToken returns a context for requests that are to carry token: [Transport]
// puts it into the header of every request made with that context. A zero token
// is refused by the Transport, with [fencelock.ErrNoToken].
func WithToken(ctx context.Context, token fencelock.Token) context.Context {
	return context.WithValue(ctx, outgoing{}, token)
}

// SetToken puts token into req's header, for a client without [Transport]. It
// changes req, and it returns:
//
//   - nil: req carries token, and no other;
//   - [fencelock.ErrNoToken]: token is zero;
//   - [ErrOtherToken]: req carries another token, or several;
//   - [fencelock.ErrInvalidOption]: req is nil.
//
// req is as it was after an error.
//
// An [http.Client] copies the header to every request it makes because of a
// redirect, whatever host that goes to; it holds back only what it knows to be
// a secret. Without a Transport set its CheckRedirect, to [http.ErrUseLastResponse] for
// instance, if the service is not trusted to redirect only to itself.
func SetToken(req *http.Request, token fencelock.Token) error {
	if req == nil {
		return fmt.Errorf("%w: httpfence.SetToken of a nil request", fencelock.ErrInvalidOption)
	}
	text, missing, err := carrier.Put(req.Header.Values(Header), token)
	if err != nil {
		return fmt.Errorf("httpfence: %w", err)
	}
	if missing {
		if req.Header == nil {
			req.Header = make(http.Header)
		}
		req.Header.Set(Header, text)
	}
	return nil
}

// TokenFrom returns the token that the request carried whose context ctx is, or
// one derived from it. Its name is the scope. ok is false if no [Require] stood
// before the handler. The token is to be given to the fence that applies the
// effect; that it is there says nothing about whether it is stale.
func TokenFrom(ctx context.Context) (token fencelock.Token, ok bool) {
	a, ok := ctx.Value(incoming{}).(*answer)
	if !ok {
		return fencelock.Token{}, false
	}
	return a.token, true
}

// carried returns the token that req is to be sent with, and its header's value
// where it has one already; the token is zero if only the header is known.
func carried(req *http.Request) (token fencelock.Token, text string, missing bool, err error) {
	have := req.Header.Values(Header)
	token, ok := req.Context().Value(outgoing{}).(fencelock.Token)
	if ok {
		text, missing, err = carrier.Put(have, token)
		return token, text, missing, err
	}
	// Set by hand. Its lock is not known here, and does not matter: what is
	// looked at is the form.
	_, err = carrier.One("-", have)
	if errors.Is(err, fencelock.ErrNoToken) {
		err = fmt.Errorf("%w, with WithToken or SetToken", err)
	}
	if err != nil {
		return fencelock.Token{}, "", false, err
	}
	return fencelock.Token{}, have[0], false, nil
}
