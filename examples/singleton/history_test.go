//go:build unix

package main

import (
	"context"
	"testing"
	"time"

	"github.com/fencelock/fencelock/examples/internal/localetcd"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

func TestStaleRoundsAreCounted(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	server, err := localetcd.Start(ctx, t.TempDir())
	require.NoError(t, err)
	defer server.Close()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{server.Clients[0].Addr().String()}, Logger: zap.NewNop()})
	require.NoError(t, err)
	defer client.Close()

	_, err = staleRounds(ctx, client)
	require.ErrorContains(t, err, "the job wrote nothing")

	for _, round := range []struct {
		token string
		stale int // so far
	}{{"5.a", 0}, {"5.a", 0}, {"7.b", 0}, {"5.a", 1}, {"7.b", 1}, {"6.c", 2}, {"30.d", 2}} {
		_, err := client.Put(ctx, jobKey, round.token)
		require.NoError(t, err)
		stale, err := staleRounds(ctx, client)
		require.NoError(t, err)
		require.Equal(t, round.stale, stale, "after %s", round.token)
	}

	_, err = client.Put(ctx, jobKey, "anything")
	require.NoError(t, err)
	_, err = staleRounds(ctx, client)
	require.ErrorContains(t, err, "holds no token")
}
