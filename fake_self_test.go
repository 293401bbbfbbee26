package fencelock

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The fake is trusted only for what is shown here.

// inBubble runs f with a fake etcd and one client, in fake time.
func inBubble(t *testing.T, f func(t *testing.T, e *fakeEtcd, l *fakeLink)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		bubbleClock(t)
		e := newFakeEtcd(t)
		f(t, e, e.dial(t))
	})
}

// only makes f the fate of one kind of request.
func only(kind string, f fault) func(string, any) fault {
	return func(k string, _ any) fault {
		if k == kind {
			return f
		}
		return fault{}
	}
}

func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func mustGrant(t *testing.T, l *fakeLink, ttl int64) clientv3.LeaseID {
	t.Helper()
	resp, err := l.client.Grant(t.Context(), ttl)
	require.NoError(t, err)
	return resp.ID
}

func mustPut(t *testing.T, l *fakeLink, key string, opts ...clientv3.OpOption) int64 {
	t.Helper()
	resp, err := l.client.Put(t.Context(), key, "v", opts...)
	require.NoError(t, err)
	return resp.Header.Revision
}

func TestFakeTxnTakesAnEmptyQueueOnly(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *fakeEtcd, l *fakeLink) {
		take := func(key string) *clientv3.TxnResponse {
			resp, err := l.client.Txn(t.Context()).
				If(clientv3.Compare(clientv3.CreateRevision("q/").WithPrefix(), "=", 0)).
				Then(clientv3.OpPut(key, "v")).
				Else(clientv3.OpGet("q/", clientv3.WithFirstCreate()...)).
				Commit()
			require.NoError(t, err)
			return resp
		}
		first := take("q/b")
		require.True(t, first.Succeeded)
		mustPut(t, l, "q/a")

		second := take("q/c")
		require.False(t, second.Succeeded)
		oldest := second.Responses[0].GetResponseRange().Kvs
		require.Len(t, oldest, 1)
		assert.Equal(t, "q/b", string(oldest[0].Key))
		assert.Equal(t, first.Header.Revision, oldest[0].CreateRevision)
	})
}

func TestFakeReadsAnOldRevision(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *fakeEtcd, l *fakeLink) {
		rev := mustPut(t, l, "a")
		_, err := l.client.Delete(t.Context(), "a")
		require.NoError(t, err)

		resp, err := l.client.Get(t.Context(), "a", clientv3.WithRev(rev))
		require.NoError(t, err)
		assert.Len(t, resp.Kvs, 1)

		_, err = l.client.Compact(t.Context(), resp.Header.Revision)
		require.NoError(t, err)
		_, err = l.client.Get(t.Context(), "a", clientv3.WithRev(rev))
		assert.ErrorIs(t, err, rpctypes.ErrCompacted)
	})
}

func TestFakeLeaseExpires(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		granted, err := l.client.Grant(t.Context(), 1)
		require.NoError(t, err)
		require.EqualValues(t, 2, granted.TTL, "etcd raises it to its least")
		start, lease := time.Now(), clientv3.WithLease(granted.ID)
		mustPut(t, l, "k/a", lease)
		mustPut(t, l, "k/b", lease)

		time.Sleep(1900 * time.Millisecond)
		_, err = l.client.KeepAliveOnce(t.Context(), granted.ID)
		require.NoError(t, err)
		assert.Equal(t, time.Now().Add(2*time.Second), e.expiries()[granted.ID])

		// Expired at 3.9 s and seen at 4 s; in between it takes keys, but no
		// renewal: the one asked for is answered when the lease is gone.
		time.Sleep(2050 * time.Millisecond)
		mustPut(t, l, "k/c", lease)
		_, err = l.client.KeepAliveOnce(t.Context(), granted.ID)
		require.ErrorIs(t, err, rpctypes.ErrLeaseNotFound)
		assert.Equal(t, 4*time.Second, time.Since(start))

		assert.Empty(t, e.keys("k/"))
		changes := e.changes("k/")
		require.Len(t, changes, 6)
		assert.Equal(t, changes[3].ev.Kv.ModRevision, changes[5].ev.Kv.ModRevision, "all in one revision")
		assert.Equal(t, start.Add(4*time.Second), changes[5].at)

		_, err = l.client.Txn(t.Context()).Then(clientv3.OpPut("free", ""), clientv3.OpPut("k/d", "", lease)).Commit()
		assert.ErrorIs(t, err, rpctypes.ErrLeaseNotFound)
		assert.Empty(t, e.keys("free"), "the Txn fails whole")
	})
}

func TestFakeElectionRestartsLeases(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		id := mustGrant(t, l, 5)
		time.Sleep(4 * time.Second)
		e.elect(time.Second)
		time.Sleep(5 * time.Second)
		resp, err := l.client.TimeToLive(t.Context(), id)
		require.NoError(t, err)
		assert.EqualValues(t, 1, resp.TTL)
		leases, err := l.client.Leases(t.Context())
		require.NoError(t, err)
		assert.Len(t, leases.Leases, 1)
	})
}

func TestFakeRequestOutlivesItsCaller(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		l.intercept(only(fakePut, fault{requestDelay: 3 * time.Second}))
		_, err := l.client.Put(within(t, time.Second), "late", "v")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Empty(t, e.keys("late"))

		time.Sleep(2 * time.Second)
		synctest.Wait()
		assert.Len(t, e.keys("late"), 1)
		r := l.requests(fakePut)[0]
		assert.Equal(t, "late", string(r.req.(*pb.PutRequest).Key))
		assert.Equal(t, 3*time.Second, r.arrived.Sub(r.sent))
		assert.Zero(t, r.answered)
	})
}

func TestFakeFaults(t *testing.T) {
	for name, c := range map[string]struct {
		fault fault
		done  bool
		took  time.Duration
		is    error
	}{
		"no fault":     {done: true},
		"delay":        {fault: fault{requestDelay: time.Second, replyDelay: 2 * time.Second}, done: true, took: 3 * time.Second},
		"request lost": {fault: fault{loseRequest: true}, took: 5 * time.Second, is: context.DeadlineExceeded},
		"reply lost":   {fault: fault{loseReply: true}, done: true, took: 5 * time.Second, is: context.DeadlineExceeded},
		"refused":      {fault: fault{err: rpctypes.ErrGRPCNoSpace}, is: rpctypes.ErrNoSpace},
		"error after":  {fault: fault{errAfter: rpctypes.ErrGRPCTimeout}, done: true, took: fakeRefusal, is: rpctypes.ErrTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
				l.intercept(only(fakePut, c.fault))
				start := time.Now()
				_, err := l.client.Put(within(t, 5*time.Second), "k", "v")
				assert.ErrorIs(t, err, c.is)
				assert.Equal(t, c.took, time.Since(start))
				assert.Equal(t, c.done, len(e.keys("k")) == 1)
			})
		})
	}
}

// etcd's client repeats a refused KeepAliveOnce without a pause. Time has to go
// on meanwhile.
func TestFakeRefusedKeepAliveEnds(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *fakeEtcd, l *fakeLink) {
		id := mustGrant(t, l, 60)
		l.intercept(only(fakeKeepAlive, fault{err: status.Error(codes.Unavailable, "connection refused")}))
		_, err := l.client.KeepAliveOnce(within(t, 20*time.Millisecond), id)
		require.Error(t, err)
		assert.InDelta(t, 20, len(l.requests(fakeKeepAlive)), 1)
	})
}

func TestFakeClosedClient(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *fakeEtcd, l *fakeLink) {
		watch := l.client.Watch(t.Context(), "k")
		_ = l.client.Close()
		_, open := <-watch
		assert.False(t, open)
		_, err := l.client.Get(t.Context(), "k")
		assert.ErrorIs(t, err, errFakeClosing)
	})
}

func watchEvents(t *testing.T, c clientv3.WatchChan) clientv3.WatchResponse {
	t.Helper()
	select {
	case resp := <-c:
		return resp
	case <-time.After(time.Hour):
		require.FailNow(t, "the watch is silent")
		return clientv3.WatchResponse{}
	}
}

func TestFakeWatch(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		before := mustPut(t, l, "q/old")
		ctx, cancel := context.WithCancel(t.Context())
		queue := l.client.Watch(ctx, "q/", clientv3.WithPrefix(), clientv3.WithCreatedNotify())
		created := watchEvents(t, queue)
		require.True(t, created.Created)
		assert.Equal(t, before, created.Header.Revision)

		id := mustGrant(t, l, 60)
		for _, key := range []string{"q/a", "q/b", "r/c"} {
			mustPut(t, l, key, clientv3.WithLease(id))
		}
		assert.Equal(t, "q/a", string(watchEvents(t, queue).Events[0].Kv.Key))
		assert.Equal(t, "q/b", string(watchEvents(t, queue).Events[0].Kv.Key))

		_, err := l.client.Revoke(t.Context(), id)
		require.NoError(t, err)
		gone := watchEvents(t, queue)
		assert.Len(t, gone.Events, 2, "a revision comes whole")
		assert.Equal(t, clientv3.EventTypeDelete, gone.Events[1].Type)

		cancel()
		_, open := <-queue
		assert.False(t, open)
		assert.Zero(t, l.watches())
	})
}

func TestFakeWatchStandsWhenAnswered(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *fakeEtcd, l *fakeLink) {
		l.intercept(only(fakeWatchReq, fault{replyDelay: time.Second}))
		start := time.Now()
		l.client.Watch(t.Context(), "k")
		assert.Equal(t, time.Second, time.Since(start))

		l.intercept(only(fakeWatchReq, fault{loseRequest: true}))
		_, open := <-l.client.Watch(within(t, time.Second), "k")
		assert.False(t, open)

		l.intercept(only(fakeWatchReq, fault{err: rpctypes.ErrGRPCPermissionDenied}))
		refused := <-l.client.Watch(t.Context(), "k")
		assert.ErrorIs(t, refused.Err(), rpctypes.ErrPermissionDenied)
	})
}

func TestFakeWatchFromThePast(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *fakeEtcd, l *fakeLink) {
		mustPut(t, l, "k")
		rev := mustPut(t, l, "k")
		start := time.Now()
		watch := l.client.Watch(t.Context(), "k", clientv3.WithRev(rev))
		assert.Equal(t, rev, watchEvents(t, watch).Header.Revision)
		assert.Equal(t, fakeSyncTick, time.Since(start))

		_, err := l.client.Compact(t.Context(), rev)
		require.NoError(t, err)
		old := watchEvents(t, l.client.Watch(t.Context(), "k", clientv3.WithRev(rev)))
		assert.ErrorIs(t, old.Err(), rpctypes.ErrCompacted)
	})
}

func TestFakeWatchFaults(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *fakeEtcd, l *fakeLink) {
		other := l.etcd.dial(t)
		watch := l.client.Watch(t.Context(), "k")

		l.intercept(only(fakeEvent, fault{replyDelay: 2 * time.Second}))
		start := time.Now()
		mustPut(t, other, "k")
		watchEvents(t, watch)
		assert.Equal(t, 2*time.Second, time.Since(start))
		l.intercept(nil)

		l.breakWatches(rpctypes.ErrNoLeader)
		broken := watchEvents(t, watch)
		assert.ErrorIs(t, broken.Err(), rpctypes.ErrNoLeader)
		_, open := <-watch
		assert.False(t, open)

		watch = l.client.Watch(t.Context(), "k")
		l.breakWatches(nil)
		_, open = <-watch
		assert.False(t, open)

		ctx, cancel := context.WithCancel(t.Context())
		watch = l.client.Watch(ctx, "k")
		l.deafen()
		mustPut(t, other, "k")
		synctest.Wait()
		select {
		case <-watch:
			assert.Fail(t, "a deaf watch spoke")
		default:
		}
		cancel()
		_, open = <-watch
		assert.False(t, open)
	})
}

func TestFakeCutLink(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		other := e.dial(t)
		watch := l.client.Watch(t.Context(), "k")
		l.cut()
		_, err := l.client.Put(within(t, time.Second), "k", "lost")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		rev := mustPut(t, other, "k")
		time.Sleep(time.Second)
		require.Zero(t, len(watch))

		l.heal()
		assert.Equal(t, rev, watchEvents(t, watch).Header.Revision, "what was missed comes, and the lost request never does")
		mustPut(t, l, "k")
		watchEvents(t, watch)

		l.cut()
		rev = mustPut(t, other, "k")
		_, err = other.client.Compact(t.Context(), rev)
		require.NoError(t, err)
		time.Sleep(time.Second)
		l.heal()
		compacted := watchEvents(t, watch)
		assert.ErrorIs(t, compacted.Err(), rpctypes.ErrCompacted)
	})
}

// etcd's own recipe on the fake: its keep-alive stream, its waits.
func TestFakeCarriesASession(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		other := e.dial(t)
		lock := func(l *fakeLink) (*concurrency.Session, *concurrency.Mutex) {
			s, err := concurrency.NewSession(l.client, concurrency.WithTTL(3), concurrency.WithContext(t.Context()))
			require.NoError(t, err)
			m := concurrency.NewMutex(s, "q")
			require.NoError(t, m.Lock(t.Context()))
			return s, m
		}
		first, _ := lock(l)
		time.Sleep(time.Minute) // renewed meanwhile
		require.Len(t, e.keys("q/"), 1)

		start := time.Now()
		l.cut()
		second, m := lock(other)
		assert.LessOrEqual(t, time.Since(start), 4*time.Second)
		require.NoError(t, m.Unlock(t.Context()))
		require.NoError(t, second.Close())
		<-first.Done()
		assert.Empty(t, e.expiries())
	})
}
