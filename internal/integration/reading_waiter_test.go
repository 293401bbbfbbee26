package integration

import (
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock/internal/integration/harness"
)

// queueUpToReading is [party.queue] up to where the waiter has its place and has
// read the queue: what etcd does from now on meets a waiter, not an acquire whose
// answer is still on its way. It is for a party that has not waited yet.
func (p *party) queueUpToReading(t testing.TB, client *clientv3.Client, name string, behind int) <-chan grant {
	t.Helper()
	kv := harness.NewLossyKV(t, p.client.KV)
	p.client.KV = kv
	granted := p.queue(t, client, name, behind)
	until(t, "read of the queue", func() bool { return kv.Answered(harness.OpGet) > 0 })
	return granted
}
