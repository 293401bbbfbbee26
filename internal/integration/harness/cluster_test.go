package harness

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestClusterOfOne(t *testing.T) {
	NoLeaks(t)
	c := StartCluster(t, ClusterConfig{})
	m := c.Members[0]
	client := NewClient(t, c.Endpoints()...)
	_, err := client.Put(within(t, soon), "k", "v")
	require.NoError(t, err)
	lease, err := client.Grant(within(t, soon), 1)
	require.NoError(t, err)
	require.EqualValues(t, 1, lease.TTL, "a lease of one second is granted as asked")
	require.Same(t, m, c.Leader())

	m.Pause()
	_, err = client.Get(within(t, 100*time.Millisecond), "k")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	m.Resume()
	c.WaitReady()

	id := m.ID()
	for _, end := range []func(){m.Kill, m.Shutdown} {
		end()
		require.Nil(t, m.Process())
		m.Restart()
		require.Equal(t, id, m.ID())
		resp, err := NewClient(t, m.Addr()).Get(within(t, soon), "k")
		require.NoError(t, err)
		require.Len(t, resp.Kvs, 1, "what was acknowledged is there after a restart")
	}
}

func TestClusterQuota(t *testing.T) {
	NoLeaks(t)
	c := StartCluster(t, ClusterConfig{QuotaBackendBytes: 1 << 20})
	client := NewClient(t, c.Endpoints()...)
	value := string(make([]byte, 100<<10))
	ctx := within(t, soon)
	var err error
	for err == nil { // etcd sees its size grow only when it commits a batch
		_, err = client.Put(ctx, "k", value)
	}
	require.ErrorIs(t, err, rpctypes.ErrNoSpace)
}

func TestClusterOfThree(t *testing.T) {
	NoLeaks(t)
	c := StartCluster(t, ClusterConfig{Members: 3})
	client := NewClient(t, c.Endpoints()...)
	_, err := client.Put(within(t, soon), "k", "1")
	require.NoError(t, err)

	old := c.Leader()
	for _, m := range c.Members {
		if m != old {
			c.MoveLeader(m)
			require.Same(t, m, c.Leader())
			break
		}
	}

	t.Run("partition", func(t *testing.T) {
		alone := c.Leader()
		c.Partition(alone)
		require.Eventually(t, func() bool { return c.Leader() != alone }, soon, 10*time.Millisecond)
		_, err := NewClient(t, alone.Addr()).Get(within(t, 300*time.Millisecond), "k")
		require.Error(t, err, "a member without a quorum does not answer")
		require.NotErrorIs(t, err, rpctypes.ErrUserEmpty)
		c.Mend()
		c.WaitReady()
	})

	t.Run("quorum lost", func(t *testing.T) {
		last := c.Members[2]
		c.Members[0].Kill()
		c.Members[1].Kill()
		_, err := NewClient(t, last.Addr()).Put(within(t, 300*time.Millisecond), "k", "2")
		require.Error(t, err)
		c.Members[0].Start()
		c.WaitReady()
		c.Members[1].Restart()
	})

	t.Run("all restarted", func(t *testing.T) {
		for _, m := range c.Members {
			m.Kill()
		}
		for _, m := range c.Members {
			m.Start()
		}
		c.WaitReady()
		resp, err := NewClient(t, c.Endpoints()...).Get(within(t, soon), "k")
		require.NoError(t, err)
		require.Len(t, resp.Kvs, 1)
	})
}

// TestClusterIsReadyWithAuthentication restarts a member that refuses every
// read without a user.
func TestClusterIsReadyWithAuthentication(t *testing.T) {
	NoLeaks(t)
	c := StartCluster(t, ClusterConfig{AuthTokenTTL: 5})
	client := NewClient(t, c.Endpoints()...)
	ctx := within(t, soon)
	_, err := client.RoleAdd(ctx, "root")
	require.NoError(t, err)
	_, err = client.UserAdd(ctx, "root", "secret")
	require.NoError(t, err)
	_, err = client.UserGrantRole(ctx, "root", "root")
	require.NoError(t, err)
	_, err = client.AuthEnable(ctx)
	require.NoError(t, err)

	c.Members[0].Kill()
	c.Members[0].Restart()
	require.Same(t, c.Members[0], c.Leader())
	root := NewClientWith(t, clientv3.Config{Endpoints: c.Endpoints(), Username: "root", Password: "secret"})
	_, err = root.Put(within(t, soon), "k", "v")
	require.NoError(t, err)
}
