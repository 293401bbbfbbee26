package integration

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"

	"github.com/fencelock/fencelock/internal/integration/harness"
)

// bump is what etcd's documentation gives as an example for --bump-revision: more
// revisions than there were since the snapshot.
const bump = 1_000_000_000

// saveSnapshot does what "etcdctl snapshot save" does.
func saveSnapshot(t *testing.T, m *harness.Member) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "snapshot.db")
	cfg := clientv3.Config{Endpoints: []string{m.Addr()}, Logger: zap.NewNop()}
	_, err := snapshot.NewV3(zap.NewNop()).Save(t.Context(), cfg, path)
	require.NoError(t, err)
	return path
}

// restoreSnapshot kills the only member of a cluster and starts it on what
// "etcdutl snapshot restore" makes of the snapshot, under the same names, so that
// to a client it is the same cluster. With a bump the command has
// --bump-revision and --mark-compacted, without it neither.
func restoreSnapshot(t *testing.T, m *harness.Member, path string, bump uint64) {
	t.Helper()
	m.Kill()
	dir := filepath.Join(t.TempDir(), "restored")
	require.NoError(t, snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
		SnapshotPath:        path,
		Name:                m.Name(),
		OutputDataDir:       dir,
		PeerURLs:            []string{m.PeerURL()},
		InitialCluster:      m.InitialCluster(),
		InitialClusterToken: m.ClusterToken(),
		RevisionBump:        bump,
		MarkCompacted:       bump > 0,
	}))
	m.SetDir(dir)
	m.Restart()
}
