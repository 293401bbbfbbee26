package integration

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/integration/harness"
)

// TestFault04MinoritySide cuts one member off from the others, and with it the
// holder that talks to this member alone. A leader that was just cut off still
// answers renewals, since those do not go through raft: who takes such an
// answer for a sign that the cluster lives holds on for too long. And a watch
// through that member just falls silent, so that who waits there, or wants to
// stop waiting, hangs.
func TestFault04MinoritySide(t *testing.T) {
	harness.Parallel(t)
	for name, pick := range map[string]func(*harness.Cluster) *harness.Member{
		"old leader": func(c *harness.Cluster) *harness.Member { return c.Leader() },
		"follower": func(c *harness.Cluster) *harness.Member {
			leader := c.Leader()
			return c.Members[slices.IndexFunc(c.Members, func(m *harness.Member) bool { return m != leader })]
		},
	} {
		t.Run(name, func(t *testing.T) { minoritySide(t, pick) })
	}
}

func minoritySide(t *testing.T, pick func(*harness.Cluster) *harness.Member) {
	harness.NoLeaks(t)
	cluster := harness.StartCluster(t, harness.ClusterConfig{Members: 3})
	alone := pick(cluster)
	var majority []string
	for _, m := range cluster.Members {
		if m != alone {
			majority = append(majority, m.Addr())
		}
	}
	clean := harness.NewClient(t, majority...)

	const ttl = 2 * time.Second
	holder := newParty(t, ttl, alone.Addr())
	waiter := newParty(t, ttl, majority...)
	stranded := newParty(t, ttl, alone.Addr())
	h := holder.acquire(t, "part")
	deleted := watchDeletion(t, clean, harness.Keys(t, clean, queueOf("part"))[0])
	granted := waiter.queue(t, clean, "part", 1)
	strandedWait, giveUp := context.WithCancel(context.Background())
	defer giveUp()
	stopped := later(func() error {
		_, err := stranded.Acquire(strandedWait, "part")
		return err
	})
	until(t, "stranded waiter in the queue", func() bool { return len(harness.Keys(t, clean, queueOf("part"))) == 3 })
	awaitReports[fencelock.RenewedInfo](t, holder.told, 1, eventually)

	term := raftTerm(t, clean)
	cluster.Partition(alone)
	dead := time.Now()

	// Whoever is on that side gets away in time.
	const patience = time.Second
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	calls := map[string]<-chan outcome{
		"Acquire":    later(func() error { _, err := stranded.Acquire(ctx, "other"); return err }),
		"TryAcquire": later(func() error { _, err := stranded.TryAcquire(ctx, "another"); return err }),
		"Inspect":    later(func() error { _, err := stranded.Inspect(ctx, "part"); return err }),
		"wait":       later(func() error { <-ctx.Done(); giveUp(); return (<-stopped).err }),
	}
	for name, call := range calls {
		got := harness.Receive(t, call, eventually, "return of "+name)
		assert.Error(t, got.err, name)
		assertInTime(t, dead.Add(patience), got, name)
	}

	h.ended(t, eventually)
	next := harness.Receive(t, granted, eventually, "grant to the waiter")
	gone := harness.Receive(t, deleted, eventually, "deletion of the holder's key")
	holder.requireToldInTime(t, h, gone, next)
	elections := raftTerm(t, clean) - term
	requireWithin(t, time.Duration(1+elections)*ttl+time.Second, dead, next.at, "from the partition to the grant")
	holder.requireLossReported(t, h, fencelock.LostExpired)
	holder.requireLostRelease(t, h)
	require.NoError(t, next.lock.Release(atMost(t, eventually)))

	cluster.Mend()
	cluster.WaitReady()
	require.NoError(t, holder.Close())
	require.NoError(t, stranded.Close())
	require.NoError(t, waiter.Close())
	harness.NothingLeft(t, clean, keyPrefix)
}

// watchDeletion delivers when a key is deleted. Unlike the harness's watch it
// bears that there is no leader for a moment.
func watchDeletion(t *testing.T, client *clientv3.Client, key string) <-chan harness.Deletion {
	t.Helper()
	watch := client.Watch(t.Context(), key, clientv3.WithFilterPut(), clientv3.WithCreatedNotify())
	require.True(t, harness.Receive(t, watch, eventually, "confirmation of a watch").Created)
	deleted := make(chan harness.Deletion, 1)
	go func() {
		for resp := range watch {
			if len(resp.Events) > 0 {
				deleted <- harness.Deletion{Key: key, At: time.Now()}
				return
			}
		}
	}()
	return deleted
}
