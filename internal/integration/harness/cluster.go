package harness

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// patience is how long a cluster may take for what it does by itself: serving
// after a start, electing a leader. It is far above what either takes, for a
// machine that is busy with something else.
const patience = 30 * time.Second

// ClusterConfig says how to start a [Cluster]. Its zero value is one member
// that grants leases of 1 s.
type ClusterConfig struct {
	Members           int   // 1 by default
	TickMs            uint  // 10 by default
	ElectionMs        uint  // 100 by default; the least TTL is 1.5 times that, rounded up to seconds
	QuotaBackendBytes int64 // etcd's own default if 0
	AuthTokenTTL      uint  // seconds; etcd's own default if 0
}

// Cluster is an etcd cluster of child processes on loopback ports. It is gone,
// with its data, at the end of the test. Its methods, and its members', are for
// one goroutine at a time.
type Cluster struct {
	// Members are the cluster's members, running or not.
	Members []*Member

	t testing.TB
}

// StartCluster starts a cluster and returns when every member answers a
// linearizable read.
func StartCluster(t testing.TB, cfg ClusterConfig) *Cluster {
	t.Helper()
	if cfg.Members == 0 {
		cfg.Members = 1
	}
	if cfg.TickMs == 0 {
		cfg.TickMs = 10
	}
	if cfg.ElectionMs == 0 {
		cfg.ElectionMs = 100
	}
	c := &Cluster{t: t}
	var urls []string
	for i := range cfg.Members {
		m := &Member{cluster: c, cfg: memberConfig{
			Name:         fmt.Sprintf("m%d", i),
			Dir:          filepath.Join(t.TempDir(), "data"), // made by etcd, with its own permissions
			ClientAddr:   c.reserve(),
			PeerAddr:     c.reserve(),
			ClusterToken: t.Name(),
			Binary:       binary,
			Settings:     cfg,
		}}
		c.Members = append(c.Members, m)
		urls = append(urls, m.cfg.Name+"="+m.PeerURL())
	}
	for _, m := range c.Members {
		m.cfg.InitialCluster = strings.Join(urls, ",")
		m.launch()
	}
	for _, m := range c.Members {
		m.serve()
	}
	c.WaitReady()
	return c
}

// reserve keeps a port until the end of the test, after the members are dead.
func (c *Cluster) reserve() string {
	c.t.Helper()
	r, err := reservePort()
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(r.close)
	return r.addr
}

// Endpoints returns the client address of every member, running or not.
func (c *Cluster) Endpoints() []string {
	var all []string
	for _, m := range c.Members {
		all = append(all, m.Addr())
	}
	return all
}

// WaitReady returns when each of these members, or without any every member
// that is up, answers a linearizable read.
func (c *Cluster) WaitReady(members ...*Member) {
	c.t.Helper()
	if len(members) == 0 {
		members = c.up()
	}
	for _, m := range members {
		if err := m.answers(); err != nil {
			c.t.Fatal(err)
		}
	}
}

// Leader returns the member that is the leader by its own word and in the
// latest term that a member which is up knows. It waits for there to be one.
func (c *Cluster) Leader() *Member {
	c.t.Helper()
	limit := time.Now().Add(patience)
	for time.Now().Before(limit) {
		var leader *Member
		var latest uint64
		for _, m := range c.up() {
			lead, term := m.lead()
			switch {
			case term > latest:
				leader, latest = nil, term
				fallthrough
			case term == latest:
				if lead == m.id {
					leader = m
				}
			}
		}
		if leader != nil {
			return leader
		}
		time.Sleep(5 * time.Millisecond)
	}
	c.t.Fatalf("harness: no leader within %v", patience)
	return nil
}

// MoveLeader makes another member the leader and returns when the old one says
// so.
func (c *Cluster) MoveLeader(to *Member) {
	c.t.Helper()
	c.Leader().ask("move " + to.hexID())
}

// Partition cuts the raft traffic between these members and all others, both
// ways, until [Cluster.Mend]; clients still reach everybody. It is etcd's own
// cut, of raft messages only: a follower still passes a lease renewal on to a
// leader that it has not given up yet. All members have to be up, and one that
// is started meanwhile is cut off on the others' side only.
func (c *Cluster) Partition(members ...*Member) {
	c.t.Helper()
	for _, m := range c.Members {
		for _, other := range c.Members {
			if slices.Contains(members, m) != slices.Contains(members, other) {
				m.ask("cut " + other.hexID())
			}
		}
	}
}

// Mend ends a partition, for all members that are up.
func (c *Cluster) Mend() {
	c.t.Helper()
	for _, m := range c.up() {
		for _, other := range c.Members {
			if m != other {
				m.ask("mend " + other.hexID())
			}
		}
	}
}

func (c *Cluster) up() []*Member {
	var up []*Member
	for _, m := range c.Members {
		if m.proc != nil && !m.paused {
			up = append(up, m)
		}
	}
	return up
}
