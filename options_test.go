package fencelock

import (
	"context"
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

func TestOptionDefaults(t *testing.T) {
	c, err := newConfig(nil)
	require.NoError(t, err)
	assert.Equal(t, 15*time.Second, c.ttl)
	assert.Zero(t, c.margin, "a fifth of the TTL that is granted")
	assert.Equal(t, "fencelock/", c.prefix)
	assert.Equal(t, defaultLabel(), c.label)
	assert.Same(t, slog.Default(), c.log)
	assert.Equal(t, lockConfig{}, c.lock)
}

func TestOptionValues(t *testing.T) {
	logger := slog.New(slog.DiscardHandler)
	const maxTTL = maxTTLSeconds * time.Second
	for name, c := range map[string]struct {
		opt  Option
		want func(t *testing.T, c config)
	}{
		"least TTL":              {WithTTL(time.Second), func(t *testing.T, c config) { assert.Equal(t, time.Second, c.ttl) }},
		"TTL rounded up":         {WithTTL(1500 * time.Millisecond), func(t *testing.T, c config) { assert.Equal(t, 2*time.Second, c.ttl) }},
		"TTL and a nanosecond":   {WithTTL(7*time.Second + 1), func(t *testing.T, c config) { assert.Equal(t, 8*time.Second, c.ttl) }},
		"greatest TTL":           {WithTTL(maxTTL), func(t *testing.T, c config) { assert.Equal(t, maxTTL, c.ttl) }},
		"least margin":           {WithMargin(1), func(t *testing.T, c config) { assert.EqualValues(t, 1, c.margin) }},
		"greatest margin":        {WithMargin(15*time.Second - 1), func(t *testing.T, c config) { assert.Equal(t, 15*time.Second-1, c.margin) }},
		"shortest prefix":        {WithPrefix("/"), func(t *testing.T, c config) { assert.Equal(t, "/", c.prefix) }},
		"longest prefix":         {WithPrefix(strings.Repeat("p", maxName-1) + "/"), func(t *testing.T, c config) { assert.Len(t, c.prefix, maxName) }},
		"longest label":          {WithLabel(strings.Repeat("é", maxLabel/2)), func(t *testing.T, c config) { assert.Len(t, c.label, maxLabel) }},
		"an empty label":         {WithLabel(""), func(t *testing.T, c config) { assert.Equal(t, defaultLabel(), c.label) }},
		"logger":                 {WithLogger(logger), func(t *testing.T, c config) { assert.Same(t, logger, c.log) }},
		"hooks":                  {WithHooks(Hooks{Lost: func(LostInfo) {}}), func(t *testing.T, c config) { assert.NotNil(t, c.hooks.Lost) }},
		"MaxWait for all":        {MaxWait(0), func(t *testing.T, c config) { assert.True(t, c.lock.maxWaitSet) }},
		"MaxHold for all":        {MaxHold(1), func(t *testing.T, c config) { assert.EqualValues(t, 1, c.lock.maxHold) }},
		"RequireTokenUse of all": {RequireTokenUse(), func(t *testing.T, c config) { assert.True(t, c.lock.requireUse) }},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, err := newConfig([]Option{c.opt})
			require.NoError(t, err)
			c.want(t, cfg)
		})
	}
	last, err := newConfig([]Option{WithTTL(2 * time.Second), WithTTL(3 * time.Second)})
	require.NoError(t, err)
	assert.Equal(t, 3*time.Second, last.ttl, "the last of several counts")
}

// Every bad value is refused by New, and nothing is sent.
func TestOptionsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		opts []Option
		says string
	}{
		"nil":                       {[]Option{nil}, "nil option"},
		"TTL of 0":                  {[]Option{WithTTL(0)}, "WithTTL(0s)"},
		"TTL of -1":                 {[]Option{WithTTL(-1)}, "WithTTL(-1ns)"},
		"TTL of 999 ms":             {[]Option{WithTTL(999 * time.Millisecond)}, "WithTTL(999ms)"},
		"least duration as a TTL":   {[]Option{WithTTL(math.MinInt64)}, "below 1s"},
		"MaxInt64 as a TTL":         {[]Option{WithTTL(math.MaxInt64)}, "9000000000 seconds"},
		"a TTL above etcd's":        {[]Option{WithTTL(maxTTLSeconds*time.Second + 1)}, "9000000000 seconds"},
		"margin of 0":               {[]Option{WithMargin(0)}, "WithMargin(0s)"},
		"margin of -1":              {[]Option{WithMargin(-1)}, "WithMargin(-1ns)"},
		"margin as long as the TTL": {[]Option{WithTTL(2 * time.Second), WithMargin(2 * time.Second)}, "TTL of 2s"},
		"the same, reordered":       {[]Option{WithMargin(2 * time.Second), WithTTL(2 * time.Second)}, "TTL of 2s"},
		"margin above the default":  {[]Option{WithMargin(time.Minute)}, "TTL of 15s"},
		"MaxInt64 as a margin":      {[]Option{WithMargin(math.MaxInt64)}, "WithMargin("},
		"prefix without its slash":  {[]Option{WithPrefix("locks")}, `"locks"`},
		"an empty prefix":           {[]Option{WithPrefix("")}, `""`},
		"a prefix of 64 KiB":        {[]Option{WithPrefix(strings.Repeat("p", 64<<10) + "/")}, "65537 bytes"},
		"64 KiB without a slash":    {[]Option{WithPrefix(strings.Repeat("\n", 64<<10))}, "WithPrefix("},
		"a label of 64 KiB":         {[]Option{WithLabel(strings.Repeat("l", 64<<10))}, "65536 bytes"},
		"a label of 257 bytes":      {[]Option{WithLabel(strings.Repeat("l", 257))}, "257 bytes"},
		"a label not in UTF-8":      {[]Option{WithLabel("\xff")}, "UTF-8"},
		"a nil session":             {[]Option{WithSession(nil)}, "WithSession"},
		"a nil logger":              {[]Option{WithLogger(nil)}, "WithLogger"},
		"MaxWait below 0":           {[]Option{MaxWait(-1)}, "MaxWait(-1ns)"},
		"MaxHold of 0":              {[]Option{MaxHold(0)}, "MaxHold(0s)"},
		"MaxHold below 0":           {[]Option{MaxHold(-time.Hour)}, "MaxHold(-1h0m0s)"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, _ *fakeEtcd, l *fakeLink) {
				locker, err := New(l.client, c.opts...)
				requireRefused(t, err, c.says)
				assert.Nil(t, locker)
				assert.Empty(t, l.requests())
			})
		})
	}
}

// requireRefused asks for an error that names what was wrong, and what it was
// given, in a line that does not fill a log.
func requireRefused(t *testing.T, err error, says string) {
	t.Helper()
	require.ErrorIs(t, err, ErrInvalidOption)
	assert.True(t, strings.HasPrefix(err.Error(), "fencelock: invalid option: "), err.Error())
	assert.Contains(t, err.Error(), says)
	assert.Less(t, len(err.Error()), 400)
	assert.NotContains(t, err.Error(), "\n")
}

func TestNewRefusesAClient(t *testing.T) {
	_, err := New(nil)
	requireRefused(t, err, "client")
	_, err = New(new(clientv3.Client))
	requireRefused(t, err, "client")
	unconnected := clientv3.NewCtxClient(context.Background())
	_, err = New(unconnected)
	requireRefused(t, err, "client")
}

func TestSessionOptionRefused(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		session := newSession(t, l, 10)
		sent := len(l.requests())

		_, err := New(l.client, WithSession(session), WithTTL(10*time.Second))
		requireRefused(t, err, "exclude each other")
		_, err = New(l.client, WithTTL(10*time.Second), WithSession(session))
		requireRefused(t, err, "exclude each other")
		_, err = New(e.dial(t).client, WithSession(session))
		requireRefused(t, err, "another etcd client")
		assert.Len(t, l.requests(), sent)

		// Only the first use can tell that this margin is as long as the TTL.
		locker, err := New(l.client, WithSession(session), WithMargin(10*time.Second))
		require.NoError(t, err)
		defer locker.Close()
		_, err = locker.Acquire(t.Context(), "n")
		require.ErrorIs(t, err, ErrInvalidOption)
		assert.Contains(t, err.Error(), "WithMargin(10s)")
		assert.Empty(t, e.keys("fencelock/"))
	})
}

func newSession(t *testing.T, l *fakeLink, ttl int) *concurrency.Session {
	t.Helper()
	s, err := concurrency.NewSession(l.client, concurrency.WithTTL(ttl))
	require.NoError(t, err)
	t.Cleanup(s.Orphan)
	return s
}

// newLocker returns a Locker that is closed at the end of the test.
func newLocker(t *testing.T, l *fakeLink, opts ...Option) *Locker {
	t.Helper()
	locker, err := New(l.client, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = locker.Close() }) // tests of Close look at its result
	return locker
}

// Callbacks for calls that must not come to them.
func neverRun(t *testing.T) func(context.Context, Token) error {
	return func(context.Context, Token) error {
		assert.Fail(t, "the callback ran")
		return nil
	}
}

func neverRunAdvisory(t *testing.T) func(context.Context) error {
	return func(context.Context) error {
		assert.Fail(t, "the callback ran")
		return nil
	}
}

// acquiringCalls are all calls that can acquire a lock, each with a callback
// that must not run.
func acquiringCalls(t *testing.T, l *Locker) map[string]func(ctx context.Context, name string, opts ...LockOption) error {
	return map[string]func(context.Context, string, ...LockOption) error{
		"Do": func(ctx context.Context, name string, opts ...LockOption) error {
			return l.Do(ctx, name, neverRun(t), opts...)
		},
		"DoAdvisory": func(ctx context.Context, name string, opts ...LockOption) error {
			return l.DoAdvisory(ctx, name, neverRunAdvisory(t), opts...)
		},
		"Lead": func(ctx context.Context, name string, opts ...LockOption) error {
			return l.Lead(ctx, name, neverRun(t), opts...)
		},
		"Acquire": func(ctx context.Context, name string, opts ...LockOption) error {
			lock, err := l.Acquire(ctx, name, opts...)
			assert.Nil(t, lock)
			return err
		},
		"TryAcquire": func(ctx context.Context, name string, opts ...LockOption) error {
			lock, err := l.TryAcquire(ctx, name, opts...)
			assert.Nil(t, lock)
			return err
		},
	}
}

func TestCallOptionsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		opts []LockOption
		says string
		only []string // all acquiring calls if empty
	}{
		"nil":                       {opts: []LockOption{nil}, says: "nil option"},
		"MaxWait below 0":           {opts: []LockOption{MaxWait(-1)}, says: "MaxWait(-1ns)"},
		"MaxHold of 0":              {opts: []LockOption{MaxHold(0)}, says: "MaxHold(0s)"},
		"MaxHold below 0":           {opts: []LockOption{MaxHold(-1)}, says: "MaxHold(-1ns)"},
		"a bad one after a good":    {opts: []LockOption{MaxHold(1), MaxWait(-1)}, says: "MaxWait(-1ns)"},
		"MaxWait with TryAcquire":   {opts: []LockOption{MaxWait(time.Second)}, says: "TryAcquire", only: []string{"TryAcquire"}},
		"MaxWait(0) to TryAcquire":  {opts: []LockOption{MaxWait(0)}, says: "TryAcquire", only: []string{"TryAcquire"}},
		"use of a token without":    {opts: []LockOption{RequireTokenUse()}, says: "DoAdvisory", only: []string{"DoAdvisory"}},
		"use without a callback":    {opts: []LockOption{RequireTokenUse()}, says: "no callback", only: []string{"Acquire"}},
		"use without a callback, 2": {opts: []LockOption{RequireTokenUse()}, says: "no callback", only: []string{"TryAcquire"}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, _ *fakeEtcd, l *fakeLink) {
				calls := acquiringCalls(t, newLocker(t, l))
				only := c.only
				if only == nil {
					only = []string{"Do", "DoAdvisory", "Lead", "Acquire", "TryAcquire"}
				}
				for _, method := range only {
					requireRefused(t, calls[method](t.Context(), "n", c.opts...), c.says)
				}
				assert.Empty(t, l.requests())
			})
		})
	}
}

// What does not fit a call is an error if it was given to that call, and does
// not concern it as the Locker's default.
func TestDefaultsThatDoNotFitACall(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *fakeEtcd, l *fakeLink) {
		locker := newLocker(t, l, MaxWait(time.Second), RequireTokenUse())
		for _, acquire := range []func(context.Context, string, ...LockOption) (*Lock, error){locker.TryAcquire, locker.Acquire} {
			lock, err := acquire(t.Context(), "n")
			require.NoError(t, err)
			require.NoError(t, lock.Release(t.Context()))
		}
		require.NoError(t, locker.DoAdvisory(t.Context(), "n", func(context.Context) error { return nil }))
		err := locker.Do(t.Context(), "n", func(context.Context, Token) error { return nil })
		assert.ErrorIs(t, err, ErrTokenUnused)
	})
}

func TestBadNamesRefused(t *testing.T) {
	for name, bad := range map[string]string{
		"empty":      "",
		"1025 bytes": strings.Repeat("n", 1025),
		"1 MiB":      strings.Repeat("\n", 1<<20),
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, _ *fakeEtcd, l *fakeLink) {
				locker := newLocker(t, l)
				for method, call := range acquiringCalls(t, locker) {
					err := call(t.Context(), bad)
					require.ErrorIs(t, err, ErrInvalidName, method)
					assert.Less(t, len(err.Error()), 200)
				}
				_, err := locker.Inspect(t.Context(), bad)
				require.ErrorIs(t, err, ErrInvalidName)
				assert.Empty(t, l.requests())
			})
		})
	}
}

func TestNilArgumentsRefused(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *fakeEtcd, l *fakeLink) {
		locker := newLocker(t, l)
		var none context.Context
		for _, call := range acquiringCalls(t, locker) {
			requireRefused(t, call(none, "n"), "context is nil")
		}
		requireRefused(t, locker.Do(t.Context(), "n", nil), "callback is nil")
		requireRefused(t, locker.DoAdvisory(t.Context(), "n", nil), "callback is nil")
		requireRefused(t, locker.Lead(t.Context(), "n", nil), "callback is nil")
		_, err := locker.Inspect(none, "n")
		requireRefused(t, err, "context is nil")
		requireRefused(t, locker.Shutdown(none), "context is nil")
		assert.Empty(t, l.requests())

		lock, err := locker.Acquire(t.Context(), "n")
		require.NoError(t, err, "a refused Shutdown shuts nothing down")
		requireRefused(t, lock.Release(none), "context is nil")
		require.NoError(t, lock.Err(), "a refused Release releases nothing")
		require.NoError(t, lock.Release(t.Context()))
	})
}

func TestEndedContextSendsNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *fakeEtcd, l *fakeLink) {
		why := assert.AnError
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(why)
		for method, call := range acquiringCalls(t, newLocker(t, l)) {
			err := call(ctx, "n")
			assert.ErrorIs(t, err, ErrNotAcquired, method)
			assert.ErrorIs(t, err, context.Canceled, method)
			assert.ErrorIs(t, err, why, method)
		}
		assert.Empty(t, l.requests())
	})
}

func TestClientClosedFirst(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		fresh, used := newLocker(t, l), newLocker(t, l)
		lock, err := used.Acquire(t.Context(), "held")
		require.NoError(t, err)
		sent := len(l.requests())
		require.ErrorIs(t, l.client.Close(), context.Canceled)

		start := time.Now()
		for _, locker := range []*Locker{fresh, used} {
			for method, call := range acquiringCalls(t, locker) {
				err := call(t.Context(), "n")
				assert.ErrorIs(t, err, ErrNotAcquired, method)
				assert.ErrorContains(t, err, "close the Locker before its client", method)
			}
			_, err := locker.Inspect(t.Context(), "n")
			assert.Error(t, err)
		}
		assert.Zero(t, time.Since(start), "no call waits for a client that cannot answer")
		assert.Len(t, l.requests(), sent)

		require.ErrorIs(t, lock.Release(t.Context()), ErrUnconfirmed)
		assert.NoError(t, fresh.Close(), "it has nothing in etcd")
		assert.ErrorIs(t, used.Close(), ErrUnconfirmed)
		time.Sleep(30 * time.Second)
		assert.Empty(t, e.keys("fencelock/"), "what could not be deleted goes with its lease")
	})
}
