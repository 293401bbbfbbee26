package main

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/fencelock/fencelock"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// instantEtcd answers at once, in this process, what a Locker without rivals asks
// for, so that what is left is the library's own part. It is used by one benchmark
// at a time.
type instantEtcd struct {
	clientv3.KV
	clientv3.Lease
	txn *instantTxn
}

func (e *instantEtcd) Grant(_ context.Context, ttl int64) (*clientv3.LeaseGrantResponse, error) {
	return &clientv3.LeaseGrantResponse{ID: 1, TTL: ttl}, nil
}

func (e *instantEtcd) KeepAliveOnce(_ context.Context, id clientv3.LeaseID) (*clientv3.LeaseKeepAliveResponse, error) {
	return &clientv3.LeaseKeepAliveResponse{ID: id, TTL: 60}, nil
}

func (e *instantEtcd) Revoke(context.Context, clientv3.LeaseID) (*clientv3.LeaseRevokeResponse, error) {
	return &clientv3.LeaseRevokeResponse{}, nil
}

func (e *instantEtcd) Txn(context.Context) clientv3.Txn { return e.txn }

// noWatches is a watcher that never confirms: what is measured here needs none.
type noWatches struct{ clientv3.Watcher }

func (noWatches) Watch(context.Context, string, ...clientv3.OpOption) clientv3.WatchChan { return nil }

// instantTxn serves one Txn at a time, with answers that are built once: neither its
// time nor its allocations are the library's.
type instantTxn struct {
	put      bool
	revision int64
	key      mvccpb.KeyValue
	joined   clientv3.TxnResponse
	left     clientv3.TxnResponse
}

func newInstantTxn() (t *instantTxn) {
	t = &instantTxn{}
	t.key.Lease = 1
	t.joined.Header, t.joined.Succeeded = &pb.ResponseHeader{}, true
	t.joined.Responses = []*pb.ResponseOp{
		{Response: &pb.ResponseOp_ResponsePut{ResponsePut: &pb.PutResponse{}}},
		{Response: &pb.ResponseOp_ResponseRange{ResponseRange: &pb.RangeResponse{Kvs: []*mvccpb.KeyValue{&t.key}}}},
	}
	t.left.Header, t.left.Succeeded = &pb.ResponseHeader{}, true
	t.left.Responses = []*pb.ResponseOp{
		{Response: &pb.ResponseOp_ResponseDeleteRange{ResponseDeleteRange: &pb.DeleteRangeResponse{Deleted: 1}}},
	}
	return t
}

func (t *instantTxn) If(...clientv3.Cmp) clientv3.Txn  { return t }
func (t *instantTxn) Else(...clientv3.Op) clientv3.Txn { return t }
func (t *instantTxn) Then(ops ...clientv3.Op) clientv3.Txn {
	if t.put = ops[0].IsPut(); t.put {
		t.key.Key = ops[0].KeyBytes()
	}
	return t
}

func (t *instantTxn) Commit() (*clientv3.TxnResponse, error) {
	if !t.put {
		return &t.left, nil
	}
	t.revision++
	t.key.CreateRevision = t.revision
	return &t.joined, nil
}

// newInProcess returns a Locker on an etcd that answers at once.
func newInProcess() (*fencelock.Locker, error) {
	client := clientv3.NewCtxClient(context.Background())
	etcd := &instantEtcd{txn: newInstantTxn()}
	client.KV, client.Lease, client.Watcher = etcd, etcd, noWatches{}
	return fencelock.New(client, fencelock.WithTTL(leaseTTL))
}

// doInProcess is the body of the benchmark of Do. A context of its own, for the
// benchmark's needs a test that runs.
func doInProcess(b *testing.B, locker *fencelock.Locker) {
	work := func(_ context.Context, token fencelock.Token) error {
		_ = token.Revision()
		return nil
	}
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		if err := locker.Do(ctx, "name", work); err != nil {
			b.Fatal(err)
		}
	}
}

// askHeld is the body of the benchmark of a held context's Err.
func askHeld(b *testing.B, ctx context.Context) {
	b.ReportAllocs()
	for b.Loop() {
		if err := ctx.Err(); err != nil {
			b.Fatal(err)
		}
	}
}

// inProcess reports what the library itself costs, without etcd: the same that
// go test -bench measures, so that all figures stand in one output.
func inProcess(ctx context.Context, out *figures) error {
	locker, err := newInProcess()
	if err != nil {
		return err
	}
	do := testing.Benchmark(func(b *testing.B) { doInProcess(b, locker) })
	if err := locker.Close(); err != nil {
		return fmt.Errorf("bench: close in this process: %w", err)
	}
	// Another Locker: nothing that looks after a held lock runs beside Do.
	if locker, err = newInProcess(); err != nil {
		return err
	}
	lock, err := locker.Acquire(ctx, "held")
	if err != nil {
		return fmt.Errorf("bench: acquire in this process: %w", err)
	}
	asked := testing.Benchmark(func(b *testing.B) { askHeld(b, lock.Context()) })
	if err := errors.Join(lock.Release(ctx), locker.Close()); err != nil {
		return fmt.Errorf("bench: release in this process: %w", err)
	}
	if do.N == 0 || asked.N == 0 { // what Benchmark leaves of one that failed
		return errors.New("bench: a benchmark of the library's own part failed")
	}
	out.add("do_overhead_us", float64(do.T.Nanoseconds())/float64(do.N)/1000, "us")
	out.add("do_overhead_allocs", float64(do.MemAllocs)/float64(do.N), "allocations")
	out.add("held_err_ns", float64(asked.T.Nanoseconds())/float64(asked.N), "ns")
	out.add("held_err_allocs", float64(asked.MemAllocs)/float64(asked.N), "allocations")
	return nil
}
