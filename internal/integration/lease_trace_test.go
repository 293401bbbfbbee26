package integration

import (
	"context"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// leaseTrace is a client's [clientv3.Lease] that notes when each grant and
// renewal was sent and answered. It is what a Locker's deadlines are checked
// against: the Locker's own words would prove nothing.
type leaseTrace struct {
	clientv3.Lease

	mu      sync.Mutex
	answers []leaseAnswer
}

// leaseAnswer is an answered grant or renewal.
type leaseAnswer struct {
	sent, answered time.Time
	ttl            time.Duration
}

func (l *leaseTrace) Grant(ctx context.Context, ttl int64) (*clientv3.LeaseGrantResponse, error) {
	sent := time.Now()
	resp, err := l.Lease.Grant(ctx, ttl)
	if err == nil {
		l.note(sent, resp.TTL)
	}
	return resp, err
}

func (l *leaseTrace) KeepAliveOnce(ctx context.Context, id clientv3.LeaseID) (*clientv3.LeaseKeepAliveResponse, error) {
	sent := time.Now()
	resp, err := l.Lease.KeepAliveOnce(ctx, id)
	if err == nil {
		l.note(sent, resp.TTL)
	}
	return resp, err
}

func (l *leaseTrace) note(sent time.Time, ttl int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.answers = append(l.answers, leaseAnswer{sent, time.Now(), time.Duration(ttl) * time.Second})
}

// lastConfirmed returns the latest sent of the grants and renewals that were
// answered up to then.
func (l *leaseTrace) lastConfirmed(then time.Time) (last leaseAnswer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range l.answers {
		if !a.answered.After(then) && a.sent.After(last.sent) {
			last = a
		}
	}
	return last
}
