package main

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/stretchr/testify/require"
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
	revision int64
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

func (e *instantEtcd) Txn(context.Context) clientv3.Txn { return &instantTxn{etcd: e} }

// noWatches is a watcher that never confirms: what is measured here needs none.
type noWatches struct{ clientv3.Watcher }

func (noWatches) Watch(context.Context, string, ...clientv3.OpOption) clientv3.WatchChan { return nil }

type instantTxn struct {
	etcd *instantEtcd
	then []clientv3.Op
}

func (t *instantTxn) If(...clientv3.Cmp) clientv3.Txn  { return t }
func (t *instantTxn) Else(...clientv3.Op) clientv3.Txn { return t }
func (t *instantTxn) Then(ops ...clientv3.Op) clientv3.Txn {
	t.then = ops
	return t
}

func (t *instantTxn) Commit() (*clientv3.TxnResponse, error) {
	resp := &clientv3.TxnResponse{Header: &pb.ResponseHeader{}, Succeeded: true}
	t.etcd.revision++
	for _, op := range t.then {
		switch {
		case op.IsPut():
			resp.Responses = append(resp.Responses, &pb.ResponseOp{Response: &pb.ResponseOp_ResponsePut{ResponsePut: &pb.PutResponse{}}})
		case op.IsGet():
			kv := &mvccpb.KeyValue{Key: t.then[0].KeyBytes(), CreateRevision: t.etcd.revision, Lease: 1}
			resp.Responses = append(resp.Responses, &pb.ResponseOp{
				Response: &pb.ResponseOp_ResponseRange{ResponseRange: &pb.RangeResponse{Kvs: []*mvccpb.KeyValue{kv}}},
			})
		case op.IsDelete():
			resp.Responses = append(resp.Responses, &pb.ResponseOp{
				Response: &pb.ResponseOp_ResponseDeleteRange{ResponseDeleteRange: &pb.DeleteRangeResponse{Deleted: 1}},
			})
		default:
			return nil, errors.New("the benchmark's etcd has no such operation")
		}
	}
	return resp, nil
}

// inProcess returns a Locker on an etcd that answers at once.
func inProcess(b *testing.B) *fencelock.Locker {
	b.Helper()
	client := clientv3.NewCtxClient(context.Background()) // b's ends before the Locker is closed
	etcd := &instantEtcd{}
	client.KV, client.Lease, client.Watcher = etcd, etcd, noWatches{}
	locker, err := fencelock.New(client, fencelock.WithTTL(time.Minute))
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, locker.Close()) })
	return locker
}

// What Do costs beside etcd: of a cycle of two requests, this is the library.
func BenchmarkDo(b *testing.B) {
	locker := inProcess(b)
	work := func(_ context.Context, token fencelock.Token) error {
		_ = token.Revision()
		return nil
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := locker.Do(b.Context(), "name", work); err != nil {
			b.Fatal(err)
		}
	}
}

// A holder can ask on every iteration of its work: each of these reads the clock.
func BenchmarkHeldContext(b *testing.B) {
	locker := inProcess(b)
	lock, err := locker.Acquire(b.Context(), "name")
	require.NoError(b, err)
	defer func() { require.NoError(b, lock.Release(context.Background())) }()
	ctx := lock.Context()
	nested := context.WithValue(ctx, benchKey{}, 1)
	b.Run("Err", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if ctx.Err() != nil {
				b.Fatal(ctx.Err())
			}
		}
	})
	b.Run("Err of a context with a value", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if nested.Err() != nil {
				b.Fatal(nested.Err())
			}
		}
	})
	b.Run("Done", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			select {
			case <-ctx.Done():
				b.Fatal(ctx.Err())
			default:
			}
		}
	})
	b.Run("Lock.Err", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if lock.Err() != nil {
				b.Fatal(lock.Err())
			}
		}
	})
}

type benchKey struct{}

func BenchmarkToken(b *testing.B) {
	token, err := fencelock.ParseToken("name", "9223372036854775807.694d7624a5d5f04e-0123456789abcdef-1000000")
	require.NoError(b, err)
	b.Run("MarshalText", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := token.MarshalText(); err != nil {
				b.Fatal(err)
			}
		}
	})
	text, err := token.MarshalText()
	require.NoError(b, err)
	b.Run("ParseToken", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := fencelock.ParseToken("name", string(text)); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkFence(b *testing.B) {
	token, err := fencelock.ParseToken("name", "1.holder")
	require.NoError(b, err)
	var fence fencelock.Fence
	effect := func() error { return nil }
	b.Run("Do", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := fence.Do(token, effect); err != nil {
				b.Fatal(err)
			}
		}
	})
}
