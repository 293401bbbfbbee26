package httpfence

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/carrier"
)

// maxProblem bounds what is read of an answer to find out whether it is ours. A
// name has up to 1024 bytes, and six as many in JSON.
const maxProblem = 16 << 10

// CheckResponse returns the error that a service behind [Require] refused a
// request with, or nil if resp is no such refusal. A nil error says nothing about
// the status otherwise: look at it, or a 500 passes for a success. It returns:
//
//   - a [*fencelock.StaleError], which is [fencelock.ErrStale], for a 412: the
//     effect was not applied. Scope is the lock's name as the service has it; the
//     names of the tokens are that of the lock whose token was sent, if it was
//     sent by a [Transport], so that [fencelock.Locker.Do] knows its own token.
//     Highest is zero if the service did not say, and both are if it named no lock
//     either and no Transport knows it;
//   - an error that wraps [fencelock.ErrNoToken], for a 428: the effect was not
//     applied;
//   - one that wraps [fencelock.ErrInvalidToken], for a 400: the same;
//   - one that is [ErrNoScope], for a 400: the same;
//   - one that is [ErrUnverified], for a 503: the same, and it can be tried again;
//   - one that wraps [fencelock.ErrInvalidOption] for a nil resp.
//
// Everything else is passed: a 412 because of an If-Match header, an error of a
// proxy, a refusal of a token that was not this request's, an answer to HEAD, which has
// no body, and one that is still compressed because the client asked for that itself.
//
// resp stays the caller's, to read and to close, also after an error. Its body
// can be read from its beginning; of answers with these statuses and the content
// type application/problem+json up to 16 KiB were read ahead.
func CheckResponse(resp *http.Response) error {
	if resp == nil {
		return fmt.Errorf("%w: httpfence.CheckResponse of a nil response", fencelock.ErrInvalidOption)
	}
	switch resp.StatusCode {
	case http.StatusPreconditionFailed, http.StatusPreconditionRequired, http.StatusBadRequest, http.StatusServiceUnavailable:
	default:
		return nil
	}
	media, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err != nil || media != problemType || resp.Body == nil {
		return nil
	}
	p, ok := peek(resp)
	if !ok {
		return nil
	}
	switch {
	case resp.StatusCode == http.StatusPreconditionFailed && p.Type == typeStale:
		if stale := p.stale(resp.Request); stale != nil {
			return stale
		}
	case resp.StatusCode == http.StatusPreconditionRequired && p.Type == typeNoToken:
		return fmt.Errorf("httpfence: the service requires a token: %w", fencelock.ErrNoToken)
	case resp.StatusCode == http.StatusBadRequest && p.Type == typeInvalidToken:
		return fmt.Errorf("httpfence: the service refused the token: %w: it says %s", fencelock.ErrInvalidToken, carrier.Shortened(p.Detail))
	case resp.StatusCode == http.StatusBadRequest && p.Type == typeNoScope:
		return ErrNoScope
	case resp.StatusCode == http.StatusServiceUnavailable && p.Type == typeUnverified:
		return ErrUnverified
	}
	return nil
}

// What [CheckResponse] finds that is not about the token. In both cases the handler
// did not run.
var (
	// ErrNoScope: the service found no lock that guards what the request is for.
	ErrNoScope = errors.New("httpfence: the service finds no lock that guards what the request is for; look at the request's path")
	// ErrUnverified: the service's verifier came to no result. The token is neither
	// good nor bad, and the request can be tried again.
	ErrUnverified = errors.New("httpfence: the service could not verify the token now; try again")
)

// peek reads a problem from the body, and puts back what it read.
func peek(resp *http.Response) (p problem, ok bool) {
	read, err := io.ReadAll(io.LimitReader(resp.Body, maxProblem+1))
	rest := io.Reader(resp.Body)
	if err != nil {
		rest = failed{err}
	}
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(read), rest), resp.Body}
	if err != nil || len(read) > maxProblem {
		return problem{}, false
	}
	err = json.Unmarshal(read, &p)
	return p, err == nil
}

// failed is what is left of a body that broke off.
type failed struct{ err error }

func (f failed) Read([]byte) (int, error) { return 0, f.err }

func (p problem) stale(req *http.Request) *fencelock.StaleError {
	refusal := carrier.Refusal{Scope: p.Scope, Presented: p.Presented, Highest: p.Highest}
	if req == nil {
		return refusal.Stale(fencelock.Token{}, "")
	}
	// Without a token here it was sent by a transport that does not show what it
	// put on the request: then the answer alone says what was presented.
	token, text, _, err := carried(req)
	if err != nil && !errors.Is(err, fencelock.ErrNoToken) {
		return nil
	}
	return refusal.Stale(token, text)
}
