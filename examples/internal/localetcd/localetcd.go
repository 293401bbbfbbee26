// Package localetcd starts an etcd server for an example, on this machine alone.
package localetcd

import (
	"context"
	"fmt"
	"net/url"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// Start runs one etcd server in this process, on free ports and with its data
// in dir, and returns when it serves. Each change is made to its configuration.
func Start(ctx context.Context, dir string, changes ...func(*embed.Config)) (*embed.Etcd, error) {
	anyPort := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	cfg := embed.NewConfig()
	cfg.Dir = dir
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = anyPort, anyPort
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = anyPort, anyPort
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	for _, change := range changes {
		change(cfg)
	}

	server, err := embed.StartEtcd(cfg)
	if err != nil {
		return nil, fmt.Errorf("localetcd: start etcd: %w", err)
	}
	select {
	case <-server.Server.ReadyNotify():
		return server, nil
	case err = <-server.Err():
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	server.Close()
	return nil, fmt.Errorf("localetcd: start etcd: %w", err)
}
