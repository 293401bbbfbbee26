package fencelock

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	"github.com/fencelock/fencelock/internal/clock"
)

// Requests are put together without clientv3's own functions where those cost more
// than all the rest. What is sent is the same.
func TestRequestsAreClientv3s(t *testing.T) {
	l := &Locker{cfg: config{prefix: defaultPrefix}, random: "0123456789abcdef", counter: 9}
	le := newLease(l, 0x694d7624a5d5f04e, clock.Now(), time.Minute, time.Minute, false)
	le.keeping = true // none is wanted
	e := le.newEntry("a name/ü")
	assert.Equal(t, "fencelock/a%20name%2F%C3%BC/694d7624a5d5f04e-0", e.key)
	assert.Equal(t, e.key, string(e.rawKey))
	assert.Equal(t, "694d7624a5d5f04e-0123456789abcdef-10", e.holder)

	e.rev = 1<<63 - 1
	own, theirs := e.ours(), clientv3.Compare(clientv3.CreateRevision(e.key), "=", e.rev)
	assert.True(t, proto.Equal(theirs.GetCompare(), own.GetCompare()))
	e.rev, e.value = 0, []byte("v")
	own, theirs = e.ours(), clientv3.Compare(clientv3.Value(e.key), "=", "v")
	assert.True(t, proto.Equal(theirs.GetCompare(), own.GetCompare()))

	assert.Equal(t, clientv3.OpDelete(e.key), e.deletion())
	assert.Equal(t, clientv3.OpGet(e.queue, clientv3.WithFirstCreate()...), e.ofQueue(readHead, e.queueEnd()))
	put := le.put
	put.WithKeyBytes(e.rawKey)
	put.WithValueBytes(e.value)
	assert.Equal(t, clientv3.OpPut(e.key, "v", clientv3.WithLease(le.id)), put)
}
