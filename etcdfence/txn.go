package etcdfence

import (
	"context"
	"fmt"
	"time"

	"github.com/fencelock/fencelock"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Txn is a transaction of etcd that is applied only if its token is not stale. It is
// a [clientv3.Txn], so code that fills one in can be given it. Begun by [Fence.Txn];
// for one goroutine at a time.
type Txn struct {
	fence *Fence
	ctx   context.Context
	token fencelock.Token
	cmps  []clientv3.Cmp
	then  []clientv3.Op
	els   []clientv3.Op
}

var _ clientv3.Txn = (*Txn)(nil)

// Txn begins a transaction with that token. Nothing is checked or sent before
// [Txn.Commit].
func (f *Fence) Txn(ctx context.Context, token fencelock.Token) *Txn {
	return &Txn{fence: f, ctx: ctx, token: token}
}

// If adds compares, which are all the caller's own: the token is compared without
// them. They see etcd as it is before the transaction, its mark too. If, Then and
// Else can be called in any order, and more than once.
func (t *Txn) If(cmps ...clientv3.Cmp) clientv3.Txn {
	t.cmps = append(t.cmps, cmps...)
	return t
}

// Then adds operations that are applied if the token passes and all compares hold,
// or there are none.
func (t *Txn) Then(ops ...clientv3.Op) clientv3.Txn {
	t.then = append(t.then, ops...)
	return t
}

// Else adds operations that are applied if the token passes and a compare fails.
func (t *Txn) Else(ops ...clientv3.Op) clientv3.Txn {
	t.els = append(t.els, ops...)
	return t
}

// Commit checks the token, makes it the mark and applies Then or Else, in one
// request and one transaction of etcd. The response is as if the transaction were
// sent without a fence: Succeeded says what the caller's own compares came to, and
// if they failed that is no error: Else is applied then, and the mark raised.
//
// The request is sent once. Commit sends another at each call. It returns:
//
//   - nil: the token passed; Then or Else, and the mark, are applied;
//   - [fencelock.ErrNoToken], [fencelock.ErrScope]: the token is zero, or not of
//     the lock of [WithScope]; [ErrTooManyOps], [ErrMarkOverlap]; ctx's error and
//     cause if it had ended; [fencelock.ErrInvalidOption] for a nil ctx or the zero
//     [clientv3.Op]: no request was sent;
//   - a [*fencelock.StaleError]: the token was refused; nothing was applied;
//   - [ErrDamagedMark]: there is a mark that cannot be read; nothing was applied;
//   - [ErrUnknownOutcome]: there was no clear answer, or ctx ended before it came;
//   - what etcd said, where that is a refusal, as of a permission, of a key that is
//     put twice or of a revision that is compacted: nothing was applied.
func (t *Txn) Commit() (*clientv3.TxnResponse, error) {
	f := t.fence
	if t.ctx == nil {
		return nil, errNilContext()
	}
	if err := f.admit(t.token); err != nil {
		f.rejected(t.token, err)
		return nil, err
	}
	if err := f.checkOps(t.cmps, t.then, t.els); err != nil {
		return nil, err
	}
	// Asked here, because the client's error for an ended context does not say
	// whether anything was sent.
	if err := ended(t.ctx); err != nil {
		return nil, fmt.Errorf("etcdfence: nothing was applied: the context ended before the request: %w", err)
	}
	unreadable, get, check := f.guarded(t.token, clientv3.OpTxn(t.cmps, t.then, t.els))
	top, err := f.kv.Txn(dateless{t.ctx}).If(unreadable).Then(get).Else(check).Commit()
	if err != nil {
		return nil, f.failure(t.ctx, err)
	}
	applied, mark, err := outcome(top)
	if applied != nil || err != nil {
		return applied, err
	}
	highest, err := f.readMark(t.token.Name(), mark)
	if err != nil {
		return nil, err
	}
	err = &fencelock.StaleError{Scope: t.token.Name(), Presented: t.token, Highest: highest}
	f.rejected(t.token, err)
	return nil, err
}

// dateless is a context that ends when it ends and does not tell when. A deadline
// travels with the request, and passes at the server a moment before it passes here.
// To the answer "deadline exceeded" under a living context, as to no other of etcd's,
// the client sends a transaction again, though it can have been applied. The second
// copy would pass, for the mark is its own, and compare what the first one wrote: the
// caller would be told that the compares failed. (What is left is a proxy that gives
// that answer, or "canceled", of its own accord.)
type dateless struct{ context.Context }

func (dateless) Deadline() (time.Time, bool) { return time.Time{}, false }
