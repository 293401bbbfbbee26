package main

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock/internal/integration/harness"
	"github.com/fencelock/fencelock/internal/integration/resource"
)

// The lease of every worker. With 10 ms ticks and an election timeout of 100 ms
// a second is the least that etcd grants, and what gives the most faults in a
// minute.
const (
	ttl    = time.Second
	margin = ttl / 5
)

// ground is what all phases of a run stand on.
type ground struct {
	seed     uint64
	ledger   *ledger
	cluster  *harness.Cluster
	resource *resource.Process
	client   *clientv3.Client   // to all members, past every proxy
	direct   []*clientv3.Client // one to each member
}

func newGround(t testing.TB, seed uint64, l *ledger) *ground {
	t.Helper()
	g := &ground{
		seed: seed, ledger: l,
		cluster:  harness.StartCluster(t, harness.ClusterConfig{Members: 3, TickMs: 10, ElectionMs: 100}),
		resource: resource.Start(t, ""),
	}
	g.client = harness.NewClient(t, g.cluster.Endpoints()...)
	for _, m := range g.cluster.Members {
		g.direct = append(g.direct, harness.NewClient(t, m.Addr()))
	}
	startWitness(t, g.direct, l)
	return g
}

// settle puts down what is there after the workers of a phase have ended: every
// register's value and history, and what is left in etcd.
func (g *ground) settle(t testing.TB, f *fleet) {
	t.Helper()
	require.NoError(t, f.drain())
	direct := resource.NewClient(g.resource.Addr)
	defer func() { require.NoError(t, direct.Close()) }()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	// Registers are filled one after the other.
	for n := 0; ; n++ {
		register := registerName(f.lock, n)
		from := g.ledger.clock()
		value, err := direct.Read(ctx, register)
		require.NoError(t, err)
		history, err := direct.History(ctx, register)
		require.NoError(t, err)
		if len(history) == 0 {
			break
		}
		g.ledger.add(record{Kind: finalValue, Phase: f.phase, Register: register, From: from, Value: value})
		for _, e := range history {
			g.ledger.add(record{Kind: decided, Phase: f.phase, Register: register, Entry: &e})
		}
	}
	g.ledger.add(record{Kind: leftBehind, Phase: f.phase, Left: g.left(t)})
}

// left returns what is left in etcd, once that is nothing or had its time: a
// lease that was lost in a partition lives for its TTL, and for another after
// each change of the leader.
func (g *ground) left(t testing.TB) *left {
	t.Helper()
	limit := time.Now().Add(5*time.Second + 2*ttl)
	for {
		l := &left{
			Keys:   len(harness.Keys(t, g.client, keyPrefix)),
			Leases: len(harness.Leases(t, g.client)),
		}
		if *l == (left{}) || time.Now().After(limit) {
			return l
		}
		time.Sleep(20 * time.Millisecond)
	}
}
