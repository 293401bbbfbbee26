package etcdfence

import (
	"fmt"
	"strings"

	"github.com/fencelock/fencelock"
)

const (
	// defaultPrefix is beside the keys of the locks, not among them: '-' sorts
	// before '/', so no range over lockPrefix has a mark in it. A mark has no lease,
	// and a key without one in the queue of a lock blocks that lock for ever; under
	// "fencelock/x/" it would be in the queue of lock "x".
	defaultPrefix = "fencelock-marks/"

	// lockPrefix is the root package's default.
	lockPrefix = "fencelock/"

	// defaultMaxTxnOps is the default of etcd's --max-txn-ops.
	defaultMaxTxnOps = 128
)

// Option configures a [Fence]; see [New].
type Option func(*Fence) error

// WithPrefix sets the prefix of the keys of the marks, "fencelock-marks/" by
// default. It ends in '/', and what follows is the lock's name, as
// [net/url.PathEscape] writes it. Whoever writes what a lock protects must use the
// same prefix through the same (possibly namespaced) client. A transaction may
// write nothing else under it.
//
// It must not lie under the prefix of locks in the same etcd. Under "fencelock/",
// their default, it is an error.
func WithPrefix(prefix string) Option {
	return func(f *Fence) error {
		switch {
		case len(prefix) < 2 || !strings.HasSuffix(prefix, "/"):
			return fmt.Errorf("%w: etcdfence.WithPrefix(%.128q) does not end in '/', or is nothing else", fencelock.ErrInvalidOption, prefix)
		case strings.HasPrefix(prefix, lockPrefix):
			return fmt.Errorf("%w: etcdfence.WithPrefix(%.128q) is under %q, where locks are queued, and a mark would block one; use another",
				fencelock.ErrInvalidOption, prefix, lockPrefix)
		}
		f.prefix = prefix
		return nil
	}
}

// WithScope binds the fence to the lock of that name: a token of any other lock is
// refused with [fencelock.ErrScope], before a request is sent. Without it a
// fence keeps a mark for each lock whose token it is given, and cannot tell that a
// token is of a lock that does not guard the data. A bad name is
// [fencelock.ErrInvalidName].
func WithScope(name string) Option {
	return func(f *Fence) error {
		if err := checkName(name); err != nil {
			return err
		}
		f.scope = name
		return nil
	}
}

// WithHooks sets what is called when a token was refused; none by default. Only
// TokenRejected is called, after etcd's answer. A panic in it is contained and logged.
func WithHooks(hooks fencelock.Hooks) Option {
	return func(f *Fence) error {
		f.hooks = hooks
		return nil
	}
}

// WithMaxTxnOps tells the fence what its etcd was started with as --max-txn-ops, if
// it is not the default of 128. Three of them are the fence's own, so by default 125
// compares, 125 operations in Then and 125 in Else fit. A nested transaction counts
// as etcd counts it: the longest of its three lists is added to the longest of those
// around it. Below 4 it is an error.
func WithMaxTxnOps(n int) Option {
	return func(f *Fence) error {
		if n <= ownLevels {
			return fmt.Errorf("%w: etcdfence.WithMaxTxnOps(%d) leaves nothing; the fence itself needs %d", fencelock.ErrInvalidOption, n, ownLevels)
		}
		f.maxOps = n
		return nil
	}
}
