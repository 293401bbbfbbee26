package integration

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/integration/harness"
	"github.com/fencelock/fencelock/internal/integration/resource"
)

// The moments at which a late write arrives, for the next holder.
const (
	beforeItReads = "before the next holder reads"
	whileItThinks = "between the next holder's read and its write"
	afterItWrote  = "after the next holder's write"
)

// TestFault12WriteDelayedPastReassignment holds the write of a holder in the
// network for 2 TTLs, while its link to etcd is cut. The next holder gets the
// lock, and the late write comes before it reads, before it writes, or after.
//
// The holder looked at its context right before it sent; no check on its side
// can help. A resource without a fence applies the write, and one of the two
// updates is lost. So it is with a fence that is asked for writes only: it has
// seen no newer token yet when the late write comes between the next holder's
// read and write. That is why a holder claims before it reads. Both are shown
// here beside it.
func TestFault12WriteDelayedPastReassignment(t *testing.T) {
	harness.Parallel(t)
	cluster := harness.StartCluster(t, harness.ClusterConfig{})
	clean := harness.NewClient(t, cluster.Endpoints()...)

	type arrival struct {
		resource *resource.Process
		arrives  string
	}
	cases := map[string]arrival{}
	for kind, r := range fencedResources(t) {
		for _, arrives := range []string{beforeItReads, whileItThinks, afterItWrote} {
			cases[arrives+", "+kind] = arrival{r, arrives}
		}
	}
	atOnce(t, cases, func(t *testing.T, a arrival) {
		writeDelayed(t, cluster.Members[0].Addr(), clean, a.resource, a.arrives)
	})
	harness.NothingLeft(t, clean, keyPrefix)
}

func writeDelayed(t *testing.T, etcd string, clean *clientv3.Client, server *resource.Process, arrives string) {
	const ttl = 2 * time.Second
	name := t.Name()
	link := harness.NewProxy(t, etcd)
	holder, waiter := newParty(t, ttl, link.Addr()), newParty(t, calmTTL, etcd)

	h := holder.acquire(t, name)
	var updates []*lateUpdate
	for _, d := range disciplines {
		u := newLateUpdate(t, d, name, server)
		require.NoError(t, h.Err())
		u.send(t, h)
		updates = append(updates, u)
	}
	sent := time.Now()
	granted := waiter.queue(t, clean, name, 1)
	link.Blackhole()
	next := harness.Receive(t, granted, eventually, "grant to the waiter")
	require.NoError(t, next.err)
	require.ErrorIs(t, h.Err(), fencelock.ErrLost, "two have the lock by their own word")
	<-time.After(time.Until(sent.Add(2 * ttl)))

	for _, u := range updates {
		u.compete(t, next.lock.Token(), arrives)
		u.check(t, arrives)
	}
	require.NoError(t, next.lock.Err())
	require.NoError(t, next.lock.Release(t.Context()))
	holder.requireLossReported(t, h, fencelock.LostExpired)
	holder.requireLostRelease(t, h)
	link.Heal()
	holder.reconnect(t)
	require.NoError(t, holder.Close())
	require.NoError(t, waiter.Close())
}

// discipline is how holders treat a resource.
type discipline struct {
	name  string
	read  func(r *resource.Client, ctx context.Context, register string, token fencelock.Token) (string, error)
	write func(r *resource.Client, ctx context.Context, register string, token fencelock.Token, value string) error
	// heeds says that a request is given up when the lock is lost.
	heeds bool
	// lost is which acknowledged update is not there in the end, by when the
	// late one arrives.
	lost map[string][]string
	// stale is when the late one is applied and stale.
	stale string
}

var disciplines = []discipline{
	{name: "claims", read: (*resource.Client).Claim, write: (*resource.Client).Write},
	{name: "claims and heeds its context", read: (*resource.Client).Claim, write: (*resource.Client).Write, heeds: true},
	{
		name: "fences its writes only", read: justRead, write: (*resource.Client).Write,
		lost: map[string][]string{whileItThinks: {lateValue}},
	},
	{
		name: "fences nothing", read: justRead, write: (*resource.Client).Overwrite,
		lost:  map[string][]string{whileItThinks: {lateValue}, afterItWrote: {"next"}},
		stale: afterItWrote,
	},
}

func justRead(r *resource.Client, ctx context.Context, register string, _ fencelock.Token) (string, error) {
	return r.Read(ctx, register)
}

// lateUpdate is an update that is held on its way to the resource. An update
// adds a word to a register's value.
type lateUpdate struct {
	discipline
	register     string
	road         *harness.Proxy // the late one's
	late, direct *resource.Client
	holder       string // the late one
	result       chan error
}

func newLateUpdate(t *testing.T, d discipline, lock string, server *resource.Process) *lateUpdate {
	t.Helper()
	u := &lateUpdate{
		discipline: d,
		register:   lock + ", " + d.name,
		road:       harness.NewProxy(t, server.Addr),
		direct:     server.Client(t),
		result:     make(chan error, 1),
	}
	u.late = resource.NewClient(u.road.Addr())
	t.Cleanup(func() { _ = u.late.Close() })
	return u
}

// send has the holder read and write, and returns when the write is on its way.
func (u *lateUpdate) send(t *testing.T, h *hold) {
	t.Helper()
	ctx, token := context.Background(), h.Token()
	if u.heeds {
		ctx = h.Context()
	}
	u.holder = token.Holder()
	value, err := u.read(u.late, ctx, u.register, token)
	require.NoError(t, err)
	u.road.ToServer.Stall()
	before := u.road.ToServer.Received()
	go func() { u.result <- u.write(u.late, ctx, u.register, token, value+" "+lateValue) }()
	require.Eventually(t, func() bool { return u.road.ToServer.Received() > before }, eventually, time.Millisecond,
		"the write is not under way")
}

// compete has the next holder read and write, and the late write arrive.
func (u *lateUpdate) compete(t *testing.T, token fencelock.Token, arrives string) {
	t.Helper()
	if arrives == beforeItReads {
		u.arrive(t)
	}
	value, err := u.read(u.direct, t.Context(), u.register, token)
	require.NoError(t, err)
	if arrives == whileItThinks {
		u.arrive(t)
	}
	require.NoError(t, u.write(u.direct, t.Context(), u.register, token, value+" next"))
	if arrives == afterItWrote {
		u.arrive(t)
	}
}

// arrive lets the late write go, and returns when it was decided.
func (u *lateUpdate) arrive(t *testing.T) {
	t.Helper()
	u.road.ToServer.Resume()
	require.Eventually(t, func() bool {
		history, err := u.direct.History(t.Context(), u.register)
		return err == nil && slices.ContainsFunc(history, func(e resource.Entry) bool {
			return e.Op != resource.OpClaim && e.Holder == u.holder
		})
	}, eventually, time.Millisecond, "the late write does not arrive")
}

// check checks what became of both updates.
func (u *lateUpdate) check(t *testing.T, arrives string) {
	t.Helper()
	acknowledged := []string{"next"}
	result := harness.Receive(t, u.result, eventually, "end of the late write")
	switch {
	case u.heeds:
		require.ErrorIs(t, result, resource.ErrUnanswered, u.name)
		require.ErrorIs(t, result, fencelock.ErrLost, u.name)
	case result == nil:
		acknowledged = append(acknowledged, lateValue)
	default:
		var stale *fencelock.StaleError
		require.ErrorAs(t, result, &stale, u.name)
		require.Equal(t, u.holder, stale.Presented.Holder())
		require.NotEqual(t, beforeItReads, arrives, "no newer token was seen yet")
	}
	value, err := u.direct.Read(t.Context(), u.register)
	require.NoError(t, err)
	kept := strings.Fields(value)
	lost := slices.DeleteFunc(acknowledged, func(update string) bool { return slices.Contains(kept, update) })
	require.ElementsMatch(t, u.lost[arrives], lost, "updates lost by who %s", u.name)

	history, err := u.direct.History(t.Context(), u.register)
	require.NoError(t, err)
	require.Equal(t, u.stale == arrives, len(resource.Stale(history)) > 0, "stale writes of who %s: %v", u.name, history)
}
