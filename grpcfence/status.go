package grpcfence

import (
	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/carrier"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Domain is the domain of every ErrorInfo of this package.
const Domain = "fencelock"

const (
	reasonStale        = "STALE_TOKEN"
	reasonNoToken      = "TOKEN_REQUIRED"
	reasonInvalidToken = "INVALID_TOKEN"
	reasonNoScope      = "NO_SCOPE"
	reasonUnverified   = "TOKEN_NOT_VERIFIED"
)

// refused returns the status of a call that was not admitted.
func refused(d *carrier.Denial) error {
	var code codes.Code
	var reason string
	switch d.Kind {
	case carrier.Stale:
		return staleStatus(d.Refusal)
	case carrier.NoToken:
		code, reason = codes.FailedPrecondition, reasonNoToken
	case carrier.InvalidToken:
		code, reason = codes.InvalidArgument, reasonInvalidToken
	case carrier.NoScope:
		code, reason = codes.InvalidArgument, reasonNoScope
	case carrier.Unverified:
		code, reason = codes.Unavailable, reasonUnverified
	}
	return detailed(code, d.Detail, &errdetails.ErrorInfo{Reason: reason, Domain: Domain})
}

// answered returns what a handler's error is to the client: a status if a fence
// refused the token the call came with, else err. Of a call that is not fenced, and
// came with none, it is always err.
func answered(err error, token fencelock.Token) error {
	if token.IsZero() {
		return err
	}
	if r, stale := carrier.Describe(err, token); stale {
		return staleStatus(r)
	}
	return err
}

func staleStatus(r carrier.Refusal) error {
	return detailed(codes.FailedPrecondition, r.Error(), &errdetails.ErrorInfo{
		Reason: reasonStale, Domain: Domain,
		Metadata: map[string]string{"scope": r.Scope, "presented": r.Presented, "highest": r.Highest},
	})
}

func detailed(code codes.Code, message string, info *errdetails.ErrorInfo) error {
	s, err := status.New(code, message).WithDetails(info)
	if err != nil {
		panic(err) // strings, all valid UTF-8
	}
	return s.Err()
}

// received makes an error of the root package of a refusal of token, and passes
// every other error.
func received(err error, token fencelock.Token) error {
	s, ok := status.FromError(err)
	if err == nil || !ok {
		return err
	}
	for _, detail := range s.Details() {
		info, ok := detail.(*errdetails.ErrorInfo)
		if !ok || info.GetDomain() != Domain {
			continue
		}
		switch {
		case s.Code() == codes.FailedPrecondition && info.GetReason() == reasonStale:
			m := info.GetMetadata()
			r := carrier.Refusal{Scope: m["scope"], Presented: m["presented"], Highest: m["highest"]}
			if token.IsZero() {
				continue // sent without one: it is of a server behind that one
			}
			if stale := r.Stale(token, token.String()); stale != nil {
				return &refusal{status: s, err: stale}
			}
		case s.Code() == codes.FailedPrecondition && info.GetReason() == reasonNoToken:
			return &refusal{status: s, err: fencelock.ErrNoToken}
		case s.Code() == codes.InvalidArgument && info.GetReason() == reasonInvalidToken:
			return &refusal{status: s, err: fencelock.ErrInvalidToken}
		}
	}
	return err
}

// refusal is an error of the root package and still a status.
type refusal struct {
	status *status.Status
	err    error
}

func (r *refusal) Error() string {
	if stale, ok := r.err.(*fencelock.StaleError); ok {
		return stale.Error()
	}
	return "grpcfence: the server refused the call: " + r.err.Error() + ": it says " + carrier.Shortened(r.status.Message())
}

// GRPCStatus is what google.golang.org/grpc/status looks for.
func (r *refusal) GRPCStatus() *status.Status { return r.status }

func (r *refusal) Unwrap() error { return r.err }
