package integration

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/integration/harness"
)

const (
	// calmTTL is for tests in which no lease is to expire, on a busy machine
	// neither.
	calmTTL = 20 * time.Second

	// soon bounds what has no bound of its own and should not take long.
	soon = 20 * time.Second
)

// bench is one etcd server and a client of it that no test spoils. When the
// test ends, and with it every Locker made by [bench.locker], no key of the
// library, no lease and no goroutine may be left.
type bench struct {
	t     *testing.T
	addr  string
	clean *clientv3.Client
}

func newBench(t *testing.T) *bench {
	t.Helper()
	harness.NoLeaks(t)
	cluster := harness.StartCluster(t, harness.ClusterConfig{})
	b := &bench{t: t, addr: cluster.Members[0].Addr()}
	b.clean = b.client()
	return b.part(t)
}

// part is the same bench for a part of its test.
func (b *bench) part(t *testing.T) *bench {
	t.Helper()
	p := &bench{t: t, addr: b.addr, clean: b.clean}
	t.Cleanup(func() { harness.NothingLeft(t, p.clean, keyPrefix) })
	return p
}

func (b *bench) client() *clientv3.Client {
	b.t.Helper()
	return harness.NewClient(b.t, b.addr)
}

// wired is a client whose requests are counted and can be spoilt.
type wired struct {
	*clientv3.Client
	kv      *harness.LossyKV
	lease   *harness.LossyLease
	watches *atomic.Int64
}

func (b *bench) wired() wired {
	b.t.Helper()
	return wire(b.t, b.client())
}

func wire(t *testing.T, client *clientv3.Client) wired {
	w := wired{
		Client:  client,
		kv:      harness.NewLossyKV(t, client.KV),
		lease:   harness.NewLossyLease(t, client.Lease),
		watches: new(atomic.Int64),
	}
	client.KV, client.Lease = w.kv, w.lease
	client.Watcher = countedWatcher{client.Watcher, w.watches}
	return w
}

type countedWatcher struct {
	clientv3.Watcher
	n *atomic.Int64
}

func (c countedWatcher) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	c.n.Add(1)
	return c.Watcher.Watch(ctx, key, opts...)
}

// requests returns how many requests of any kind were made.
func (w wired) requests() int {
	n := int(w.watches.Load())
	for _, op := range []harness.Op{harness.OpGet, harness.OpPut, harness.OpDelete, harness.OpCompact, harness.OpDo, harness.OpTxn} {
		n += w.kv.Calls(op)
	}
	for _, op := range []harness.Op{harness.OpGrant, harness.OpRevoke, harness.OpTimeToLive, harness.OpLeases, harness.OpKeepAliveOnce} {
		n += w.lease.Calls(op)
	}
	return n
}

// firstRelease is the hook that gives the first attempt to release its fate.
func firstRelease(fate harness.Fate) harness.Hook {
	var over atomic.Bool
	return func(c harness.Call) harness.Fate {
		if c.Op == harness.OpTxn && c.Deletes() && !over.Swap(true) {
			return fate
		}
		return harness.Pass()
	}
}

// locker returns a Locker, with calmTTL unless the options say otherwise, that
// is closed at the end of the test.
func (b *bench) locker(client *clientv3.Client, opts ...fencelock.Option) *fencelock.Locker {
	b.t.Helper()
	l := b.openLocker(client, opts...)
	b.t.Cleanup(func() { require.NoError(b.t, l.Close()) })
	return l
}

// openLocker is locker for tests that close it themselves.
func (b *bench) openLocker(client *clientv3.Client, opts ...fencelock.Option) *fencelock.Locker {
	b.t.Helper()
	defaults := []fencelock.Option{fencelock.WithTTL(calmTTL), fencelock.WithLogger(slog.New(slog.DiscardHandler))}
	l, err := fencelock.New(client, append(defaults, opts...)...)
	require.NoError(b.t, err)
	return l
}

// reportTo are the options that have everything reported to j.
func reportTo(j *journal) []fencelock.Option {
	return []fencelock.Option{fencelock.WithHooks(j.hooks()), fencelock.WithLogger(j.logger())}
}

// acquire acquires a lock that is free or will be soon. The test releases it,
// or the end of its Locker does.
func (b *bench) acquire(l *fencelock.Locker, name string, opts ...fencelock.LockOption) *fencelock.Lock {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), soon)
	defer cancel()
	k, err := l.Acquire(ctx, name, opts...)
	require.NoError(b.t, err)
	return k
}

func (b *bench) release(k *fencelock.Lock) {
	b.t.Helper()
	require.NoError(b.t, k.Release(context.Background()))
}

// attempt is what an acquiring call in the background came to.
type attempt struct {
	lock *fencelock.Lock
	err  error
}

// acquireLater is acquire in the background, for a lock that another has. Its
// context ends with the test.
func (b *bench) acquireLater(l *fencelock.Locker, name string, opts ...fencelock.LockOption) <-chan attempt {
	b.t.Helper()
	return inBackground(b.t, func() attempt {
		k, err := l.Acquire(b.t.Context(), name, opts...)
		return attempt{k, err}
	})
}

// granted waits for the lock of acquireLater.
func (b *bench) granted(c <-chan attempt) *fencelock.Lock {
	b.t.Helper()
	a := harness.Receive(b.t, c, soon, "grant")
	require.NoError(b.t, a.err)
	return a.lock
}

// stillWaits fails the test if acquireLater has returned.
func (b *bench) stillWaits(c <-chan attempt) {
	b.t.Helper()
	select {
	case a := <-c:
		b.t.Fatalf("acquire returned %v, %v while another holds the lock", a.lock, a.err)
	default:
	}
}

// awaitQueue waits until that many keys stand in the queue of a name that
// escaping leaves as it is. There is no event for it: a watch would see them in
// the order in which they come, not that the last has come.
func (b *bench) awaitQueue(name string, n int) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), soon)
	defer cancel()
	for last := int64(-1); ; {
		resp, err := b.clean.Get(ctx, keyPrefix+name+"/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			b.t.Fatalf("%d keys in the queue of %q, want %d: %v", last, name, n, err)
		}
		if last = resp.Count; last == int64(n) {
			return
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// inBackground runs f in a goroutine, which is over before the test is, and delivers what
// it returned; nothing if it did not return. What f waits for must end with
// t.Context.
func inBackground[T any](t *testing.T, f func() T) <-chan T {
	returned := make(chan T, 1)
	over := make(chan struct{})
	go func() {
		defer close(over)
		returned <- f()
	}()
	t.Cleanup(func() { <-over })
	return returned
}

// untilClosed waits for a channel to be closed, or to deliver, or for the end
// of the test.
func untilClosed(t *testing.T, c <-chan struct{}) {
	select {
	case <-c:
	case <-t.Context().Done():
	}
}

// warnings returns the log lines so far whose message has text in it.
func warnings(j *journal, text string) []slog.Record {
	var found []slog.Record
	for _, r := range reported[slog.Record](j) {
		if r.Level == slog.LevelWarn && strings.Contains(r.Message, text) {
			found = append(found, r)
		}
	}
	return found
}
