package grpcfence

import (
	"context"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/carrier"
	"google.golang.org/grpc/metadata"
)

// Key is the metadata key of a token, in the text form of
// [fencelock.Token.MarshalText].
const Key = "fencing-token"

// ErrOtherToken is returned by the client interceptors for a call whose outgoing
// metadata already has a token, unless it is the same one. Nothing was sent.
var ErrOtherToken = carrier.ErrOtherToken

// Keys of context values. A token that a server was sent is not one it sends:
// passing on a call's context must not pass on its token to whoever is called next.
type (
	outgoing struct{}
	incoming struct{}
)

// WithToken returns a context for calls that are to carry token: the client
// interceptors put it into their metadata. A zero token is refused there, with
// [fencelock.ErrNoToken].
func WithToken(ctx context.Context, token fencelock.Token) context.Context {
	return context.WithValue(ctx, outgoing{}, sending{token: token})
}

// WithoutToken returns a context for calls that are not fenced, and says so: on a
// connection with the client interceptors a call without a token is an error
// otherwise, because what it does would not be fenced. It is for reads, health
// checks and the like on a connection that is shared with fenced calls.
func WithoutToken(ctx context.Context) context.Context {
	return context.WithValue(ctx, outgoing{}, sending{unfenced: true})
}

type sending struct {
	token    fencelock.Token
	unfenced bool
}

// TokenFrom returns the token that the call carried whose context ctx is, or one
// derived from it. Its name is the scope. ok is false if no server interceptor stood
// before the handler, or the call is not fenced. The token is to be given to the
// fence that applies the effect; that it is there says nothing about whether it is
// stale.
func TokenFrom(ctx context.Context) (token fencelock.Token, ok bool) {
	token, ok = ctx.Value(incoming{}).(fencelock.Token)
	return token, ok
}

// send returns ctx with the token in its outgoing metadata, and the token, which is
// zero if the call has none.
func send(ctx context.Context) (context.Context, fencelock.Token, error) {
	s, _ := ctx.Value(outgoing{}).(sending)
	md, _ := metadata.FromOutgoingContext(ctx)
	have := md.Get(Key)
	if s.unfenced {
		if len(have) > 0 {
			return nil, fencelock.Token{}, ErrOtherToken
		}
		return ctx, fencelock.Token{}, nil
	}
	text, missing, err := carrier.Put(have, s.token)
	if err != nil {
		return nil, fencelock.Token{}, err
	}
	if missing {
		ctx = metadata.AppendToOutgoingContext(ctx, Key, text)
	}
	return ctx, s.token, nil
}
