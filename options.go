package fencelock

import (
	"fmt"
	"log/slog"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/fencelock/fencelock/internal/seam"
)

const (
	defaultTTL    = 15 * time.Second
	defaultPrefix = "fencelock/"

	minTTL = time.Second
	// maxTTLSeconds is etcd's own limit (server/lease.MaxLeaseTTL, etcd 3.7.3).
	// In a time.Duration it is nearly the maximum, so rounding up must not
	// overflow.
	maxTTLSeconds = 9_000_000_000

	maxLabel = 256
)

// Option configures a Locker; see [New]. Every [LockOption] is one too, and is
// the Locker's default for its locks then.
type Option interface{ applyLocker(*config) error }

// LockOption configures one acquiring call.
type LockOption interface {
	Option
	applyLock(*lockConfig) error
}

// config is what the options of New amount to.
type config struct {
	ttl     time.Duration // whole seconds
	ttlSet  bool
	margin  time.Duration // 0: a fifth of the TTL
	prefix  string
	label   string
	session *concurrency.Session
	log     *slog.Logger
	hooks   Hooks
	lock    lockConfig
}

// lockConfig is what the options of one acquiring call amount to.
type lockConfig struct {
	maxWait    time.Duration
	maxWaitSet bool
	maxHold    time.Duration // 0: none
	requireUse bool
}

func newConfig(opts []Option) (config, error) {
	c := config{ttl: defaultTTL, prefix: defaultPrefix}
	for _, o := range opts {
		if o == nil {
			return config{}, fmt.Errorf("%w: a nil option", ErrInvalidOption)
		}
		if err := o.applyLocker(&c); err != nil {
			return config{}, err
		}
	}
	if c.session != nil && c.ttlSet {
		return config{}, fmt.Errorf("%w: WithTTL and WithSession exclude each other; the session's lease has its own TTL", ErrInvalidOption)
	}
	if c.session == nil && c.margin >= c.ttl {
		return config{}, badMargin(c.margin, c.ttl)
	}
	if c.label == "" {
		c.label = defaultLabel()
	}
	if c.log == nil {
		c.log = slog.Default()
	}
	return c, nil
}

func badMargin(margin, ttl time.Duration) error {
	return fmt.Errorf("%w: WithMargin(%v) must be below the lease's TTL of %v", ErrInvalidOption, margin, ttl)
}

// with returns the Locker's defaults with one call's options applied.
func (c lockConfig) with(opts []LockOption) (lockConfig, error) {
	if len(opts) == 0 {
		return c, nil
	}
	changed := c // which is on the heap, for the options
	for _, o := range opts {
		if o == nil {
			return lockConfig{}, fmt.Errorf("%w: a nil option", ErrInvalidOption)
		}
		if err := o.applyLock(&changed); err != nil {
			return lockConfig{}, err
		}
	}
	return changed, nil
}

type lockerOption func(*config) error

func (f lockerOption) applyLocker(c *config) error { return f(c) }

type lockOption func(*lockConfig) error

func (f lockOption) applyLocker(c *config) error   { return f(&c.lock) }
func (f lockOption) applyLock(c *lockConfig) error { return f(c) }

// AddTo is for the fake in package fencetest.
func (f lockOption) AddTo(o *seam.Options) error {
	c := lockConfig{maxWait: o.MaxWait, maxWaitSet: o.MaxWaitSet, maxHold: o.MaxHold, requireUse: o.RequireUse}
	err := f(&c)
	*o = seam.Options{MaxWait: c.maxWait, MaxWaitSet: c.maxWaitSet, MaxHold: c.maxHold, RequireUse: c.requireUse}
	return err
}

// WithTTL sets the TTL asked for the lease, 15 s by default: how long after
// the death of a holder its locks stay taken. A fraction of a second is rounded
// up, because etcd's TTLs are whole seconds. Below 1 s, or above etcd's maximum
// of 9,000,000,000 s, is an error. etcd can grant more than was asked: the
// deadlines count with the smaller of the two. It excludes [WithSession].
func WithTTL(ttl time.Duration) Option {
	return lockerOption(func(c *config) error {
		if ttl < minTTL {
			return fmt.Errorf("%w: WithTTL(%v) is below 1s, the least etcd knows", ErrInvalidOption, ttl)
		}
		seconds := int64(ttl / time.Second)
		if ttl%time.Second != 0 {
			seconds++
		}
		if seconds > maxTTLSeconds || seconds > math.MaxInt64/int64(time.Second) {
			return fmt.Errorf("%w: WithTTL(%v) is above etcd's maximum of %d seconds", ErrInvalidOption, ttl, int64(maxTTLSeconds))
		}
		c.ttl, c.ttlSet = time.Duration(seconds)*time.Second, true
		return nil
	})
}

// WithMargin sets how long before the lease can expire the holder's context is
// cancelled, a fifth of the TTL by default. It is the time a holder has to
// notice and stop, and what is left of the TTL is the time in which a renewal has
// to be answered: values between a tenth and half of the TTL make sense. It must
// be above 0 and below the TTL; with [WithSession],
// whose TTL is not known yet, the first use reports a margin that is not.
func WithMargin(margin time.Duration) Option {
	return lockerOption(func(c *config) error {
		if margin <= 0 {
			return fmt.Errorf("%w: WithMargin(%v) must be above 0", ErrInvalidOption, margin)
		}
		c.margin = margin
		return nil
	})
}

// WithPrefix sets the prefix of every key in etcd, "fencelock/" by default. It
// must end in '/'. Lockers exclude each other only under the same prefix. No prefix
// in use may begin with another one ("team/" and "team/billing/"): the keys of all
// locks under the longer would stand in the queue of one lock under the shorter
// ("billing"), and block it. Fences
// keep their marks by the lock's name alone: locks of one name under two prefixes,
// or in two clusters, must not be used at one fence.
func WithPrefix(prefix string) Option {
	return lockerOption(func(c *config) error {
		if !strings.HasSuffix(prefix, "/") {
			return fmt.Errorf("%w: WithPrefix(%s) must end in '/'", ErrInvalidOption, quote(prefix))
		}
		if len(prefix) > maxName {
			return fmt.Errorf("%w: WithPrefix of %d bytes, at most %d", ErrInvalidOption, len(prefix), maxName)
		}
		c.prefix = prefix
		return nil
	})
}

// WithLabel sets what others are shown as the holder, host name and process id
// by default: UTF-8 of at most 256 bytes. It is for people; no identity rests
// on it.
func WithLabel(label string) Option {
	return lockerOption(func(c *config) error {
		if len(label) > maxLabel {
			return fmt.Errorf("%w: WithLabel of %d bytes, at most %d", ErrInvalidOption, len(label), maxLabel)
		}
		if !utf8.ValidString(label) {
			return fmt.Errorf("%w: WithLabel(%s) is not valid UTF-8", ErrInvalidOption, quote(label))
		}
		c.label = label
		return nil
	})
}

// WithSession adopts the lease of an etcd session, which must be of the same
// client. Nothing is sent until the first use, which renews the lease once to
// learn its TTL. The lease is renewed like the Locker's own, in addition to the
// session's own renewals; it is never revoked and not replaced: after its loss
// acquiring calls return [ErrLost]. Closing the session revokes the lease and
// so takes every lock at once, before their holders can be told. It excludes
// [WithTTL].
func WithSession(session *concurrency.Session) Option {
	return lockerOption(func(c *config) error {
		if session == nil {
			return fmt.Errorf("%w: WithSession of a nil session", ErrInvalidOption)
		}
		c.session = session
		return nil
	})
}

// WithLogger sets where warnings go, [slog.Default] by default: a loss, an
// unused token (once a name), a failed release. Nothing else is logged.
func WithLogger(log *slog.Logger) Option {
	return lockerOption(func(c *config) error {
		if log == nil {
			return fmt.Errorf("%w: WithLogger of a nil logger", ErrInvalidOption)
		}
		c.log = log
		return nil
	})
}

// WithHooks sets what is called when something happens; none by default.
func WithHooks(hooks Hooks) Option {
	return lockerOption(func(c *config) error {
		c.hooks = hooks
		return nil
	})
}

// MaxWait bounds the time in the queue, without a bound by default: the call
// fails with a [*HeldError] after d. It does not bound what comes before, which
// the context does. MaxWait(0) is one try that does not join the queue. A
// negative d is an error, and so is MaxWait given to [Locker.TryAcquire], which
// never queues; as a Locker's default it does not concern TryAcquire.
func MaxWait(d time.Duration) LockOption {
	return lockOption(func(c *lockConfig) error {
		if d < 0 {
			return fmt.Errorf("%w: MaxWait(%v) is negative", ErrInvalidOption, d)
		}
		c.maxWait, c.maxWaitSet = d, true
		return nil
	})
}

// MaxHold loses the lock on purpose after it was held for d, without a bound by
// default: the context is cancelled with reason [LostMaxHold], and the key is
// deleted when the callback returned or one margin later, whichever is first.
// d must be above 0.
func MaxHold(d time.Duration) LockOption {
	return lockOption(func(c *lockConfig) error {
		if d <= 0 {
			return fmt.Errorf("%w: MaxHold(%v) must be above 0", ErrInvalidOption, d)
		}
		c.maxHold = d
		return nil
	})
}

// RequireTokenUse makes it an error, [ErrTokenUnused], if the callback of
// [Locker.Do] or [Locker.Lead] returns nil and never used its token; by default
// it is a warning. It cannot be given to [Locker.DoAdvisory], which has no
// token, nor to Acquire and TryAcquire, which have no callback; as a Locker's
// default it does not concern them.
func RequireTokenUse() LockOption {
	return lockOption(func(c *lockConfig) error {
		c.requireUse = true
		return nil
	})
}
