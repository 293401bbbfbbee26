package httpfence

import (
	"context"
	"fmt"
	"net/http"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/carrier"
)

// Option configures [Require].
type Option func(*config) error

type config struct{ gate carrier.Gate }

// WithHooks sets what is called when a request was refused for its token; none
// by default. Only TokenRejected is called, with the zero Token where there was
// none to parse, and with an error that is [fencelock.ErrNoToken],
// [fencelock.ErrInvalidToken], or what the verifier returned. What the handler's
// fence refuses is reported by the hooks of that fence.
func WithHooks(hooks fencelock.Hooks) Option {
	return func(c *config) error {
		c.gate.Hooks = hooks
		return nil
	}
}

// WithVerifier sets a check of each well-formed token before the handler runs;
// none by default, so that every number up to the largest int64 is taken. It is
// called with the request's context, from the request's goroutine, and its
// result decides:
//
//   - nil: the token may be used;
//   - an error that is [fencelock.ErrInvalidToken]: it was never issued, 400. The
//     client is not told what the verifier said, the hook is;
//   - one that is [fencelock.ErrStale]: it is superseded, 412;
//   - any other: there is no result, 503. A verifier that cannot ask refuses.
//
// etcdverify.Verifier.Verify is one. A verifier is no fence: what it says can be
// out of date when the handler acts. Give yours a bound of its own: a server
// notices that the client of an HTTP/1 request is gone only once the body was read,
// and before that nothing else ends the context.
func WithVerifier(verify func(ctx context.Context, token fencelock.Token) error) Option {
	return func(c *config) error {
		if verify == nil {
			return fmt.Errorf("%w: httpfence.WithVerifier(nil)", fencelock.ErrInvalidOption)
		}
		c.gate.Verify = verify
		return nil
	}
}

// Require returns a middleware that lets a request pass if it carries exactly one
// well-formed token, which the handler gets with [TokenFrom]. Others are answered
// without the handler, as the package's documentation lists.
//
// scope returns the name of the lock that guards what the request is for. It
// must go by what the service itself makes of the request, and never by what a
// client can choose beside that: by the path the mux matched, a resource's id,
// the authenticated tenant. Path values are set only inside of the mux, so wrap
// the handler and not the mux. An error of scope, whatever it wraps, or a name that cannot be a
// lock's, is answered with 400; its text is not passed on. It should look at the
// request only, and not wait for anything.
//
// The handler's ResponseWriter can Flush, Hijack and Push as the one Require was given;
// see [Error] for why it is another.
//
// A nil scope, a nil or bad option and a nil handler are mistakes in the
// program, found when it starts: Require and the middleware panic, with an error
// that wraps [fencelock.ErrInvalidOption].
func Require(scope func(*http.Request) (string, error), opts ...Option) func(http.Handler) http.Handler {
	if scope == nil {
		panic(fmt.Errorf("%w: httpfence.Require of a nil scope", fencelock.ErrInvalidOption))
	}
	c := new(config)
	for _, opt := range opts {
		if opt == nil {
			panic(fmt.Errorf("%w: httpfence.Require with a nil option", fencelock.ErrInvalidOption))
		}
		if err := opt(c); err != nil {
			panic(err)
		}
	}
	return func(next http.Handler) http.Handler {
		if next == nil {
			panic(fmt.Errorf("%w: the middleware of httpfence.Require got a nil handler", fencelock.ErrInvalidOption))
		}
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			name, err := scope(r)
			if err != nil {
				refuse(w, carrier.Unscoped())
				return
			}
			token, denial := c.gate.Admit(r.Context(), name, r.Header.Values(Header))
			if denial != nil {
				refuse(w, denial)
				return
			}
			a := &answer{ResponseWriter: w, token: token}
			next.ServeHTTP(a.writer(), r.WithContext(context.WithValue(r.Context(), incoming{}, a)))
			a.end()
		})
	}
}

// refuse answers a request that was not admitted.
func refuse(w http.ResponseWriter, d *carrier.Denial) {
	p := problem{Detail: d.Detail}
	switch d.Kind {
	case carrier.Stale:
		p = staleProblem(d.Refusal)
	case carrier.NoToken:
		p.Type, p.Title, p.Status = typeNoToken, "Fencing token required", http.StatusPreconditionRequired
	case carrier.InvalidToken:
		p.Type, p.Title, p.Status = typeInvalidToken, "Invalid fencing token", http.StatusBadRequest
	case carrier.NoScope:
		p.Type, p.Title, p.Status = typeNoScope, "Nothing to fence", http.StatusBadRequest
	case carrier.Unverified:
		p.Type, p.Title, p.Status = typeUnverified, "Fencing token not verified", http.StatusServiceUnavailable
	}
	write(w, p)
}
