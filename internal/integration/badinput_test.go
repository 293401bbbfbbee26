package integration

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

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/integration/harness"
)

// A naive library takes what it is given and fails later, in etcd's words or
// with a panic, or quietly uses something else.
func TestBadOptions(t *testing.T) {
	b := newBench(t)
	client := b.wired()
	other := b.client()
	session := b.session(client.Client, 20)
	foreign := b.session(other, 20)
	before := client.requests()
	for name, test := range map[string]struct {
		opts []fencelock.Option
		says string
	}{
		"TTL 0":                    {[]fencelock.Option{fencelock.WithTTL(0)}, "WithTTL(0s)"},
		"TTL -1":                   {[]fencelock.Option{fencelock.WithTTL(-1)}, "WithTTL(-1ns)"},
		"TTL -1 s":                 {[]fencelock.Option{fencelock.WithTTL(-time.Second)}, "WithTTL(-1s)"},
		"TTL 999 ms":               {[]fencelock.Option{fencelock.WithTTL(999 * time.Millisecond)}, "WithTTL(999ms)"},
		"TTL MaxInt64":             {[]fencelock.Option{fencelock.WithTTL(math.MaxInt64)}, "maximum"},
		"TTL a second too long":    {[]fencelock.Option{fencelock.WithTTL(9_000_000_001 * time.Second)}, "maximum"},
		"TTL MinInt64":             {[]fencelock.Option{fencelock.WithTTL(math.MinInt64)}, "WithTTL"},
		"margin 0":                 {[]fencelock.Option{fencelock.WithMargin(0)}, "WithMargin(0s)"},
		"margin -1":                {[]fencelock.Option{fencelock.WithMargin(-1)}, "WithMargin(-1ns)"},
		"margin equal to the TTL":  {[]fencelock.Option{fencelock.WithTTL(5 * time.Second), fencelock.WithMargin(5 * time.Second)}, "WithMargin(5s)"},
		"margin above the TTL":     {[]fencelock.Option{fencelock.WithMargin(time.Minute), fencelock.WithTTL(5 * time.Second)}, "WithMargin(1m0s)"},
		"margin not below default": {[]fencelock.Option{fencelock.WithMargin(15 * time.Second)}, "WithMargin(15s)"},
		"label of 257 bytes":       {[]fencelock.Option{fencelock.WithLabel(strings.Repeat("l", 257))}, "257 bytes"},
		"label of 64 KiB":          {[]fencelock.Option{fencelock.WithLabel(strings.Repeat("l", 64<<10))}, "65536 bytes"},
		"label that is not UTF-8":  {[]fencelock.Option{fencelock.WithLabel("\xff")}, "UTF-8"},
		"prefix without its slash": {[]fencelock.Option{fencelock.WithPrefix("locks")}, `"locks"`},
		"prefix that is empty":     {[]fencelock.Option{fencelock.WithPrefix("")}, "must end in '/'"},
		"prefix that is too long":  {[]fencelock.Option{fencelock.WithPrefix(strings.Repeat("p", 2000) + "/")}, "2001 bytes"},
		"session and TTL":          {[]fencelock.Option{fencelock.WithSession(session), fencelock.WithTTL(5 * time.Second)}, "exclude each other"},
		"TTL and session":          {[]fencelock.Option{fencelock.WithTTL(5 * time.Second), fencelock.WithSession(session)}, "exclude each other"},
		"session of another":       {[]fencelock.Option{fencelock.WithSession(foreign)}, "another etcd client"},
		"nil session":              {[]fencelock.Option{fencelock.WithSession(nil)}, "nil session"},
		"nil logger":               {[]fencelock.Option{fencelock.WithLogger(nil)}, "nil logger"},
		"nil option":               {[]fencelock.Option{nil}, "nil option"},
		"negative MaxWait":         {[]fencelock.Option{fencelock.MaxWait(-1)}, "MaxWait(-1ns)"},
		"MaxHold 0":                {[]fencelock.Option{fencelock.MaxHold(0)}, "MaxHold(0s)"},
		"negative MaxHold":         {[]fencelock.Option{fencelock.MaxHold(-time.Second)}, "MaxHold(-1s)"},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := fencelock.New(client.Client, test.opts...)
			require.ErrorIs(t, err, fencelock.ErrInvalidOption)
			assert.Nil(t, l)
			assert.ErrorContains(t, err, test.says)
			assert.True(t, strings.HasPrefix(err.Error(), "fencelock: "), err)
			assert.Less(t, len(err.Error()), 300, "what was given does not fill a log")
		})
	}
	for name, client := range map[string]*clientv3.Client{
		"nil client":              nil,
		"client made by a struct": {},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := fencelock.New(client)
			require.ErrorIs(t, err, fencelock.ErrInvalidOption)
		})
	}
	assert.Equal(t, before, client.requests())
	require.NoError(t, session.Close())
	require.NoError(t, foreign.Close())
}

// noContext is what a caller passes who forgot to.
var noContext context.Context

// badCalls are the calls that take a context, a name and options; fn of the
// first three must not run.
func badCalls(t *testing.T, l *fencelock.Locker) map[string]func(ctx context.Context, name string, opts ...fencelock.LockOption) error {
	fn := func(context.Context, fencelock.Token) error { t.Error("the callback ran"); return nil }
	advisory := func(context.Context) error { t.Error("the callback ran"); return nil }
	return map[string]func(ctx context.Context, name string, opts ...fencelock.LockOption) error{
		"Do": func(ctx context.Context, name string, opts ...fencelock.LockOption) error {
			return l.Do(ctx, name, fn, opts...)
		},
		"DoAdvisory": func(ctx context.Context, name string, opts ...fencelock.LockOption) error {
			return l.DoAdvisory(ctx, name, advisory, opts...)
		},
		"Lead": func(ctx context.Context, name string, opts ...fencelock.LockOption) error {
			return l.Lead(ctx, name, fn, opts...)
		},
		"Acquire": func(ctx context.Context, name string, opts ...fencelock.LockOption) error {
			_, err := l.Acquire(ctx, name, opts...)
			return err
		},
		"TryAcquire": func(ctx context.Context, name string, opts ...fencelock.LockOption) error {
			_, err := l.TryAcquire(ctx, name, opts...)
			return err
		},
	}
}

// A naive library panics on them, or finds out when it holds the lock.
func TestBadCalls(t *testing.T) {
	b := newBench(t)
	j := newJournal()
	client := b.wired()
	l := b.locker(client.Client, reportTo(j)...)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	ctx := t.Context()

	for name, call := range badCalls(t, l) {
		t.Run(name, func(t *testing.T) {
			for _, lock := range []string{"", strings.Repeat("n", 1025), strings.Repeat("\xff", 64<<10)} {
				err := call(ctx, lock)
				assert.ErrorIs(t, err, fencelock.ErrInvalidName)
				assert.Less(t, len(err.Error()), 300)
			}
			assert.ErrorIs(t, call(noContext, "x"), fencelock.ErrInvalidOption)
			assert.ErrorIs(t, call(ctx, "x", nil), fencelock.ErrInvalidOption)
			assert.ErrorIs(t, call(ctx, "x", fencelock.MaxWait(-1)), fencelock.ErrInvalidOption)
			assert.ErrorIs(t, call(ctx, "x", fencelock.MaxHold(0)), fencelock.ErrInvalidOption)

			err := call(ended, "x")
			assert.ErrorIs(t, err, fencelock.ErrNotAcquired)
			assert.ErrorIs(t, err, context.Canceled)
			err = call(late, "x")
			assert.ErrorIs(t, err, fencelock.ErrNotAcquired)
			assert.ErrorIs(t, err, context.DeadlineExceeded)
		})
	}
	for name, err := range map[string]error{
		"Do with a nil fn":              l.Do(ctx, "x", nil),
		"DoAdvisory with a nil fn":      l.DoAdvisory(ctx, "x", nil),
		"Lead with a nil fn":            l.Lead(ctx, "x", nil),
		"TryAcquire with MaxWait":       badCalls(t, l)["TryAcquire"](ctx, "x", fencelock.MaxWait(time.Second)),
		"TryAcquire with MaxWait(0)":    badCalls(t, l)["TryAcquire"](ctx, "x", fencelock.MaxWait(0)),
		"DoAdvisory with RequireToken":  badCalls(t, l)["DoAdvisory"](ctx, "x", fencelock.RequireTokenUse()),
		"Acquire with RequireTokenUse":  badCalls(t, l)["Acquire"](ctx, "x", fencelock.RequireTokenUse()),
		"TryAcquire with RequireToken…": badCalls(t, l)["TryAcquire"](ctx, "x", fencelock.RequireTokenUse()),
		"Shutdown without a context":    l.Shutdown(noContext),
	} {
		assert.ErrorIs(t, err, fencelock.ErrInvalidOption, name)
	}
	_, err := l.Inspect(noContext, "x")
	assert.ErrorIs(t, err, fencelock.ErrInvalidOption)
	_, err = l.Inspect(ctx, "")
	assert.ErrorIs(t, err, fencelock.ErrInvalidName)
	_, err = l.Inspect(ctx, strings.Repeat("n", 1025))
	assert.ErrorIs(t, err, fencelock.ErrInvalidName)
	_, err = l.Inspect(ended, "x")
	assert.ErrorIs(t, err, context.Canceled)

	assert.Zero(t, client.requests())
	assert.Empty(t, reported[slog.Record](j))
	// Bad arguments are the caller's fault, and no figure of the lock's.
	for _, failed := range reported[fencelock.NotAcquiredInfo](j) {
		assert.Equal(t, fencelock.ResultCanceled, failed.Result)
	}

	// As a Locker's defaults they are for the calls that they are meant for.
	lenient := b.locker(b.client(), fencelock.MaxWait(0), fencelock.RequireTokenUse())
	k, err := lenient.TryAcquire(ctx, "x")
	require.NoError(t, err)
	b.release(k)
	require.NoError(t, lenient.DoAdvisory(ctx, "x", func(context.Context) error { return nil }))
	require.ErrorIs(t, lenient.Do(ctx, "x", func(context.Context, fencelock.Token) error { return nil }), fencelock.ErrTokenUnused)
}

// A fraction of a second is rounded up, the longest TTL and the longest label
// are as good as any.
func TestGoodOptionsAtTheEdge(t *testing.T) {
	b := newBench(t)
	for _, test := range []struct {
		ttl     time.Duration
		granted int64
	}{
		{1500 * time.Millisecond, 2},
		{time.Second, 1},
		{time.Second + 1, 2},
		{9_000_000_000 * time.Second, 9_000_000_000},
	} {
		l := b.openLocker(b.client(), fencelock.WithTTL(test.ttl), fencelock.WithMargin(test.ttl/5),
			fencelock.WithLabel(strings.Repeat("é", 128)))
		k := b.acquire(l, "x")
		leases := harness.Leases(t, b.clean)
		require.Len(t, leases, 1)
		resp, err := b.clean.TimeToLive(t.Context(), leases[0])
		require.NoError(t, err)
		assert.Equal(t, test.granted, resp.GrantedTTL)
		_ = k.Release(t.Context()) // a TTL of 1 s may be over by now
		require.NoError(t, l.Close())
		require.Empty(t, harness.Leases(t, b.clean))
	}
}

// A lock that was released, or lost, answers for ever.
func TestEveryMethodOfAReleasedLock(t *testing.T) {
	b := newBench(t)
	client := b.wired()
	l := b.locker(client.Client)
	k := b.acquire(l, "x")
	token := k.Token()
	b.release(k)
	before := client.requests()

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, ctx := range []context.Context{t.Context(), ended, context.Background()} {
		require.NoError(t, k.Release(ctx), "the first result again")
	}
	require.ErrorIs(t, k.Release(noContext), fencelock.ErrInvalidOption)
	require.ErrorIs(t, k.Err(), fencelock.ErrReleased)
	require.ErrorIs(t, k.Context().Err(), context.Canceled)
	require.ErrorIs(t, context.Cause(k.Context()), fencelock.ErrReleased)
	assert.Equal(t, "x", k.Name())
	assert.True(t, token.Equal(k.Token()))
	assert.Equal(t, before, client.requests())

	// Its token is no owner any more, and of the next one neither.
	next := b.acquire(l, "x")
	resp, err := b.clean.Txn(t.Context()).If(k.Token().IsOwner()).Commit()
	require.NoError(t, err)
	assert.False(t, resp.Succeeded)
	resp, err = b.clean.Txn(t.Context()).If(next.Token().IsOwner()).Commit()
	require.NoError(t, err)
	assert.True(t, resp.Succeeded)
	b.release(next)
}

// With a client that is closed already nothing is sent, and nothing hangs.
func TestClientClosedBeforeFirstUse(t *testing.T) {
	b := newBench(t)
	client := b.wired()
	l := b.openLocker(client.Client)
	require.NoError(t, client.Close())
	for name, call := range badCalls(t, l) {
		err := call(t.Context(), "x")
		require.ErrorIs(t, err, fencelock.ErrNotAcquired, name)
		assert.ErrorContains(t, err, "close the Locker before its client", name)
	}
	_, err := l.Inspect(t.Context(), "x")
	assert.ErrorContains(t, err, "close the Locker before its client")
	assert.Zero(t, client.requests())
	require.NoError(t, l.Close())
}
