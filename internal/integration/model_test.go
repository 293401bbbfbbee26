package integration

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"pgregory.net/rapid"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/integration/harness"
)

// modelChecks is how many random sequences TestModel runs. Each takes some
// seconds, because a loss is felt by watches and renewals.
const modelChecks = "6"

// TestModel runs random sequences of what users and operators do on three
// Lockers and four names, some a prefix of another, and compares with a simple
// model after each step: a queue for each name, in order of the tokens. What it
// finds is what no table of faults lists.
//
// The model says what every step leaves: the queue as it was, without those who
// left it, with those who came or came back at the end; the head of it holds the
// lock and nobody else does; tokens of one name only rise.
func TestModel(t *testing.T) {
	harness.NoLeaks(t)
	if !set("rapid.checks") {
		require.NoError(t, flag.Set("rapid.checks", modelChecks))
	}
	if !set("rapid.steps") {
		require.NoError(t, flag.Set("rapid.steps", "16"))
	}
	cluster := harness.StartCluster(t, harness.ClusterConfig{})
	observer := harness.NewClient(t, cluster.Endpoints()...)
	clients := make([]*clientv3.Client, 3)
	for i := range clients {
		clients[i] = harness.NewClient(t, cluster.Endpoints()...)
	}
	rapid.Check(t, func(rt *rapid.T) {
		m := newModel(rt, observer, clients)
		defer m.end()
		rt.Repeat(map[string]func(*rapid.T){
			"acquire":        m.acquire,
			"tryAcquire":     m.tryAcquire,
			"release":        m.release,
			"cancel":         m.cancel,
			"operatorDelete": m.operatorDelete,
			"revoke":         m.revoke,
			"close":          m.close,
		})
	})
	harness.NothingLeft(t, observer, keyPrefix)
}

func set(name string) (found bool) {
	flag.Visit(func(f *flag.Flag) { found = found || f.Name == name })
	return found
}

var modelNames = []string{"a", "a/b", "ab", "a%2Fb"}

// claimant is one acquiring call of the model.
type claimant struct {
	locker int
	cancel context.CancelFunc
	ended  chan struct{} // closed when the call returned
	lock   *fencelock.Lock
	err    error
}

// held reports whether the call returned with a lock.
func (c *claimant) held() bool {
	select {
	case <-c.ended:
		return c.lock != nil
	default:
		return false
	}
}

type model struct {
	t        *rapid.T
	observer *fencelock.Locker
	etcd     *clientv3.Client
	clients  []*clientv3.Client
	lockers  []*fencelock.Locker
	queues   map[string][]*claimant // in no order; etcd's record has that
	highest  map[string]int64
}

// modelTTL is long enough for a busy machine: what the model does not expect is a
// lock that is lost for want of a renewal.
const modelTTL = 5 * time.Second

func newModel(t *rapid.T, etcd *clientv3.Client, clients []*clientv3.Client) *model {
	m := &model{
		t: t, etcd: etcd, clients: clients,
		lockers: make([]*fencelock.Locker, len(clients)),
		queues:  map[string][]*claimant{}, highest: map[string]int64{},
	}
	var err error
	m.observer, err = fencelock.New(etcd)
	require.NoError(t, err)
	for i := range m.lockers {
		m.open(i)
	}
	return m
}

func (m *model) open(i int) {
	var err error
	m.lockers[i], err = fencelock.New(m.clients[i], fencelock.WithTTL(modelTTL),
		fencelock.WithLabel(label(i)), fencelock.WithLogger(slog.New(slog.DiscardHandler)))
	require.NoError(m.t, err)
}

func label(i int) string { return fmt.Sprintf("locker %d", i) }

func (m *model) inspect(name string) fencelock.Queue {
	ctx, cancel := context.WithTimeout(context.Background(), eventually)
	defer cancel()
	q, err := m.observer.Inspect(ctx, name)
	require.NoError(m.t, err)
	return q
}

// line is the queue of a name, the holder first.
func (m *model) line(name string) []fencelock.Claim {
	q := m.inspect(name)
	if q.Holder == nil {
		return nil
	}
	return append([]fencelock.Claim{*q.Holder}, q.Waiters...)
}

func revisions(line []fencelock.Claim) (revs []int64) {
	for _, c := range line {
		revs = append(revs, c.Token.Revision())
	}
	return revs
}

// settle waits until etcd's record and the model agree on a name, and checks
// what then must hold: kept is how the queue begins, in this order, and added is
// how many claims follow, all with larger tokens than ever before.
func (m *model) settle(name string, kept []fencelock.Claim, added int) {
	var line []fencelock.Claim
	agreed := func() bool {
		line = m.line(name)
		if len(line) != len(kept)+added || len(line) != len(m.queues[name]) {
			return false
		}
		return len(line) == 0 || m.holder(name) != nil && m.holder(name).lock.Token().Equal(line[0].Token)
	}
	deadline := time.Now().Add(eventually)
	for !agreed() {
		if time.Now().After(deadline) {
			m.t.Fatalf("%q: the record has %v, the model %d claims: %v kept and %d added; holder %v",
				name, revisions(line), len(m.queues[name]), revisions(kept), added, m.holder(name))
		}
		time.Sleep(2 * time.Millisecond)
	}

	require.True(m.t, slices.Equal(revisions(kept), revisions(line)[:len(kept)]),
		"first in, first out: %q should begin with %v and is %v", name, revisions(kept), revisions(line))
	for _, c := range line[len(kept):] {
		require.Greater(m.t, c.Token.Revision(), m.highest[name], "tokens rise: %q", name)
		m.highest[name] = c.Token.Revision()
	}
	for i := range m.lockers {
		inRecord := 0
		for _, c := range line {
			if c.Label == label(i) {
				inRecord++
			}
		}
		inModel := 0
		for _, c := range m.queues[name] {
			if c.locker == i {
				inModel++
			}
		}
		require.Equal(m.t, inModel, inRecord, "%q: claims of %s", name, label(i))
	}
	holders := 0
	for _, c := range m.queues[name] {
		if c.held() {
			require.NoError(m.t, c.lock.Err())
			require.NoError(m.t, c.lock.Context().Err())
			holders++
		}
	}
	require.Equal(m.t, min(1, len(line)), holders, "%q: at most one holds the lock", name)
}

// holder is who the model has as the holder, nil while nobody was granted.
func (m *model) holder(name string) *claimant {
	for _, c := range m.queues[name] {
		if c.held() {
			return c
		}
	}
	return nil
}

func (m *model) waiters(name string) (out []*claimant) {
	for _, c := range m.queues[name] {
		if !c.held() {
			out = append(out, c)
		}
	}
	return out
}

// leave takes a claimant out of the model.
func (m *model) leave(name string, c *claimant) {
	m.queues[name] = slices.DeleteFunc(m.queues[name], func(o *claimant) bool { return o == c })
}

func (m *model) name(t *rapid.T) string { return rapid.SampledFrom(modelNames).Draw(t, "name") }

// someName draws a name whose queue is as wanted.
func (m *model) someName(t *rapid.T, wanted func(name string) bool) string {
	var names []string
	for _, n := range modelNames {
		if wanted(n) {
			names = append(names, n)
		}
	}
	if len(names) == 0 {
		t.Skip("no such queue")
	}
	return rapid.SampledFrom(names).Draw(t, "name")
}

func (m *model) acquire(t *rapid.T) {
	name, i := m.name(t), rapid.IntRange(0, len(m.lockers)-1).Draw(t, "locker")
	before := m.line(name)
	ctx, cancel := context.WithCancel(context.Background())
	c := &claimant{locker: i, cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(c.ended)
		c.lock, c.err = m.lockers[i].Acquire(ctx, name)
	}()
	m.queues[name] = append(m.queues[name], c)
	m.settle(name, before, 1)
}

func (m *model) tryAcquire(t *rapid.T) {
	name, i := m.name(t), rapid.IntRange(0, len(m.lockers)-1).Draw(t, "locker")
	before := m.line(name)
	ctx, cancel := context.WithTimeout(context.Background(), eventually)
	defer cancel()
	lock, err := m.lockers[i].TryAcquire(ctx, name)
	if len(before) > 0 {
		var held *fencelock.HeldError
		require.ErrorAs(m.t, err, &held)
		require.True(m.t, held.Holder.Token.Equal(before[0].Token))
		m.settle(name, before, 0)
		return
	}
	require.NoError(m.t, err)
	c := &claimant{locker: i, cancel: func() {}, ended: make(chan struct{}), lock: lock}
	close(c.ended)
	m.queues[name] = append(m.queues[name], c)
	m.settle(name, nil, 1)
}

func (m *model) release(t *rapid.T) {
	name := m.someName(t, func(n string) bool { return m.holder(n) != nil })
	before, c := m.line(name), m.holder(name)
	m.free(c, nil)
	m.leave(name, c)
	m.settle(name, before[1:], 0)
}

// free releases a lock whose release ends with that error.
func (m *model) free(c *claimant, want error) {
	ctx, cancel := context.WithTimeout(context.Background(), eventually)
	defer cancel()
	defer c.cancel()
	err := c.lock.Release(ctx)
	if want == nil {
		require.NoError(m.t, err)
		return
	}
	require.ErrorIs(m.t, err, want)
}

// lose waits for the loss of what c holds, and releases it.
func (m *model) lose(c *claimant, reasons ...fencelock.Reason) {
	select {
	case <-c.lock.Context().Done():
	case <-time.After(eventually):
		m.t.Fatalf("the loss of %q is not told", c.lock.Name())
	}
	var loss *fencelock.LostError
	require.ErrorAs(m.t, c.lock.Err(), &loss)
	require.Contains(m.t, reasons, loss.Reason)
	m.free(c, fencelock.ErrLost)
}

func (m *model) cancel(t *rapid.T) {
	name := m.someName(t, func(n string) bool { return len(m.waiters(n)) > 0 })
	before, waiters := m.line(name), m.waiters(name)
	c := waiters[rapid.IntRange(0, len(waiters)-1).Draw(t, "waiter")]
	c.cancel()
	<-c.ended
	require.ErrorIs(m.t, c.err, fencelock.ErrNotAcquired)
	require.ErrorIs(m.t, c.err, context.Canceled)
	m.leave(name, c)

	// Which of a Locker's waiters it was the record does not say; one of them
	// is gone, and the order of the others is as it was.
	left := m.line(name)
	deadline := time.Now().Add(eventually)
	for len(left) != len(before)-1 && time.Now().Before(deadline) {
		time.Sleep(2 * time.Millisecond)
		left = m.line(name)
	}
	gone := slices.DeleteFunc(slices.Clone(before), func(b fencelock.Claim) bool {
		return slices.ContainsFunc(left, func(l fencelock.Claim) bool { return l.Token.Equal(b.Token) })
	})
	require.Len(m.t, gone, 1)
	require.Equal(m.t, label(c.locker), gone[0].Label)
	m.settle(name, left, 0)
}

func (m *model) operatorDelete(t *rapid.T) {
	name := m.someName(t, func(n string) bool { return len(m.queues[n]) > 0 })
	before := m.line(name)
	i := rapid.IntRange(0, len(before)-1).Draw(t, "place")
	m.deleteKey(name, before[i])
	if i == 0 {
		c := m.holder(name)
		m.lose(c, fencelock.LostDeleted)
		m.leave(name, c)
		m.settle(name, before[1:], 0)
		return
	}
	// A waiter queues again, at the end.
	m.settle(name, slices.Delete(before, i, i+1), 1)
}

// deleteKey does what an operator with etcdctl del does.
func (m *model) deleteKey(name string, c fencelock.Claim) {
	ctx, cancel := context.WithTimeout(context.Background(), eventually)
	defer cancel()
	all, err := m.etcd.Get(ctx, keyPrefix, clientv3.WithPrefix())
	require.NoError(m.t, err)
	for _, kv := range all.Kvs {
		if kv.CreateRevision == c.Token.Revision() {
			_, err := m.etcd.Delete(ctx, string(kv.Key))
			require.NoError(m.t, err)
			return
		}
	}
	m.t.Fatalf("%q has no key with revision %d", name, c.Token.Revision())
}

// lines are all queues as they are.
func (m *model) lines() map[string][]fencelock.Claim {
	out := map[string][]fencelock.Claim{}
	for _, n := range modelNames {
		out[n] = m.line(n)
	}
	return out
}

func without(line []fencelock.Claim, i int) []fencelock.Claim {
	return slices.DeleteFunc(slices.Clone(line), func(c fencelock.Claim) bool { return c.Label == label(i) })
}

func (m *model) revoke(t *rapid.T) {
	i := rapid.IntRange(0, len(m.lockers)-1).Draw(t, "locker")
	before := m.lines()
	lease := clientv3.NoLease
	ctx, cancel := context.WithTimeout(context.Background(), eventually)
	defer cancel()
	all, err := m.etcd.Get(ctx, keyPrefix, clientv3.WithPrefix())
	require.NoError(m.t, err)
	for _, n := range modelNames {
		for _, c := range before[n] {
			for _, kv := range all.Kvs {
				if c.Label == label(i) && kv.CreateRevision == c.Token.Revision() {
					lease = clientv3.LeaseID(kv.Lease)
				}
			}
		}
	}
	if lease == clientv3.NoLease {
		t.Skip("it has nothing in etcd")
	}
	_, err = m.etcd.Revoke(ctx, lease)
	require.NoError(m.t, err)
	for _, n := range modelNames {
		if c := m.holder(n); c != nil && c.locker == i && before[n][0].Label == label(i) {
			m.lose(c, fencelock.LostDeleted, fencelock.LostRevoked)
			m.leave(n, c)
		}
	}
	for _, n := range modelNames {
		kept := without(before[n], i)
		m.settle(n, kept, len(m.queues[n])-len(kept))
	}
}

func (m *model) close(t *rapid.T) {
	i := rapid.IntRange(0, len(m.lockers)-1).Draw(t, "locker")
	before := m.lines()
	closed := make(chan error, 1)
	go func() { closed <- m.lockers[i].Close() }()
	for _, n := range modelNames {
		for _, c := range slices.Clone(m.queues[n]) {
			if c.locker != i {
				continue
			}
			// A waiter may have been granted the lock that another one of this
			// Locker's gave up in the same moment.
			if c.held() {
				m.lose(c, fencelock.LostClosed)
			} else {
				<-c.ended
				if c.lock != nil {
					m.lose(c, fencelock.LostClosed)
				} else {
					require.ErrorIs(m.t, c.err, fencelock.ErrClosed)
				}
			}
			m.leave(n, c)
		}
	}
	select {
	case err := <-closed:
		require.NoError(m.t, err)
	case <-time.After(eventually):
		m.t.Fatal("Close does not return")
	}
	for _, n := range modelNames {
		m.settle(n, without(before[n], i), 0)
	}
	m.open(i)
}

// end closes everything, whatever state a failed step left.
func (m *model) end() {
	for _, l := range m.lockers {
		_ = l.Close()
	}
	for _, q := range m.queues {
		for _, c := range q {
			c.cancel()
			<-c.ended
			if c.lock != nil {
				_ = c.lock.Release(context.Background())
			}
		}
	}
	_ = m.observer.Close()
}
