package harness

import clientv3 "go.etcd.io/etcd/client/v3"

// Op is the kind of a request, named after the method that makes it.
type Op string

// The requests that [LossyKV] and [LossyLease] interfere with.
const (
	OpGet           Op = "Get"
	OpPut           Op = "Put"
	OpDelete        Op = "Delete"
	OpCompact       Op = "Compact"
	OpDo            Op = "Do"
	OpTxn           Op = "Txn"
	OpGrant         Op = "Grant"
	OpRevoke        Op = "Revoke"
	OpTimeToLive    Op = "TimeToLive"
	OpLeases        Op = "Leases"
	OpKeepAliveOnce Op = "KeepAliveOnce"
)

// Call is one request on its way to etcd, as a [Hook] sees it.
type Call struct {
	Op Op
	// N counts the calls of that Op from 1, since the hook was set.
	N int
	// Key is that of a Get, Put or Delete.
	Key string
	// Lease is that of a Revoke, TimeToLive or KeepAliveOnce.
	Lease clientv3.LeaseID
	// If, Then and Else are what a Txn was given.
	If         []clientv3.Cmp
	Then, Else []clientv3.Op
}

// Puts reports whether a Txn would put a key in its Then branch: an acquiring
// one does, a release does not.
func (c Call) Puts() bool {
	for _, op := range c.Then {
		if op.IsPut() {
			return true
		}
	}
	return false
}

// Deletes reports whether a Txn would delete a key in its Then branch.
func (c Call) Deletes() bool {
	for _, op := range c.Then {
		if op.IsDelete() {
			return true
		}
	}
	return false
}

// Hook decides the fate of each call. It may be called from several goroutines
// at once, and must not call the client it is installed in.
type Hook func(Call) Fate

// Nth is the hook that gives one call its fate, the nth of that Op, and lets
// all others pass.
func Nth(op Op, n int, fate Fate) Hook {
	return func(c Call) Fate {
		if c.Op == op && c.N == n {
			return fate
		}
		return Pass()
	}
}
