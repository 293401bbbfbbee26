package fencelock

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// The words in which the timing tests are written: which requests, what becomes
// of them, when they were sent, and calls that run meanwhile.

// match picks requests by what they are for.
type match func(kind string, req any) bool

// Txns that put a key into a queue, that delete one, and that look whether held
// keys are there.
var (
	joins   match = txnThat(func(t *pb.TxnRequest) bool { return t.Success[0].GetRequestPut() != nil })
	deletes match = txnThat(func(t *pb.TxnRequest) bool { return t.Success[0].GetRequestDeleteRange() != nil })
	checks  match = func(_ string, req any) bool {
		t, ok := req.(*pb.TxnRequest)
		return ok && len(t.Success) == 0
	}
)

func txnThat(is func(t *pb.TxnRequest) bool) match {
	return func(_ string, req any) bool {
		t, ok := req.(*pb.TxnRequest)
		return ok && len(t.Success) > 0 && is(t)
	}
}

// events are the responses of watches that carry some.
var events match = func(_ string, req any) bool {
	resp, ok := req.(clientv3.WatchResponse)
	return ok && len(resp.Events) > 0
}

func ofKind(kind string) match { return func(k string, _ any) bool { return k == kind } }

// all makes f the fate of the requests that m picks; first, of the first n of
// them; fates, the i-th fault that of the i-th.
func (m match) all(f fault) func(string, any) fault {
	return func(kind string, req any) fault {
		if m(kind, req) {
			return f
		}
		return fault{}
	}
}

func (m match) first(n int, f fault) func(string, any) fault {
	return m.fates(slices.Repeat([]fault{f}, n)...)
}

func (m match) fates(faults ...fault) func(string, any) fault {
	var seen atomic.Int64
	return func(kind string, req any) fault {
		if !m(kind, req) {
			return fault{}
		}
		i := int(seen.Add(1)) - 1
		if i >= len(faults) {
			return fault{}
		}
		return faults[i]
	}
}

// both is the fate that either decides, the first one before the second.
func both(first, second func(string, any) fault) func(string, any) fault {
	return func(kind string, req any) fault {
		if f := first(kind, req); f != (fault{}) {
			return f
		}
		return second(kind, req)
	}
}

// of returns the requests of the link that m picks, in the order of sending.
func (m match) of(l *fakeLink) (out []fakeRequest) {
	for _, r := range l.requests() {
		if m(r.kind, r.req) {
			out = append(out, r)
		}
	}
	return out
}

// sentAt is when requests were sent, from start on.
func sentAt(start time.Time, reqs []fakeRequest) []time.Duration {
	out := make([]time.Duration, 0, len(reqs))
	for _, r := range reqs {
		out = append(out, r.sent.Sub(start))
	}
	return out
}

// every is d, 2d, … nd.
func every(d time.Duration, n int) []time.Duration {
	out := make([]time.Duration, n)
	for i := range out {
		out[i] = time.Duration(i+1) * d
	}
	return out
}

func mustAcquire(t *testing.T, l *Locker, name string, opts ...LockOption) *Lock {
	t.Helper()
	lock, err := l.Acquire(t.Context(), name, opts...)
	require.NoError(t, err)
	return lock
}

// running is a call in the background.
type running struct {
	started time.Time
	done    chan struct{}
	lock    *Lock // of a call that acquires
	err     error
	took    time.Duration
}

// background runs f; what it stores in its argument is there when it is done.
func background(f func(r *running)) *running {
	r := &running{started: time.Now(), done: make(chan struct{})}
	go func() {
		defer close(r.done)
		f(r)
		r.took = time.Since(r.started)
	}()
	return r
}

func acquireLater(ctx context.Context, l *Locker, name string, opts ...LockOption) *running {
	return background(func(r *running) { r.lock, r.err = l.Acquire(ctx, name, opts...) })
}

// isDone reports whether the call has returned, once everything that can happen
// at this moment has happened.
func (r *running) isDone() bool {
	synctest.Wait()
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// wait waits for the call. The bound is no figure of anything: without it a call
// that never returns would spin the bubble's time for ever.
func (r *running) wait(t *testing.T) *running {
	t.Helper()
	awaitIn(t, r.done)
	return r
}

func awaitIn(t *testing.T, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(24 * time.Hour):
		require.FailNow(t, "nothing happened within a day")
	}
}

// granted waits for the lock.
func (r *running) granted(t *testing.T) *Lock {
	t.Helper()
	require.NoError(t, r.wait(t).err)
	return r.lock
}

// delete and revoke are what an operator does, over another client.
func (e *fakeEtcd) deleteKey(t *testing.T, key string) {
	t.Helper()
	resp, err := e.dial(t).client.Delete(t.Context(), key)
	require.NoError(t, err)
	require.EqualValues(t, 1, resp.Deleted, key)
}

func (e *fakeEtcd) revokeLease(t *testing.T, id clientv3.LeaseID) {
	t.Helper()
	_, err := e.dial(t).client.Revoke(t.Context(), id)
	require.NoError(t, err)
}
