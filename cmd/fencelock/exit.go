package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fencelock/fencelock"
)

// The exit codes. Those from 120 on are where a command run under a lock is unlikely
// to have codes of its own, below the 126 and 127 that shells give a meaning to.
const (
	codeNo          = 1
	codeUsage       = 2
	codeHeld        = 120
	codeLost        = 121
	codeUnreachable = 122
	codeRefused     = 123
	codeUnconfirmed = 124
	codeCannotRun   = 126
	codeNotFound    = 127
	codeSignal      = 128
)

const exitCodes = `exit codes:
  0    it is done; run: the command ended with 0 and held the lock to its end
  1    show, evict: nobody holds the lock; doctor: something is wrong
  2    the arguments cannot be used; nothing was sent to etcd
  120  another holds the lock; run: the command was not started; evict: not the one named
  121  run: the lock was lost while the command ran, which was stopped for it
  122  etcd cannot be reached or has no leader; run: the command was not started
  123  etcd refused, or anything else failed; run: the command was not started
  124  etcd gave no clear answer; run: the command ended with 0, but whether it held
       the lock to its end is not known; evict: it may or may not have happened
  126  run: the command cannot be executed; nothing was sent to etcd, or the lock was released
  127  run: there is no such command; likewise
  128+n run: the command died of signal n, or fencelock was told to stop by it while it
       waited for the lock
  else run: the command's own
`

// exit is an error with a code of its own. Its err is nil where there is nothing to say.
type exit struct {
	code int
	err  error
}

func (e *exit) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exit) Unwrap() error { return e.err }

func usage(format string, args ...any) error {
	return &exit{codeUsage, fmt.Errorf(format+"; fencelock --help says what there is", args...)}
}

// codeOf is the exit code for what a command returned.
func codeOf(err error) int {
	var own *exit
	switch {
	case err == nil:
		return 0
	case errors.As(err, &own):
		return own.code
	case errors.Is(err, fencelock.ErrUnconfirmed):
		return codeUnconfirmed
	case errors.Is(err, fencelock.ErrHeld):
		return codeHeld
	case errors.Is(err, fencelock.ErrNotHeld):
		return codeNo
	case isAny(err, fencelock.ErrInvalidOption, fencelock.ErrInvalidName, fencelock.ErrInvalidToken,
		fencelock.ErrNoToken, fencelock.ErrScope):
		return codeUsage
	case unreachable(err):
		return codeUnreachable
	}
	return codeRefused
}

// unreachable reports whether err says that no member answered, or none that has a
// leader.
func unreachable(err error) bool {
	if isAny(err, context.DeadlineExceeded, rpctypes.ErrNoLeader, rpctypes.ErrTimeout, rpctypes.ErrLeaderChanged,
		rpctypes.ErrTimeoutDueToLeaderFail, rpctypes.ErrTimeoutDueToConnectionLost) {
		return true
	}
	var s interface{ GRPCStatus() *status.Status }
	return errors.As(err, &s) && (s.GRPCStatus().Code() == codes.Unavailable || s.GRPCStatus().Code() == codes.DeadlineExceeded)
}

func isAny(err error, targets ...error) bool {
	for _, t := range targets {
		if errors.Is(err, t) {
			return true
		}
	}
	return false
}

// messageOf is what is said of an error, "" for nothing.
func messageOf(err error) string {
	var own *exit
	if err == nil || errors.As(err, &own) && own.err == nil {
		return ""
	}
	text := err.Error()
	if !strings.HasPrefix(text, "fencelock: ") {
		text = "fencelock: " + text
	}
	return text
}
