package harness

import (
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// NewClient returns a client for these endpoints, "host:port", that logs
// nothing and is closed at the end of the test. Everything else is as etcd
// defaults it, above all how it reconnects, because that is what the library
// has to live with.
func NewClient(t testing.TB, endpoints ...string) *clientv3.Client {
	t.Helper()
	return NewClientWith(t, clientv3.Config{Endpoints: endpoints})
}

// NewClientWith is [NewClient] with a configuration; what it leaves open is as
// there.
func NewClientWith(t testing.TB, cfg clientv3.Config) *clientv3.Client {
	t.Helper()
	client, err := clientv3.New(quiet(cfg))
	if err != nil {
		t.Fatalf("harness: a client for %v: %v", cfg.Endpoints, err)
	}
	// The test may have closed it, and then there is an error to ignore.
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func dial(endpoints ...string) (*clientv3.Client, error) {
	return clientv3.New(quiet(clientv3.Config{Endpoints: endpoints}))
}

func quiet(cfg clientv3.Config) clientv3.Config {
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	if cfg.DialTimeout == 0 {
		cfg.DialTimeout = 2 * time.Second
	}
	return cfg
}
