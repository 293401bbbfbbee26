package harness

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
)

func TestChecks(t *testing.T) {
	NoLeaks(t)
	c := StartCluster(t, ClusterConfig{})
	client := NewClient(t, c.Endpoints()...)

	t.Run("nothing left", func(t *testing.T) {
		NothingLeft(t, client, "p/")
		lease, err := client.Grant(within(t, soon), 60)
		require.NoError(t, err)
		_, err = client.Put(within(t, soon), "p/b", "whose", clientv3.WithLease(lease.ID))
		require.NoError(t, err)
		_, err = client.Put(within(t, soon), "p/a", "")
		require.NoError(t, err)
		_, err = client.Put(within(t, soon), "q", "not ours")
		require.NoError(t, err)
		require.Equal(t, []string{"p/b", "p/a"}, Keys(t, client, "p/"))
		require.Equal(t, []clientv3.LeaseID{lease.ID}, Leases(t, client))

		r := &recorder{TB: t}
		failures := r.run(func() { NothingLeftWithin(r, client, "p/", 20*time.Millisecond) })
		require.Len(t, failures, 1)
		require.Contains(t, failures[0], `key "p/b"`)
		require.Contains(t, failures[0], "whose")
		require.Contains(t, failures[0], "of 60 s left")
		require.NotContains(t, failures[0], `"q"`)

		// It waits for what is going.
		go func() {
			_, _ = client.Revoke(within(t, soon), lease.ID)
			_, _ = client.Delete(within(t, soon), "p/a")
		}()
		NothingLeft(t, client, "p/")
	})

	t.Run("deletions", func(t *testing.T) {
		put, err := client.Put(within(t, soon), "d/before", "")
		require.NoError(t, err)
		d := WatchDeletions(t, client, "d/")
		kept, err := client.Put(within(t, soon), "d/kept", "")
		require.NoError(t, err)
		begin := time.Now()
		del, err := client.Delete(within(t, soon), "d/before")
		require.NoError(t, err)

		gone := d.Expect(put.Header.Revision, soon)
		require.Equal(t, Deletion{
			Key: "d/before", CreateRevision: put.Header.Revision, Revision: del.Header.Revision, At: gone.At,
		}, gone)
		require.True(t, gone.At.After(begin))
		require.Equal(t, []Deletion{gone}, d.All())

		r := &recorder{TB: t}
		failures := r.run(func() {
			WatchDeletions(r, client, "d/").Expect(kept.Header.Revision, 20*time.Millisecond)
		})
		require.Len(t, failures, 1)
		require.Contains(t, failures[0], "was not deleted")
	})
}

func TestNoLeaksFindsOne(t *testing.T) {
	stop := make(chan struct{})
	ended := make(chan struct{})
	r := &recorder{TB: t}
	failures := r.run(func() {
		noLeaks(r, 10*time.Millisecond)
		go func() {
			defer close(ended)
			<-stop
		}()
	})
	require.Len(t, failures, 1)
	require.Contains(t, failures[0], "TestNoLeaksFindsOne")
	close(stop)
	<-ended
}

func TestReceive(t *testing.T) {
	c := make(chan int, 1)
	c <- 7
	require.Equal(t, 7, Receive(t, c, soon, "number"))
	r := &recorder{TB: t}
	require.Equal(t, []string{"harness: no number within 1ms"},
		r.run(func() { Receive(r, c, time.Millisecond, "number") }))
	close(c)
	require.Zero(t, Receive(t, c, soon, "number"))
}

// One test can run others as its subtests, some of them in parallel.
func TestParent(t *testing.T) {
	var names []string
	for name, more := "A/b/c", true; more; name, more = parent(name) {
		names = append(names, name)
	}
	require.Equal(t, []string{"A/b/c", "A/b", "A"}, names)
}
