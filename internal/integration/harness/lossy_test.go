package harness

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// errLost stands for what a network says, or does not.
var errLost = errors.New("the answer was lost")

func TestLossy(t *testing.T) {
	NoLeaks(t)
	c := StartCluster(t, ClusterConfig{})
	clean := NewClient(t, c.Endpoints()...)

	// lossy returns a client of its own with both wrappers, and a key of its own.
	lossy := func(t *testing.T) (*clientv3.Client, *LossyKV, *LossyLease, string) {
		client := NewClient(t, c.Endpoints()...)
		kv, lease := NewLossyKV(t, client.KV), NewLossyLease(t, client.Lease)
		client.KV, client.Lease = kv, lease
		return client, kv, lease, t.Name()
	}
	create := func(ctx context.Context, client *clientv3.Client, key string) (*clientv3.TxnResponse, error) {
		return client.Txn(ctx).
			If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
			Then(clientv3.OpPut(key, "v")).
			Else(clientv3.OpGet(key)).
			Commit()
	}
	exists := func(t *testing.T, key string) bool {
		t.Helper()
		resp, err := clean.Get(within(t, soon), key)
		require.NoError(t, err)
		return resp.Count == 1
	}

	t.Run("passes and counts", func(t *testing.T) {
		client, kv, lease, key := lossy(t)
		first, err := create(within(t, soon), client, key)
		require.NoError(t, err)
		require.True(t, first.Succeeded)
		second, err := create(within(t, soon), client, key)
		require.NoError(t, err)
		require.False(t, second.Succeeded, "Else was sent too")
		require.EqualValues(t, 1, second.Responses[0].GetResponseRange().Count)
		_, err = client.Txn(within(t, soon)).Then(clientv3.OpDelete(key)).Commit()
		require.NoError(t, err)

		_, err = client.Put(within(t, soon), key, "w")
		require.NoError(t, err)
		_, err = client.Get(within(t, soon), key)
		require.NoError(t, err)
		_, err = client.Do(within(t, soon), clientv3.OpGet(key))
		require.NoError(t, err)
		_, err = client.Delete(within(t, soon), key)
		require.NoError(t, err)
		_, err = client.Compact(within(t, soon), 1<<40)
		require.Error(t, err)

		granted, err := client.Grant(within(t, soon), 5)
		require.NoError(t, err)
		_, err = client.KeepAliveOnce(within(t, soon), granted.ID)
		require.NoError(t, err)
		_, err = client.TimeToLive(within(t, soon), granted.ID)
		require.NoError(t, err)
		_, err = client.Leases(within(t, soon))
		require.NoError(t, err)
		_, err = client.Revoke(within(t, soon), granted.ID)
		require.NoError(t, err)

		for op, n := range map[Op]int{OpTxn: 3, OpPut: 1, OpGet: 1, OpDo: 1, OpDelete: 1, OpCompact: 1} {
			require.Equal(t, n, kv.Calls(op), op)
		}
		require.Equal(t, 3, kv.Answered(OpTxn))
		require.Zero(t, kv.Answered(OpCompact))
		for _, op := range []Op{OpGrant, OpKeepAliveOnce, OpTimeToLive, OpLeases, OpRevoke} {
			require.Equal(t, 1, lease.Calls(op), op)
			require.Equal(t, 1, lease.Answered(op), op)
		}
	})

	t.Run("hook sees the call", func(t *testing.T) {
		client, kv, _, key := lossy(t)
		var calls []Call
		kv.SetHook(func(c Call) Fate {
			calls = append(calls, c)
			return Pass()
		})
		_, err := create(within(t, soon), client, key)
		require.NoError(t, err)
		_, err = client.Txn(within(t, soon)).Then(clientv3.OpDelete(key)).Commit()
		require.NoError(t, err)
		_, err = client.Delete(within(t, soon), key)
		require.NoError(t, err)

		require.Len(t, calls, 3)
		require.Equal(t, []int{1, 2, 1}, []int{calls[0].N, calls[1].N, calls[2].N})
		require.True(t, calls[0].Puts())
		require.False(t, calls[0].Deletes())
		require.Equal(t, key, string(calls[0].If[0].KeyBytes()))
		require.True(t, calls[0].Else[0].IsGet())
		require.False(t, calls[1].Puts())
		require.True(t, calls[1].Deletes())
		require.Equal(t, key, calls[2].Key)

		kv.SetHook(Nth(OpTxn, 1, LoseRequest(errLost)))
		_, err = create(within(t, soon), client, key)
		require.ErrorIs(t, err, errLost, "a new hook counts from 1")
	})

	t.Run("request lost", func(t *testing.T) {
		client, kv, _, key := lossy(t)
		kv.SetHook(Nth(OpTxn, 1, LoseRequest(nil)))
		_, err := create(within(t, 20*time.Millisecond), client, key)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.False(t, exists(t, key))
		_, err = create(within(t, soon), client, key)
		require.NoError(t, err)
	})

	t.Run("reply lost", func(t *testing.T) {
		client, kv, _, key := lossy(t)
		kv.SetHook(Nth(OpTxn, 1, LoseReply(errLost)))
		_, err := create(within(t, soon), client, key)
		require.ErrorIs(t, err, errLost)
		require.True(t, exists(t, key), "it was executed before the caller was told")
		require.Equal(t, 1, kv.Answered(OpTxn))
	})

	t.Run("reply lost in silence", func(t *testing.T) {
		client, kv, _, key := lossy(t)
		kv.SetHook(Nth(OpTxn, 1, LoseReply(nil)))
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		result := make(chan error, 1)
		go func() {
			_, err := create(ctx, client, key)
			result <- err
		}()
		require.Eventually(t, func() bool { return exists(t, key) }, soon, time.Millisecond)
		select {
		case err := <-result:
			t.Fatalf("the call returned %v before its context ended", err)
		case <-time.After(20 * time.Millisecond):
		}
		cancel()
		require.ErrorIs(t, Receive(t, result, soon, "result"), context.Canceled)
	})

	t.Run("request held past its caller", func(t *testing.T) {
		client, kv, _, key := lossy(t)
		held := NewHeld()
		kv.SetHook(Nth(OpTxn, 1, Hold(held)))
		ctx, cancel := context.WithCancel(context.Background())
		result := make(chan error, 1)
		go func() {
			_, err := create(ctx, client, key)
			result <- err
		}()
		require.True(t, Receive(t, held.Arrived(), soon, "held request").Puts())
		cancel()
		require.ErrorIs(t, Receive(t, result, soon, "result"), context.Canceled)
		require.False(t, exists(t, key))

		held.Release()
		held.Release()
		require.NoError(t, Receive(t, held.Answered(), soon, "answer"))
		require.True(t, exists(t, key), "it was sent although nobody waits for it")
	})

	t.Run("request held and answered", func(t *testing.T) {
		client, kv, _, key := lossy(t)
		held := NewHeld()
		kv.SetHook(Nth(OpTxn, 1, Hold(held)))
		result := make(chan error, 1)
		go func() {
			_, err := create(context.Background(), client, key)
			result <- err
		}()
		Receive(t, held.Arrived(), soon, "held request")
		held.Release()
		require.NoError(t, Receive(t, result, soon, "result"))
		require.True(t, exists(t, key))
	})

	t.Run("reply held", func(t *testing.T) {
		client, kv, _, key := lossy(t)
		held := NewHeld()
		kv.SetHook(Nth(OpTxn, 1, HoldReply(held)))
		result := make(chan *clientv3.TxnResponse, 1)
		go func() {
			resp, _ := create(context.Background(), client, key)
			result <- resp
		}()
		require.NoError(t, Receive(t, held.Answered(), soon, "answer"))
		require.True(t, exists(t, key))
		require.Empty(t, result)
		held.Release()
		require.True(t, Receive(t, result, soon, "result").Succeeded)
	})

	t.Run("renewal's reply lost", func(t *testing.T) {
		client, _, lease, _ := lossy(t)
		granted, err := client.Grant(within(t, soon), 1)
		require.NoError(t, err)
		lease.SetHook(func(c Call) Fate {
			if c.Op == OpKeepAliveOnce && c.Lease == granted.ID {
				return LoseReply(errLost)
			}
			return Pass()
		})
		// Renewed at the server for longer than it would live by itself.
		limit := time.Now().Add(2500 * time.Millisecond)
		for time.Now().Before(limit) {
			_, err = client.KeepAliveOnce(within(t, soon), granted.ID)
			require.ErrorIs(t, err, errLost)
			time.Sleep(100 * time.Millisecond)
		}
		left, err := client.TimeToLive(within(t, soon), granted.ID)
		require.NoError(t, err)
		require.GreaterOrEqual(t, left.TTL, int64(0), "the lease lives")
		require.Equal(t, lease.Calls(OpKeepAliveOnce), lease.Answered(OpKeepAliveOnce))
		_, err = client.Revoke(within(t, soon), granted.ID)
		require.NoError(t, err)
	})

	t.Run("held at the end is dropped", func(t *testing.T) {
		key := t.Name()
		t.Run("inner", func(t *testing.T) {
			client, kv, _, _ := lossy(t)
			held := NewHeld()
			kv.SetHook(Nth(OpTxn, 1, Hold(held)))
			_, err := create(within(t, 10*time.Millisecond), client, key)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			Receive(t, held.Arrived(), soon, "held request")
		})
		require.False(t, exists(t, key))
	})
}
