package httpfence

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
)

// ErrRedirect is returned for a request that follows a redirect which a write must
// not follow silently. Either it leads to another origin than the first request's, and
// the token is for the service it was sent to. Or it was a 301 or a 302 to something
// that is not a GET or HEAD: net/http follows those with a GET, whose 200 would be
// taken for the write's. Nothing was sent there. Send the request to the other address
// itself if that is what you mean, or set the client's CheckRedirect.
var ErrRedirect = errors.New("httpfence: the redirect is not followed with a fencing token")

// Transport is a [http.RoundTripper] that puts a token into the header of each
// request. The token comes from the request's context, see [WithToken], or is
// in the header already, see [SetToken]. The zero Transport is ready. Use it for
// fenced requests only: a request without a token is an error, for what the
// service does without one is not fenced.
//
// It changes no request it is given, and interprets no answer; see
// [CheckResponse]. Before anything is sent a request fails with:
//
//   - [fencelock.ErrNoToken]: there is no token, or the zero one;
//   - [ErrOtherToken]: header and context disagree;
//   - [fencelock.ErrInvalidToken]: what the header has is not one token;
//   - [ErrRedirect]: a client follows a redirect to another scheme, host or port, or
//     one that made a GET of another method, unless it is a 303, which is meant so.
//     Other redirects are followed, with the token.
//
// A Transport can be used from any goroutine, as Base can.
type Transport struct {
	// Base sends the requests; nil is [http.DefaultTransport].
	Base http.RoundTripper
}

// RoundTrip sends a copy of req with the token in its header.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	_, text, missing, err := carried(req)
	if err == nil {
		err = redirected(req)
	}
	if err != nil {
		if req.Body != nil {
			_ = req.Body.Close() // a RoundTripper's duty, also if it sends nothing
		}
		return nil, fmt.Errorf("httpfence: nothing was sent: %w", err)
	}
	if missing {
		req = req.Clone(req.Context())
		if req.Header == nil {
			req.Header = make(http.Header)
		}
		req.Header.Set(Header, text)
	}
	return t.base().RoundTrip(req)
}

// CloseIdleConnections closes those of Base, if it can.
func (t *Transport) CloseIdleConnections() {
	if c, ok := t.base().(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

func (t *Transport) base() http.RoundTripper {
	if t.Base != nil {
		return t.Base
	}
	return http.DefaultTransport
}

// redirected compares a request with those from which redirects led to it, up to
// the one that a client's user made. Where the way back is not known it is an error:
// better to fail than to give a token away.
func redirected(req *http.Request) error {
	first := req
	for first.Response != nil {
		to, status := first, first.Response.StatusCode
		first = first.Response.Request
		if first == nil {
			return ErrRedirect
		}
		if status != http.StatusSeeOther && method(first) != method(to) {
			return fmt.Errorf("%w: a %d made a %s of the %s, which was not done", ErrRedirect, status, method(to), method(first))
		}
	}
	if first != req && origin(first.URL) != origin(req.URL) {
		return fmt.Errorf("%w: it leads to another origin, from %s to %s", ErrRedirect, origin(first.URL), origin(req.URL))
	}
	return nil
}

func method(req *http.Request) string {
	if req.Method == "" {
		return http.MethodGet
	}
	return req.Method
}

// origin is scheme, host and port. A host is the same in any case, and with its
// scheme's port named or not.
func origin(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return u.Scheme + "://" + strings.ToLower(u.Hostname()) + ":" + port
}
