package integration

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/integration/harness"
)

// What docs/operating.md tells operators to do is done here as it says.

// The role of docs/operating.md, one permission on one prefix, is all that a client
// needs. A library that asks for more on some seldom path fails there, at an
// operator's with authentication on, and in no test without it.
func TestOperatingRole(t *testing.T) {
	harness.Parallel(t)
	const ttl = 9 * time.Second // on a busy machine too, a renewal is answered in time
	g := newGuarded(t, 0)
	g.addWorker("app")
	j := newJournal()
	app := g.openLocker(g.as("app"), append(reportTo(j), fencelock.WithTTL(ttl))...)
	other := g.openLocker(g.as("app"))

	// Held for so long that the lease is renewed and the key watched.
	var used fencelock.Fence
	require.NoError(t, app.Do(t.Context(), "job", func(_ context.Context, token fencelock.Token) error {
		awaitReports[fencelock.RenewedInfo](t, j, 1, soon)
		return used.Advance(token)
	}))
	tried, err := app.TryAcquire(t.Context(), "tried/with a slash")
	require.NoError(t, err)
	_, err = other.TryAcquire(t.Context(), "tried/with a slash")
	require.ErrorIs(t, err, fencelock.ErrHeld)
	g.release(tried)

	// Waiting, and what an operator does.
	k := g.acquire(app, "job")
	waiting := g.acquireLater(other, "job")
	g.awaitQueue("job", 2)
	queues, err := listed(t.Context(), other)
	require.NoError(t, err)
	require.Len(t, queues, 1)
	require.Positive(t, queues[0].Holder.Remaining)
	queue, err := other.Inspect(t.Context(), "job")
	require.NoError(t, err)
	require.Len(t, queue.Waiters, 1)
	require.NoError(t, other.Evict(t.Context(), "job", queue.Holder.Token))
	evicted := time.Now()
	<-k.Context().Done()
	require.LessOrEqual(t, time.Since(evicted), evictedWithin+allowance(evicted, time.Now()))
	require.ErrorIs(t, k.Release(t.Context()), fencelock.ErrLost)
	g.release(g.granted(waiting))

	require.NoError(t, app.Close())
	require.NoError(t, other.Close())
	require.Empty(t, harness.Leases(t, g.clean), "revoked")
	require.Empty(t, reported[fencelock.RenewalFailedInfo](j))
}

// Less than that role, or the same one elsewhere, is refused with the range that is
// missing; and a part of it does for what the page says.
func TestOperatingRoleInParts(t *testing.T) {
	harness.Parallel(t)
	g := newGuarded(t, 0)
	g.addWorker("app")
	k := g.acquire(g.locker(g.as("app")), "job")
	key, lease, _ := g.record("job")
	require.True(t, strings.HasPrefix(key, queueOf("job")))
	refusedAt := func(t *testing.T, err error, where string) {
		t.Helper()
		require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
		require.ErrorContains(t, err, strconv.Quote(where))
	}

	t.Run("another prefix", func(t *testing.T) {
		l := g.locker(g.as("app"), fencelock.WithPrefix("other/"))
		_, err := l.Acquire(t.Context(), "job")
		refusedAt(t, err, "other/job/")
		_, err = l.TryAcquire(t.Context(), "job")
		refusedAt(t, err, "other/job/")
		_, err = l.Inspect(t.Context(), "job")
		refusedAt(t, err, "other/job/")
		refusedAt(t, l.Evict(t.Context(), "job", k.Token()), "other/job/")
		_, err = listed(t.Context(), l)
		refusedAt(t, err, "other/")
	})

	t.Run("read", func(t *testing.T) {
		g.addUser("viewer")
		g.allow("viewer", keyPrefix, clientv3.PermRead)
		client := g.as("viewer")
		l := g.locker(client)
		queue, err := l.Inspect(t.Context(), "job")
		require.NoError(t, err)
		require.Positive(t, queue.Holder.Remaining)
		queues, err := listed(t.Context(), l)
		require.NoError(t, err)
		require.Len(t, queues, 1)
		_, err = l.Acquire(t.Context(), "free")
		refusedAt(t, err, queueOf("free"))
		refusedAt(t, l.Evict(t.Context(), "job", k.Token()), queueOf("job"))
		_, err = client.KeepAliveOnce(t.Context(), lease)
		require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
		_, err = client.Revoke(t.Context(), lease)
		require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
	})

	t.Run("write", func(t *testing.T) {
		g.addUser("blind")
		g.allow("blind", keyPrefix, clientv3.PermWrite)
		l := g.locker(g.as("blind"))
		_, err := l.Acquire(t.Context(), "free")
		refusedAt(t, err, queueOf("free"))
		require.ErrorContains(t, err, "putting and reading")
		_, err = l.Inspect(t.Context(), "job")
		refusedAt(t, err, queueOf("job"))
		refusedAt(t, l.Evict(t.Context(), "job", k.Token()), queueOf("job"))
		_, err = listed(t.Context(), l)
		refusedAt(t, err, keyPrefix)
	})

	t.Run("a single name", func(t *testing.T) {
		g.addUser("narrow")
		g.allow("narrow", queueOf("mine"), clientv3.PermReadWrite)
		l := g.openLocker(g.as("narrow"))
		mine := g.acquire(l, "mine")
		waiting := g.acquireLater(g.locker(g.as("narrow")), "mine")
		g.awaitQueue("mine", 2)
		require.NoError(t, l.Evict(t.Context(), "mine", mine.Token()))
		g.release(g.granted(waiting))
		require.ErrorIs(t, mine.Release(t.Context()), fencelock.ErrLost)
		_, err := l.Acquire(t.Context(), "job")
		refusedAt(t, err, queueOf("job"))
		_, err = listed(t.Context(), l)
		refusedAt(t, err, keyPrefix)
		require.NoError(t, l.Close())
	})

	t.Run("the command line", func(t *testing.T) {
		c := newCLI(g.bench, buildCLI(t))
		as := func(user string, args ...string) []string { return append(args, "--user", user+":"+rightPassword) }
		for _, user := range []string{"app", "viewer"} {
			out, _ := c.do(0, as(user, "doctor")...)
			assert.Contains(t, out, "ok       alarms")
			c.do(0, as(user, "ls")...)
			c.do(0, as(user, "show", "job")...)
		}
		c.do(123, as("viewer", "evict", "job", "--token", k.Token().String())...)
		require.NoError(t, k.Err())
		c.do(0, as("app", "evict", "job", "--token", k.Token().String())...)
	})
	require.ErrorIs(t, k.Release(t.Context()), fencelock.ErrLost)
}

// findings are what the doctor has to say of one level, by check.
func findings(t *testing.T, out, level string) map[string]string {
	t.Helper()
	type finding struct{ Level, Check, Text, Do string }
	all := map[string]string{}
	for _, f := range jsonLines[finding](t, out) {
		if f.Level == level {
			all[f.Check] += f.Text + "; " + f.Do
		}
	}
	return all
}

// One member of three is down: locks work, and the doctor says which and that they do.
func TestDoctorMemberDown(t *testing.T) {
	harness.Parallel(t)
	cluster := harness.StartCluster(t, harness.ClusterConfig{Members: 3})
	down := cluster.Leader()
	var up []*harness.Member
	var others []string
	for _, m := range cluster.Members {
		if m != down {
			up, others = append(up, m), append(others, m.Addr())
		}
	}
	binary := buildCLI(t)
	c := &cli{t: t, binary: binary, addr: strings.Join(cluster.Endpoints(), ",")}
	out, _ := c.do(0, "doctor", "-o", "json")
	require.Contains(t, findings(t, out, "ok")["members"], "3 of 3 answer")

	down.Kill()
	cluster.WaitReady(up...)
	for _, addr := range []string{c.addr, strings.Join(others, ","), others[0]} {
		c := &cli{t: t, binary: binary, addr: addr}
		out, _ = c.do(1, "doctor", "-o", "json")
		problems := findings(t, out, "problem")
		require.Len(t, problems, 1, "%v", problems)
		require.Contains(t, problems["members"], "member "+down.Name()+" ")
		require.Contains(t, problems["members"], down.Addr())
		require.Contains(t, problems["members"], "locks work")
		fine := findings(t, out, "ok")
		require.Contains(t, fine["members"], "2 of 3 answer")
		require.Contains(t, fine, "quorum")
		require.Contains(t, fine, "leases")
	}
	c.do(0, "run", "x", "--", "true")

	down.Restart()
	cluster.WaitReady(cluster.Members...)
	c.do(0, "doctor")
}

// etcd is full. The doctor names the alarm and the way out, and that way leads out.
func TestDoctorOutOfSpace(t *testing.T) {
	harness.Parallel(t)
	cluster := harness.StartCluster(t, harness.ClusterConfig{Members: 3, QuotaBackendBytes: 1 << 20})
	client := harness.NewClient(t, cluster.Endpoints()...)
	c := &cli{t: t, binary: buildCLI(t), addr: strings.Join(cluster.Endpoints(), ",")}
	until(t, "etcd is full", func() bool {
		_, err := client.Put(t.Context(), "fill", strings.Repeat("x", 64<<10))
		if err != nil {
			require.ErrorIs(t, err, rpctypes.ErrNoSpace)
		}
		return err != nil
	})
	out, _ := c.do(1, "doctor", "-o", "json")
	problems := findings(t, out, "problem")
	require.Contains(t, problems["alarms"], "NOSPACE")
	require.Contains(t, problems["alarms"], "alarm disarm")
	require.Contains(t, problems["leases"], "see the alarm")
	require.Len(t, problems, 2, "%v", problems)
	_, says := c.do(123, "run", "x", "--", "true")
	require.Contains(t, says, "space exceeded")

	// What the page says to do.
	resp, err := client.Get(t.Context(), "any")
	require.NoError(t, err)
	_, err = client.Compact(t.Context(), resp.Header.Revision, clientv3.WithCompactPhysical())
	require.NoError(t, err)
	for _, addr := range cluster.Endpoints() {
		_, err = client.Defragment(t.Context(), addr)
		require.NoError(t, err)
	}
	_, err = client.AlarmDisarm(t.Context(), &clientv3.AlarmMember{}) // all there are
	require.NoError(t, err)
	c.do(0, "doctor")
	c.do(0, "run", "x", "--", "true")
}

// Locks move to an empty etcd, whose revision begins at 1, and the fences do not. A
// cluster that is started just so has every write refused, for as long as it takes
// to make as many as the old one had.
func TestMoveToAnEmptyEtcd(t *testing.T) {
	harness.Parallel(t)
	binary := buildCLI(t)
	old := newRestorable(t)
	old.advance(100)
	work := func(l *fencelock.Locker, fence *fencelock.Fence) (token fencelock.Token, err error) {
		err = l.Do(t.Context(), "job", func(_ context.Context, granted fencelock.Token) error {
			token = granted
			return fence.Advance(granted)
		})
		return token, errors.Join(err, l.Close())
	}
	mark, err := work(old.openLocker(old.client()), &fencelock.Fence{})
	require.NoError(t, err)
	highest := strconv.FormatInt(mark.Revision(), 10)

	ways := map[string]func(r restorable){
		"a snapshot of it, restored with a bump": func(r restorable) {
			restoreSnapshot(t, r.member, saveSnapshot(t, r.member), bump)
		},
		"writes": func(r restorable) { r.advance(mark.Revision()) },
	}
	for way, raise := range ways {
		t.Run(way, func(t *testing.T) {
			r := newRestorable(t)
			c := newCLI(r.bench, binary)
			var fence fencelock.Fence // as the old cluster's holders have left it
			require.NoError(t, fence.Advance(mark))
			out, _ := c.do(1, "doctor", "-o", "json", "--fence-highest", highest)
			require.Contains(t, findings(t, out, "problem")["tokens"], "--bump-revision")
			before, err := work(r.openLocker(r.client()), &fence)
			require.ErrorIs(t, err, fencelock.ErrTokenRegression)
			require.Less(t, before.Revision(), mark.Revision())

			raise(r)
			out, _ = c.do(0, "doctor", "-o", "json", "--fence-highest", highest)
			require.Contains(t, findings(t, out, "ok"), "tokens")
			token, err := work(r.openLocker(r.client()), &fence)
			require.NoError(t, err)
			require.Greater(t, token.Revision(), mark.Revision())
			require.ErrorIs(t, fence.Advance(mark), fencelock.ErrStale, "a late holder of the old cluster's")
		})
	}
}
