package fencelock

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// One timer serves the holds of a lease; each is watched when it is due all the same,
// whatever became of those before and after it.
func TestEachHoldIsWatchedWhenItIsDue(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *fakeEtcd, l *fakeLink) {
		locker := newLocker(t, l)
		start := time.Now()
		locks := map[string]*Lock{}
		acquire := func(name string) { locks[name] = mustAcquire(t, locker, name) }
		release := func(name string) { require.NoError(t, locks[name].Release(t.Context())) }
		acquire("first") // at 0 ms
		time.Sleep(100 * time.Millisecond)
		acquire("second")
		acquire("middle")
		time.Sleep(100 * time.Millisecond)
		release("first") // for which the timer was set
		release("middle")
		acquire("third") // at 200 ms
		time.Sleep(450 * time.Millisecond)
		acquire("fourth") // at 650 ms
		release("third")  // the youngest but one, before its time
		time.Sleep(2 * time.Second)
		release("fourth")
		release("second")
		time.Sleep(time.Second)
		acquire("last") // at 3650 ms: the timer is not running any more
		time.Sleep(600 * time.Millisecond)
		release("last")
		synctest.Wait()

		watched := map[string]time.Duration{}
		for _, r := range l.requests(fakeWatchReq) {
			op := r.req.(clientv3.Op)
			for name, lock := range locks {
				if lock.entry.key == string(op.KeyBytes()) {
					watched[name] = r.sent.Sub(start)
				}
			}
		}
		assert.Equal(t, map[string]time.Duration{
			"second": 600 * time.Millisecond, "fourth": 1150 * time.Millisecond, "last": 4150 * time.Millisecond,
		}, watched)
	})
}
