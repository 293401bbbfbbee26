package grpcfence

import (
	"context"
	"errors"
	"fmt"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/carrier"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// ErrUnfenced is what a [Scope] returns for a method that needs no token, because it
// changes nothing that a lock guards. Any other error refuses the call.
var ErrUnfenced = errors.New("grpcfence: the method is not fenced")

// Scope returns the name of the lock that guards what a call is for. It must go by
// what the server itself makes of the call, and never by what a client can choose
// beside that: by the method, an id in the request, the authenticated tenant.
//
// fullMethod is "/package.Service/Method". req is the request message of a unary call,
// not to be changed, and nil for a stream, which begins before its first message: the
// scope of a stream comes from its method and its context. A service whose streams name
// their resource in the first message must carry that in metadata too, and its handler
// must compare the two before it applies anything.
//
// [ErrUnfenced] lets the call pass without a token. Any other error, whatever it wraps, and a name that
// cannot be a lock's, is answered with InvalidArgument; its text is not passed on. A
// Scope should look at the call only, and not wait for anything.
type Scope func(ctx context.Context, fullMethod string, req any) (string, error)

// Option configures [UnaryServerInterceptor] and [StreamServerInterceptor].
type Option func(*config) error

type config struct{ gate carrier.Gate }

// WithHooks sets what is called when a call was refused for its token; none by
// default. Only TokenRejected is called, with the zero Token where there was none to
// parse, and with an error that is [fencelock.ErrNoToken], [fencelock.ErrInvalidToken], or
// what the verifier returned. What the handler's fence refuses is reported by the hooks
// of that fence.
func WithHooks(hooks fencelock.Hooks) Option {
	return func(c *config) error {
		c.gate.Hooks = hooks
		return nil
	}
}

// WithVerifier sets a check of each well-formed token before the handler runs; none by
// default, so that every number up to the largest int64 is taken. It is called with the
// call's context, and its result decides:
//
//   - nil: the token may be used;
//   - an error that is [fencelock.ErrInvalidToken]: it was never issued,
//     InvalidArgument. The client is not told what the verifier said, the hook is;
//   - one that is [fencelock.ErrStale]: it is superseded, FailedPrecondition;
//   - any other: there is no result, Unavailable. A verifier that cannot ask refuses.
//
// etcdverify.Verifier.Verify is one. A verifier is no fence: what it says can be out of
// date when the handler acts.
func WithVerifier(verify func(ctx context.Context, token fencelock.Token) error) Option {
	return func(c *config) error {
		if verify == nil {
			return fmt.Errorf("%w: grpcfence.WithVerifier(nil)", fencelock.ErrInvalidOption)
		}
		c.gate.Verify = verify
		return nil
	}
}

// UnaryServerInterceptor returns an interceptor that lets a call pass if it carries
// exactly one well-formed token, which the handler gets with [TokenFrom], or is not
// fenced. Others get a status without the handler, as the package's documentation lists.
// An error of the handler that is [fencelock.ErrStale], and about the call's token, becomes
// the status that the client interceptors understand; every other is passed as it is, and
// that of a call that is not fenced always.
//
// A nil scope and a nil or bad option are mistakes in the program, found when it starts:
// it panics with an error that wraps [fencelock.ErrInvalidOption].
func UnaryServerInterceptor(scope Scope, opts ...Option) grpc.UnaryServerInterceptor {
	gate := newGate("UnaryServerInterceptor", scope, opts)
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		ctx, token, denial := admit(ctx, gate, scope, info.FullMethod, req)
		if denial != nil {
			return nil, refused(denial)
		}
		resp, err := handler(ctx, req)
		if err != nil {
			return nil, answered(err, token)
		}
		return resp, nil
	}
}

// StreamServerInterceptor returns an interceptor that does for streams what
// [UnaryServerInterceptor] does for calls. The token is required and looked at once, when
// the stream begins; see the package's documentation.
func StreamServerInterceptor(scope Scope, opts ...Option) grpc.StreamServerInterceptor {
	gate := newGate("StreamServerInterceptor", scope, opts)
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		ctx, token, denial := admit(stream.Context(), gate, scope, info.FullMethod, nil)
		if denial != nil {
			return refused(denial)
		}
		if err := handler(srv, &serverStream{ServerStream: stream, ctx: ctx}); err != nil {
			return answered(err, token)
		}
		return nil
	}
}

func newGate(what string, scope Scope, opts []Option) *carrier.Gate {
	if scope == nil {
		panic(fmt.Errorf("%w: grpcfence.%s of a nil scope", fencelock.ErrInvalidOption, what))
	}
	c := new(config)
	for _, opt := range opts {
		if opt == nil {
			panic(fmt.Errorf("%w: grpcfence.%s with a nil option", fencelock.ErrInvalidOption, what))
		}
		if err := opt(c); err != nil {
			panic(err)
		}
	}
	return &c.gate
}

// admit returns the handler's context, and the token in it, which is zero if the call
// is not fenced.
func admit(ctx context.Context, gate *carrier.Gate, scope Scope, fullMethod string, req any) (context.Context, fencelock.Token, *carrier.Denial) {
	name, err := scope(ctx, fullMethod, req)
	if errors.Is(err, ErrUnfenced) {
		return ctx, fencelock.Token{}, nil
	}
	if err != nil {
		return nil, fencelock.Token{}, carrier.Unscoped()
	}
	token, denial := gate.Admit(ctx, name, metadata.ValueFromIncomingContext(ctx, Key))
	if denial != nil {
		return nil, fencelock.Token{}, denial
	}
	return context.WithValue(ctx, incoming{}, token), token, nil
}

// serverStream has the context with the token.
type serverStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *serverStream) Context() context.Context { return s.ctx }
