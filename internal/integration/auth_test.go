package integration

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/authpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/integration/harness"
)

// guarded is the bench with an etcd server that has authentication on. Its clean
// client is root's. Every user has a role of its own name.
type guarded struct{ corner }

const (
	rightPassword = "right"
	wrongPassword = "wrong"
)

// newGuarded returns a server whose tokens live for so many seconds after their
// last use; 0 is etcd's default of minutes.
func newGuarded(t *testing.T, tokenTTL uint) guarded {
	t.Helper()
	g := newUnguarded(t, tokenTTL)
	g.enable()
	return g
}

// newUnguarded is newGuarded with authentication still off, which makes no
// difference to its clean client.
func newUnguarded(t *testing.T, tokenTTL uint) guarded {
	t.Helper()
	harness.NoLeaks(t)
	cluster := harness.StartCluster(t, harness.ClusterConfig{AuthTokenTTL: tokenTTL})
	g := guarded{corner{&bench{t: t, addr: cluster.Members[0].Addr()}}}
	g.clean = g.as("root")
	g.addUser("root")
	t.Cleanup(func() { harness.NothingLeft(t, g.clean, keyPrefix) })
	return g
}

func (g guarded) enable() {
	g.t.Helper()
	_, err := g.clean.AuthEnable(g.t.Context())
	require.NoError(g.t, err)
}

// part is the same server for a part of its test.
func (g guarded) part(t *testing.T) guarded {
	return guarded{corner{&bench{t: t, addr: g.addr, clean: g.clean}}}
}

// as returns a client of that user's.
func (g guarded) as(user string) *clientv3.Client {
	g.t.Helper()
	return harness.NewClientWith(g.t, g.configOf(user))
}

func (g guarded) configOf(user string) clientv3.Config {
	return clientv3.Config{Endpoints: []string{g.addr}, Username: user, Password: rightPassword}
}

// addUser adds a user who may do nothing.
func (g guarded) addUser(user string) {
	g.t.Helper()
	_, err := g.clean.UserAdd(g.t.Context(), user, rightPassword)
	require.NoError(g.t, err)
	_, err = g.clean.RoleAdd(g.t.Context(), user)
	require.NoError(g.t, err)
	_, err = g.clean.UserGrantRole(g.t.Context(), user, user)
	require.NoError(g.t, err)
}

// addWorker adds a user who may do what the library needs to.
func (g guarded) addWorker(user string) {
	g.t.Helper()
	g.addUser(user)
	g.allow(user, keyPrefix, clientv3.PermReadWrite)
}

// allow gives a user a permission for all keys under prefix, instead of the one
// it had for them.
func (g guarded) allow(user, prefix string, permission authpb.Permission_Type) {
	g.t.Helper()
	_, err := g.clean.RoleGrantPermission(g.t.Context(), user, prefix, clientv3.GetPrefixRangeEnd(prefix),
		clientv3.PermissionType(permission))
	require.NoError(g.t, err)
}

// forbid takes away what allow gave.
func (g guarded) forbid(user, prefix string) {
	g.t.Helper()
	_, err := g.clean.RoleRevokePermission(g.t.Context(), user, prefix, clientv3.GetPrefixRangeEnd(prefix))
	require.NoError(g.t, err)
}

func (g guarded) changePassword(user, password string) {
	g.t.Helper()
	_, err := g.clean.UserChangePassword(g.t.Context(), user, password)
	require.NoError(g.t, err)
}

// awaitTokenExpiry waits until every token is invalid that nobody uses during
// the call. A token that is looked at begins a new life, so each look needs one
// of its own; all are as old as the call, and so no older than those that the
// test wants to see expire.
func (g guarded) awaitTokenExpiry(user string) {
	g.t.Helper()
	const looks = 60
	var tokens []string
	for range looks {
		resp, err := g.clean.Authenticate(g.t.Context(), user, rightPassword)
		require.NoError(g.t, err)
		tokens = append(tokens, resp.Token)
	}
	for _, token := range tokens {
		client, err := clientv3.New(clientv3.Config{Endpoints: []string{g.addr}, Token: token})
		require.NoError(g.t, err)
		_, err = client.Get(atMost(g.t, soon), keyPrefix)
		require.NoError(g.t, client.Close())
		if errors.Is(err, rpctypes.ErrInvalidAuthToken) {
			return
		}
		require.NoError(g.t, err)
		time.Sleep(200 * time.Millisecond)
	}
	g.t.Fatalf("no token expired after %d looks", looks)
}

// requireDenied makes an acquiring call that etcd's answer of "you may not" has
// to end, and checks what the caller and the operator are told. No caller's
// patience is worth spending on that answer.
func (g guarded) requireDenied(told *journal, cause error, call func() error) *fencelock.AcquireError {
	g.t.Helper()
	before := len(reported[fencelock.NotAcquiredInfo](told))
	err := harness.Receive(g.t, inBackground(g.t, call), soon, "return of a call that is denied")
	require.ErrorIs(g.t, err, fencelock.ErrNotAcquired)
	require.ErrorIs(g.t, err, cause)
	var failure *fencelock.AcquireError
	require.ErrorAs(g.t, err, &failure)
	reports := reported[fencelock.NotAcquiredInfo](told)
	require.Len(g.t, reports, before+1)
	require.Equal(g.t, fencelock.ResultDenied, reports[before].Result, err)
	return failure
}
