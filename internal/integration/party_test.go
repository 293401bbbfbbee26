package integration

import (
	"context"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/integration/harness"
)

const (
	// keyPrefix is what every key of the library starts with, by default.
	keyPrefix = "fencelock/"

	// eventually bounds the wait for something that has to come and has no
	// bound of its own. No test passes by it.
	eventually = 20 * time.Second
)

// party is one who takes part in a test: a Locker with an etcd client of its
// own, and all that can be seen of them.
type party struct {
	*fencelock.Locker
	client *clientv3.Client
	wire   *harness.LossyLease // loses grants and renewals
	trace  *leaseTrace         // of what came through the wire
	told   *journal
	ttl    time.Duration
	margin time.Duration
}

// newParty returns a Locker that asks for leases of that TTL, with the default
// margin, through that endpoint. It is closed at the end of the test.
func newParty(t testing.TB, ttl time.Duration, endpoints ...string) *party {
	t.Helper()
	return newPartyWith(t, clientv3.Config{Endpoints: endpoints}, ttl, ttl/5)
}

func newPartyWith(t testing.TB, cfg clientv3.Config, ttl, margin time.Duration) *party {
	t.Helper()
	client := harness.NewClientWith(t, cfg)
	wire := harness.NewLossyLease(t, client.Lease)
	p := &party{
		client: client, wire: wire, trace: &leaseTrace{Lease: wire},
		told: newJournal(), ttl: ttl, margin: margin,
	}
	client.Lease = p.trace
	var err error
	p.Locker, err = fencelock.New(client, fencelock.WithTTL(ttl), fencelock.WithMargin(margin),
		fencelock.WithHooks(p.told.hooks()), fencelock.WithLogger(p.told.logger()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = p.Close() }) // again, for a test that failed
	return p
}

// acquire acquires a lock that nobody has.
func (p *party) acquire(t testing.TB, name string) *hold {
	t.Helper()
	lock, err := p.Acquire(atMost(t, eventually), name)
	require.NoError(t, err)
	return watchHold(lock)
}

// reconnect returns when the client has reached etcd again, after a link was
// healed. gRPC waits longer after each refused connection, soon for longer than
// a Close may take.
func (p *party) reconnect(t testing.TB) {
	t.Helper()
	p.client.ActiveConnection().ResetConnectBackoff()
	_, err := p.client.Get(atMost(t, eventually), keyPrefix)
	require.NoError(t, err)
}

// queueOf is what every key in the queue of a lock starts with.
func queueOf(name string) string { return keyPrefix + url.PathEscape(name) + "/" }

// grant is what an Acquire returned, and when.
type grant struct {
	lock *fencelock.Lock
	err  error
	at   time.Time
}

// queue acquires a lock that another has, and returns when its key stands in
// the queue behind as many others, as the client sees it.
func (p *party) queue(t testing.TB, client *clientv3.Client, name string, behind int) <-chan grant {
	t.Helper()
	ctx := atMost(t, 2*eventually)
	granted := make(chan grant, 1)
	go func() {
		lock, err := p.Acquire(ctx, name)
		granted <- grant{lock, err, time.Now()}
	}()
	until(t, "key of the waiter in the queue", func() bool {
		return len(harness.Keys(t, client, queueOf(name))) > behind
	})
	return granted
}

// hold is a lock, and when its context ended.
type hold struct {
	*fencelock.Lock
	done chan struct{}
	at   time.Time // when the context was seen to end; once done is closed
}

func watchHold(lock *fencelock.Lock) *hold {
	h := &hold{Lock: lock, done: make(chan struct{})}
	go func() {
		<-lock.Context().Done()
		h.at = time.Now()
		close(h.done)
	}()
	return h
}

// ended waits for the context to end, and returns when it did.
func (h *hold) ended(t testing.TB, within time.Duration) time.Time {
	t.Helper()
	harness.Receive(t, h.done, within, "end of the held context")
	return h.at
}

// atMost returns a context that ends after d, and with the test.
func atMost(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// until polls for what no event tells. Unlike testify's Eventually it asks on
// the test's own goroutine, so that asking may end the test.
func until(t testing.TB, what string, there func() bool) {
	t.Helper()
	limit := time.Now().Add(eventually)
	for !there() {
		if time.Now().After(limit) {
			t.Fatalf("no %s within %v", what, eventually)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
