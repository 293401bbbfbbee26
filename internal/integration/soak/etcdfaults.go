package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock/internal/integration/harness"
)

// etcdFaults are the faults of etcd, and what others do there. They belong on
// the goroutine of the test or program, which the harness may end.
var etcdFaults = []fault{
	{"member", (*nemesis).member},
	{"leader", (*nemesis).leader},
	{"revoke", (*nemesis).revoke},
	{"delete", (*nemesis).delete},
	{"compaction", (*nemesis).compaction},
}

// etcdWithin bounds one request of the nemesis.
const etcdWithin = 2 * time.Second

// member kills an etcd server, or has it stand still, for about a lease.
func (n *nemesis) member(ctx context.Context) {
	m := n.cluster.Members[n.random.IntN(len(n.cluster.Members))]
	d := between(n.random, ttl, 2*ttl)
	if n.random.IntN(2) == 0 {
		n.during(ctx, "kill etcd "+m.Name(), d, m.Kill, m.Restart)
		return
	}
	n.during(ctx, "stop etcd "+m.Name(), d, m.Pause, func() {
		// A leader that was stopped finds every lease expired when it goes on. If
		// its clock ticks before it hears that another leads, it does not ask
		// whether it still does (EtcdServer.ensureLeadership of etcd 3.7.3), and has
		// them all revoked, whoever renewed them meanwhile. What that takes is not
		// taken in time from anybody's clock.
		resumed := n.ledger.clock()
		n.ledger.add(record{Kind: foreign, Phase: n.fleet.phase, From: resumed, At: resumed + staleLeader})
		m.Resume()
		n.cluster.WaitReady(m)
	})
}

// staleLeader is for how long after it goes on a leader that was stopped can
// have leases revoked. Measured were 72 to 90 ms.
const staleLeader = 500 * time.Millisecond

// leader moves the leader, up to three times in a row.
func (n *nemesis) leader(ctx context.Context) {
	for range 1 + n.random.IntN(3) {
		step := 1 + n.random.IntN(len(n.cluster.Members)-1)
		n.once("move the leader", func() error {
			ctx, cancel := context.WithTimeout(ctx, etcdWithin)
			defer cancel()
			return n.moveLeader(ctx, step)
		})
	}
}

// moveLeader moves the leader by so many members. Unlike the harness's own it
// may fail: on a busy machine the leader can have moved by itself.
func (n *nemesis) moveLeader(ctx context.Context, step int) error {
	for i, m := range n.cluster.Members {
		status, err := n.direct[i].Status(ctx, m.Addr())
		if err != nil {
			return err
		}
		if status.Leader == m.ID() {
			to := n.cluster.Members[(i+step)%len(n.cluster.Members)]
			_, err := n.direct[i].MoveLeader(ctx, to.ID())
			return err
		}
	}
	return errors.New("no member leads")
}

// revoke revokes somebody's lease.
func (n *nemesis) revoke(ctx context.Context) {
	n.robbery(ctx, "revoke the lease of ", func(ctx context.Context, kv *mvccpb.KeyValue) error {
		n.ledger.add(record{Kind: foreign, Phase: n.fleet.phase, Lease: strconv.FormatInt(kv.Lease, 16)})
		_, err := n.client.Revoke(ctx, clientv3.LeaseID(kv.Lease))
		return err
	})
}

// delete deletes somebody's key, and no later one of that name.
func (n *nemesis) delete(ctx context.Context) {
	n.robbery(ctx, "delete the key of ", func(ctx context.Context, kv *mvccpb.KeyValue) error {
		n.ledger.add(record{Kind: foreign, Phase: n.fleet.phase, Revision: kv.CreateRevision})
		_, err := n.client.Txn(ctx).
			If(clientv3.Compare(clientv3.CreateRevision(string(kv.Key)), "=", kv.CreateRevision)).
			Then(clientv3.OpDelete(string(kv.Key))).Commit()
		return err
	})
}

// robbery does something to the holder's key, or at times a waiter's.
func (n *nemesis) robbery(ctx context.Context, what string, do func(context.Context, *mvccpb.KeyValue) error) {
	ctx, cancel := context.WithTimeout(ctx, etcdWithin)
	defer cancel()
	place, atWaiter := n.random.IntN(8), n.random.IntN(3) == 0
	queue, err := n.client.Get(ctx, keyPrefix+n.fleet.lock+"/", clientv3.WithPrefix(),
		clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
	if err != nil || len(queue.Kvs) == 0 {
		return // nobody to rob; there is a next time
	}
	place %= len(queue.Kvs)
	if !atWaiter {
		place = 0
	}
	kv := queue.Kvs[place]
	who := "the holder"
	if place > 0 {
		who = fmt.Sprintf("waiter %d", place)
	}
	n.once(fmt.Sprintf("%s%s, %d", what, who, kv.CreateRevision), func() error { return do(ctx, kv) })
}

// compaction compacts etcd's history past the watches of a worker that is cut
// off meanwhile.
func (n *nemesis) compaction(ctx context.Context) {
	h := n.fleet.take(n.random)
	if h == nil {
		return
	}
	defer h.busy.Unlock()
	n.during(ctx, "compaction, unseen by "+h.name, ttl/5,
		func() { h.etcd.each((*harness.Proxy).Blackhole) },
		func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), etcdWithin)
			defer cancel()
			// Whether it succeeds is etcd's affair; the next one may.
			for range 10 {
				_, _ = n.client.Put(ctx, "soak/filler", "")
			}
			if now, err := n.client.Get(ctx, "soak/filler"); err == nil {
				_, _ = n.client.Compact(ctx, now.Header.Revision, clientv3.WithCompactPhysical())
			}
			h.etcd.each((*harness.Proxy).Heal)
		})
}
