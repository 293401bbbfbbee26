package integration

import (
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/integration/harness"
)

// A waiter is cut off, and what its watch would resume from is compacted away
// meanwhile. A naive library gives up with ErrCompacted, and its place in the
// queue with it; or waits on for an event that will never be sent.
func TestFault16CompactedWhileWaiting(t *testing.T) {
	harness.Parallel(t)
	b := newBench(t)

	for name, duringOutage := range map[string]bool{
		"the lock is released after the outage":  false,
		"the lock is released during the outage": true,
	} {
		t.Run(name, func(t *testing.T) {
			b := b.corner(t)
			proxy := harness.NewProxy(t, b.addr)
			w, j := wire(t, harness.NewClient(t, proxy.Addr())), newJournal()
			waiter := b.locker(w.Client, reportTo(j)...)
			held := b.acquire(b.locker(b.client()), "job")
			waiting := b.acquireLater(waiter, "job")
			b.awaitQueue("job", 2)
			b.awaitReads(w, 1)
			place, err := b.clean.Get(t.Context(), keyPrefix+"job/", clientv3.WithLastCreate()...)
			require.NoError(t, err)

			proxy.Refuse()
			proxy.Cut()
			if duringOutage {
				b.release(held)
			}
			for range 10 {
				_, err := b.clean.Put(t.Context(), "other", "x")
				require.NoError(t, err)
			}
			now, err := b.clean.Get(t.Context(), "other")
			require.NoError(t, err)
			_, err = b.clean.Compact(t.Context(), now.Header.Revision, clientv3.WithCompactPhysical())
			require.NoError(t, err)
			b.stillWaits(waiting)
			proxy.Heal()

			if !duringOutage {
				// The queue is read a second time because the watch could not go
				// on: silence alone is trusted for longer than this waits.
				b.awaitReads(w, 2)
				b.stillWaits(waiting)
				b.release(held)
			}
			k := b.granted(waiting)
			require.Equal(t, place.Kvs[0].CreateRevision, k.Token().Revision(), "it lost its place")
			b.stillHeld(k)
			b.release(k)
			waited := reported[fencelock.WaitedInfo](j)
			require.Len(t, waited, 1)
			require.True(t, waited[0].Granted)
			require.Empty(t, reported[fencelock.LostInfo](j))
		})
	}
}
