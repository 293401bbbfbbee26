package harness

import (
	"fmt"
	"os"
	"strconv"
	"syscall"
	"testing"
)

// binary is the etcd server program that clusters are started with; empty: the
// one that is compiled in.
var binary string

// UseBinary has every cluster that is started before the end of the test run
// that etcd server program, "" for the one compiled in. Its members can be
// killed, paused and restarted; [Cluster.Leader], [Cluster.MoveLeader] and
// [Cluster.Partition] ask the compiled-in server and are not for these. It is
// not for tests that run in parallel with others.
func UseBinary(t testing.TB, path string) {
	t.Helper()
	before := binary
	binary = path
	t.Cleanup(func() { binary = before })
}

// become replaces this child process with the server program: whoever stops or
// kills the child stops or kills the server itself, and the kernel ends it with
// the parent as it would have ended the child.
func (m memberConfig) become() error {
	args := []string{
		m.Binary,
		"--name=" + m.Name,
		"--data-dir=" + m.Dir,
		"--listen-peer-urls=http://" + m.PeerAddr,
		"--initial-advertise-peer-urls=http://" + m.PeerAddr,
		"--listen-client-urls=http://" + m.ClientAddr,
		"--advertise-client-urls=http://" + m.ClientAddr,
		"--initial-cluster=" + m.InitialCluster,
		"--initial-cluster-token=" + m.ClusterToken,
		"--heartbeat-interval=" + strconv.FormatUint(uint64(m.Settings.TickMs), 10),
		"--election-timeout=" + strconv.FormatUint(uint64(m.Settings.ElectionMs), 10),
		"--bcrypt-cost=4",
		"--logger=zap", "--log-level=warn", "--log-outputs=stderr",
	}
	if m.Settings.QuotaBackendBytes > 0 {
		args = append(args, "--quota-backend-bytes="+strconv.FormatInt(m.Settings.QuotaBackendBytes, 10))
	}
	if m.Settings.AuthTokenTTL > 0 {
		args = append(args, "--auth-token-ttl="+strconv.FormatUint(uint64(m.Settings.AuthTokenTTL), 10))
	}
	return fmt.Errorf("running %s: %w", m.Binary, syscall.Exec(m.Binary, args, os.Environ()))
}
