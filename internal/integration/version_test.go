package integration

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fencelock/fencelock/internal/integration/harness"
)

// TestServerVersion runs what the library rests on against another etcd server:
// the program that ETCD_BIN names, else the etcd in the path. A server that
// answers a transaction, a watch or a lease a little differently would break the
// library where none of its own tests look.
//
//	ETCD_BIN=path go test ./internal/integration -run TestServerVersion -v
func TestServerVersion(t *testing.T) {
	path := os.Getenv("ETCD_BIN")
	if path == "" {
		var err error
		if path, err = exec.LookPath("etcd"); err != nil {
			if os.Getenv("CI") == "true" {
				t.Fatal("no etcd server to test: set ETCD_BIN, or have etcd in the path")
			}
			t.Skip("no etcd server beside the compiled-in one: set ETCD_BIN, or have etcd in the path")
		}
	}
	harness.UseBinary(t, path)
	version := serverVersion(t, harness.StartCluster(t, harness.ClusterConfig{}).Endpoints()[0])
	t.Logf("etcd server %s", version)

	for _, c := range []struct {
		name string
		test func(*testing.T)
	}{
		{"LinkCut", TestFault01LinkCut},
		{"LeaseRevoked", TestFault07LeaseRevoked},
		{"KeyDeleted", TestFault08KeyDeleted},
		{"HolderKilled", TestFault09HolderKilled},
		{"AcquireAnswerLost", TestFault13AcquireAnswerLost},
		{"ReleaseComesLate", TestFault14ReleaseComesLate},
		{"SilentEtcd", TestFault15SilentEtcd},
		{"CompactedWhileWaiting", TestFault16CompactedWhileWaiting},
		{"WaiterLosesItsPlace", TestFault17WaiterLosesItsPlace},
		{"CloseWhileHoldingAndWaiting", TestFault23CloseWhileHoldingAndWaiting},
		{"NamesAreIndependent", TestFault25NamesAreIndependent},
		{"ForeignKeyWithoutALease", TestFault25ForeignKeyWithoutALease},
		{"ManyWaiters", TestFault28ManyWaitersHalfCancelled},
		{"RequestArrivesAfterCleanUp", TestFault31RequestArrivesAfterCleanUp},
		{"TwoLockersOnOneSession", TestFault32TwoLockersOnOneSession},
		{"SessionClosedWhileHolding", TestFault32SessionClosedWhileHolding},
		{"MixedQueue", TestMixedQueueIsFirstInFirstOut},
		{"Inspect", TestInspect},
		{"IsOwner", TestDoIsOwnerIsTrueOnlyWhileHeld},
		{"EtcdFence", TestEtcdFence},
		{"EtcdFencePermissions", TestEtcdFencePermissions},
	} {
		t.Run(c.name, c.test)
	}
}

// serverVersion asks a server what it is.
func serverVersion(t *testing.T, endpoint string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+endpoint+"/version", nil)
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	defer http.DefaultClient.CloseIdleConnections()
	var v struct {
		Server string `json:"etcdserver"`
	}
	require.NoError(t, json.NewDecoder(resp.Body).Decode(&v))
	require.NotEmpty(t, v.Server)
	return v.Server
}
