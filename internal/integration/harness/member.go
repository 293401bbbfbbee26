package harness

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// Member is one etcd server of a [Cluster].
type Member struct {
	cluster *Cluster
	cfg     memberConfig
	id      uint64
	proc    *Process // nil while it is down
	paused  bool
}

// Addr returns "host:port" for clients; it is an endpoint, and a target for a
// [Proxy].
func (m *Member) Addr() string { return m.cfg.ClientAddr }

// ID returns the member id.
func (m *Member) ID() uint64 { return m.id }

// Name returns the member's name. A restore of a snapshot has to be told it,
// and PeerURL, InitialCluster and ClusterToken.
func (m *Member) Name() string { return m.cfg.Name }

// PeerURL returns the URL that the other members reach this one at.
func (m *Member) PeerURL() string { return "http://" + m.cfg.PeerAddr }

// InitialCluster returns the names and peer URLs of all members, as etcd wants
// them.
func (m *Member) InitialCluster() string { return m.cfg.InitialCluster }

// ClusterToken returns the cluster's token.
func (m *Member) ClusterToken() string { return m.cfg.ClusterToken }

// Dir returns the data directory.
func (m *Member) Dir() string { return m.cfg.Dir }

// SetDir makes the member use another data directory from its next start.
func (m *Member) SetDir(dir string) { m.cfg.Dir = dir }

// Process returns the member's process, nil while it is down.
func (m *Member) Process() *Process { return m.proc }

// Kill ends the member with SIGKILL, paused or not.
func (m *Member) Kill() {
	m.cluster.t.Helper()
	m.running().Kill()
	m.proc, m.paused = nil, false
}

// Shutdown ends the member in good order: a leader gives up its leadership
// first, and open streams are given some seconds to end.
func (m *Member) Shutdown() {
	m.cluster.t.Helper()
	if err := m.running().Shutdown(patience); err != nil {
		m.cluster.t.Fatal(err)
	}
	m.proc = nil
}

// Pause stops the member with SIGSTOP: its ports accept connections, and
// nothing answers.
func (m *Member) Pause() {
	m.cluster.t.Helper()
	if err := m.running().Stop(); err != nil {
		m.cluster.t.Fatal(err)
	}
	m.paused = true
}

// Resume continues a paused member.
func (m *Member) Resume() {
	m.cluster.t.Helper()
	if err := m.running().Cont(); err != nil {
		m.cluster.t.Fatal(err)
	}
	m.paused = false
}

// Start starts a member that is down, on the same ports and data, and returns
// when its ports are open. It needs no quorum.
func (m *Member) Start() {
	m.cluster.t.Helper()
	m.launch()
	m.serve()
}

// Restart is [Member.Start], and waits until the member answers a linearizable
// read, for which it needs a quorum.
func (m *Member) Restart() {
	m.cluster.t.Helper()
	m.Start()
	m.cluster.WaitReady(m)
}

func (m *Member) launch() {
	m.cluster.t.Helper()
	if m.proc != nil {
		m.cluster.t.Fatalf("harness: member %s is up already", m.cfg.Name)
	}
	m.proc = Start(m.cluster.t, etcdRole, m.cfg.argument())
}

func (m *Member) serve() {
	m.cluster.t.Helper()
	id, err := strconv.ParseUint(m.proc.Expect(servingEvent, patience).Text, 16, 64)
	if err != nil {
		m.cluster.t.Fatalf("harness: member %s says a bad id: %v", m.cfg.Name, err)
	}
	m.id = id
}

func (m *Member) running() *Process {
	m.cluster.t.Helper()
	if m.proc == nil {
		m.cluster.t.Fatalf("harness: member %s is down", m.cfg.Name)
	}
	return m.proc
}

func (m *Member) hexID() string { return strconv.FormatUint(m.id, 16) }

func (m *Member) lead() (id, term uint64) {
	m.cluster.t.Helper()
	if _, err := fmt.Sscanf(m.ask("lead"), "%x %d", &id, &term); err != nil {
		m.cluster.t.Fatalf("harness: member %s says a bad leader: %v", m.cfg.Name, err)
	}
	return id, term
}

// ask has the member's process carry out a command, and returns its result.
func (m *Member) ask(command string) string {
	m.cluster.t.Helper()
	p := m.running()
	if err := p.Send(command); err != nil {
		m.cluster.t.Fatal(err)
	}
	status, result, _ := strings.Cut(p.Expect(replyEvent, patience).Text, " ")
	if status != "ok" {
		m.cluster.t.Fatalf("harness: member %s failed to %s: %s", m.cfg.Name, command, result)
	}
	return result
}

// answers returns when the member has answered a linearizable read.
func (m *Member) answers() error {
	client, err := dial(m.Addr())
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		// A read that began without a leader can wait for longer than it takes
		// to begin again.
		try, cancel := context.WithTimeout(ctx, time.Second)
		_, err := client.Get(try, "harness/ready")
		cancel()
		switch {
		case err == nil, errors.Is(err, rpctypes.ErrUserEmpty):
			// With authentication on, the refusal comes after the read was
			// found to be linearizable.
			return nil
		case m.proc.hasExited():
			return fmt.Errorf("harness: member %s has exited: %s; its standard error ends:\n%s",
				m.cfg.Name, m.proc.cmd.ProcessState, m.proc.stderr)
		case ctx.Err() != nil:
			return fmt.Errorf("harness: member %s answers no read within %v: %w", m.cfg.Name, patience, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
