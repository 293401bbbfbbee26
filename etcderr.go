package fencelock

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

var errClientClosed = errors.New("the etcd client is closed; close the Locker before its client")

// leaseGone reports whether etcd answered that the lease does not exist.
func leaseGone(err error) bool { return errors.Is(err, rpctypes.ErrLeaseNotFound) }

// denied reports whether etcd answered that the user may not do this. An
// invalid auth token is not among it: the client fetches a new one by itself.
func denied(err error) bool {
	return errors.Is(err, rpctypes.ErrPermissionDenied) ||
		errors.Is(err, rpctypes.ErrAuthFailed) ||
		errors.Is(err, rpctypes.ErrUserNotFound) ||
		errors.Is(err, rpctypes.ErrUserEmpty) ||
		status.Code(err) == codes.PermissionDenied
}

// deniedAt says which keys an answer of "you may not" leaves out, and what to do
// about it. The keys are given by their prefixes.
func deniedAt(what string, err error, prefixes ...string) error {
	switch {
	case !denied(err):
		return err
	case errors.Is(err, rpctypes.ErrAuthFailed), errors.Is(err, rpctypes.ErrUserNotFound), errors.Is(err, rpctypes.ErrUserEmpty):
		return fmt.Errorf("etcd does not accept the user and password of the client, for %s keys under %s; "+
			"give the etcd client those of a user that may: %w", what, list(prefixes), err)
	}
	return fmt.Errorf("etcd denies %s keys under %s; the user's role needs readwrite on that: %w", what, list(prefixes), err)
}

// list quotes a few of the prefixes and says how many more there are: a lease can
// have thousands of keys, and an error is for people.
func list(prefixes []string) string {
	const few = 8
	var b strings.Builder
	for i, p := range prefixes {
		if i == few {
			fmt.Fprintf(&b, " and %d more", len(prefixes)-few)
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(strconv.Quote(p))
	}
	return b.String()
}

// watchRefusal finds etcd's answer in the error of a watch that was refused. etcd
// gives the reason as the text of a gRPC status with the answer in it, and its
// client looks that up as if it were the answer's own (etcd 3.7.3, client/v3
// watch.go, addSubstream), so that it is no known error any more.
func watchRefusal(err error) error {
	if _, text, ok := strings.Cut(err.Error(), " desc = "); ok {
		var known rpctypes.EtcdError
		if errors.As(rpctypes.Error(errors.New(text)), &known) {
			return known
		}
	}
	return err
}

// refused reports whether err is etcd's own answer that a write was not and
// will not be applied. Everything else is ambiguous: a time-out, a broken
// connection and "etcdserver: request timed out" can all follow a write that
// was, or still will be, committed.
func refused(err error) bool {
	var e rpctypes.EtcdError
	if !errors.As(err, &e) {
		return false
	}
	switch e.Code() {
	case codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.PermissionDenied,
		codes.Unauthenticated, codes.FailedPrecondition, codes.OutOfRange, codes.Unimplemented:
		return true
	case codes.ResourceExhausted:
		return !outOfSpace(err)
	}
	return false
}

// outOfSpace reports whether err is etcd's answer that its quota is used up. Before
// the request it is a refusal; but a request that found space, and did not when it
// was applied, is answered with it although it was applied (etcd 3.7.3,
// server/etcdserver/apply/quota.go). One without a Put is never answered with it.
func outOfSpace(err error) bool { return errors.Is(err, rpctypes.ErrNoSpace) }

// resultOf groups the error of an acquiring call for [NotAcquiredInfo].
func resultOf(err error) Result {
	var held *HeldError
	var e rpctypes.EtcdError
	switch {
	case errors.Is(err, ErrClosed):
		return ResultClosed
	case errors.As(err, &held):
		return ResultHeld
	case denied(err):
		return ResultDenied
	case errors.As(err, &e) && e.Code() == codes.ResourceExhausted:
		return ResultQuota
	case errors.Is(err, rpctypes.ErrNoLeader), errors.Is(err, rpctypes.ErrTimeout),
		errors.Is(err, rpctypes.ErrTimeoutDueToLeaderFail), errors.Is(err, rpctypes.ErrTimeoutDueToConnectionLost),
		errors.Is(err, rpctypes.ErrLeaderChanged):
		return ResultNoQuorum
	case errors.Is(err, context.Canceled):
		return ResultCanceled // whatever was not answered up to then: nothing timed out
	case errors.Is(err, errNoAnswer), unavailable(err):
		return ResultUnreachable
	case errors.Is(err, context.DeadlineExceeded):
		return ResultCanceled
	}
	return ResultOther
}

// errNoAnswer is wrapped where etcd did not answer a request in time.
var errNoAnswer = errors.New("no answer from etcd")

// unavailable reports whether err, or anything it wraps, is gRPC's Unavailable.
func unavailable(err error) bool {
	var s interface{ GRPCStatus() *status.Status }
	if errors.As(err, &s) {
		return s.GRPCStatus().Code() == codes.Unavailable
	}
	var e rpctypes.EtcdError
	return errors.As(err, &e) && e.Code() == codes.Unavailable
}
