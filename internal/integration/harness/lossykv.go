package harness

import (
	"context"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// LossyKV is the real client's [clientv3.KV] behind a network that loses, holds
// and counts what its hook says. GetStream passes uncounted.
//
//	kv := harness.NewLossyKV(t, client.KV)
//	client.KV = kv
//	kv.SetHook(harness.Nth(harness.OpTxn, 1, harness.LoseReply(nil)))
type LossyKV struct {
	clientv3.KV
	*Wire
}

// NewLossyKV wraps kv. At the end of the test it drops what is held, and waits
// for what it sent.
func NewLossyKV(t testing.TB, kv clientv3.KV) *LossyKV {
	return &LossyKV{KV: kv, Wire: newWire(t)}
}

// Put implements [clientv3.KV].
func (l *LossyKV) Put(ctx context.Context, key, val string, opts ...clientv3.OpOption) (*clientv3.PutResponse, error) {
	return do(ctx, l.Wire, Call{Op: OpPut, Key: key}, func(ctx context.Context) (*clientv3.PutResponse, error) {
		return l.KV.Put(ctx, key, val, opts...)
	})
}

// Get implements [clientv3.KV].
func (l *LossyKV) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	return do(ctx, l.Wire, Call{Op: OpGet, Key: key}, func(ctx context.Context) (*clientv3.GetResponse, error) {
		return l.KV.Get(ctx, key, opts...)
	})
}

// Delete implements [clientv3.KV].
func (l *LossyKV) Delete(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.DeleteResponse, error) {
	return do(ctx, l.Wire, Call{Op: OpDelete, Key: key}, func(ctx context.Context) (*clientv3.DeleteResponse, error) {
		return l.KV.Delete(ctx, key, opts...)
	})
}

// Compact implements [clientv3.KV].
func (l *LossyKV) Compact(ctx context.Context, rev int64, opts ...clientv3.CompactOption) (*clientv3.CompactResponse, error) {
	return do(ctx, l.Wire, Call{Op: OpCompact}, func(ctx context.Context) (*clientv3.CompactResponse, error) {
		return l.KV.Compact(ctx, rev, opts...)
	})
}

// Do implements [clientv3.KV].
func (l *LossyKV) Do(ctx context.Context, op clientv3.Op) (clientv3.OpResponse, error) {
	return do(ctx, l.Wire, Call{Op: OpDo, Key: string(op.KeyBytes())}, func(ctx context.Context) (clientv3.OpResponse, error) {
		return l.KV.Do(ctx, op)
	})
}

// Txn implements [clientv3.KV]. The call is the Commit.
func (l *LossyKV) Txn(ctx context.Context) clientv3.Txn {
	return &lossyTxn{kv: l, ctx: ctx, call: Call{Op: OpTxn}}
}

// lossyTxn collects a transaction, because the real one is bound to its context
// when it is begun, and which context that is to be is known at its Commit.
type lossyTxn struct {
	kv   *LossyKV
	ctx  context.Context
	call Call
}

func (x *lossyTxn) If(cs ...clientv3.Cmp) clientv3.Txn {
	x.call.If = cs
	return x
}

func (x *lossyTxn) Then(ops ...clientv3.Op) clientv3.Txn {
	x.call.Then = ops
	return x
}

func (x *lossyTxn) Else(ops ...clientv3.Op) clientv3.Txn {
	x.call.Else = ops
	return x
}

func (x *lossyTxn) Commit() (*clientv3.TxnResponse, error) {
	return do(x.ctx, x.kv.Wire, x.call, func(ctx context.Context) (*clientv3.TxnResponse, error) {
		txn := x.kv.KV.Txn(ctx)
		if x.call.If != nil {
			txn = txn.If(x.call.If...)
		}
		return txn.Then(x.call.Then...).Else(x.call.Else...).Commit()
	})
}
