package harness

import (
	"context"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// LossyLease is the real client's [clientv3.Lease] behind a network that loses,
// holds and counts what its hook says. The stream of KeepAlive passes
// uncounted.
//
//	lease := harness.NewLossyLease(t, client.Lease)
//	client.Lease = lease
type LossyLease struct {
	clientv3.Lease
	*Wire
}

// NewLossyLease wraps lease. At the end of the test it drops what is held, and
// waits for what it sent.
func NewLossyLease(t testing.TB, lease clientv3.Lease) *LossyLease {
	return &LossyLease{Lease: lease, Wire: newWire(t)}
}

// Grant implements [clientv3.Lease].
func (l *LossyLease) Grant(ctx context.Context, ttl int64) (*clientv3.LeaseGrantResponse, error) {
	return do(ctx, l.Wire, Call{Op: OpGrant}, func(ctx context.Context) (*clientv3.LeaseGrantResponse, error) {
		return l.Lease.Grant(ctx, ttl)
	})
}

// Revoke implements [clientv3.Lease].
func (l *LossyLease) Revoke(ctx context.Context, id clientv3.LeaseID) (*clientv3.LeaseRevokeResponse, error) {
	return do(ctx, l.Wire, Call{Op: OpRevoke, Lease: id}, func(ctx context.Context) (*clientv3.LeaseRevokeResponse, error) {
		return l.Lease.Revoke(ctx, id)
	})
}

// TimeToLive implements [clientv3.Lease].
func (l *LossyLease) TimeToLive(ctx context.Context, id clientv3.LeaseID, opts ...clientv3.LeaseOption) (*clientv3.LeaseTimeToLiveResponse, error) {
	return do(ctx, l.Wire, Call{Op: OpTimeToLive, Lease: id}, func(ctx context.Context) (*clientv3.LeaseTimeToLiveResponse, error) {
		return l.Lease.TimeToLive(ctx, id, opts...)
	})
}

// Leases implements [clientv3.Lease].
func (l *LossyLease) Leases(ctx context.Context) (*clientv3.LeaseLeasesResponse, error) {
	return do(ctx, l.Wire, Call{Op: OpLeases}, l.Lease.Leases)
}

// KeepAliveOnce implements [clientv3.Lease].
func (l *LossyLease) KeepAliveOnce(ctx context.Context, id clientv3.LeaseID) (*clientv3.LeaseKeepAliveResponse, error) {
	return do(ctx, l.Wire, Call{Op: OpKeepAliveOnce, Lease: id}, func(ctx context.Context) (*clientv3.LeaseKeepAliveResponse, error) {
		return l.Lease.KeepAliveOnce(ctx, id)
	})
}
