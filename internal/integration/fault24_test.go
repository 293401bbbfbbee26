package integration

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/integration/harness"
)

// A naive library counts wrongly under quick use: its keeper goes on when the
// last lock is gone, and keeps a lease alive for ever; or it ended with an
// earlier lock, and the next one that is held for longer is lost.
func TestFault24QuickUseThenALongHold(t *testing.T) {
	const (
		ttl     = 2 * time.Second
		cycles  = 2000
		names   = 4
		workers = 8
	)
	b := newBench(t)
	j := newJournal()
	client := b.wired()
	l := b.locker(client.Client, append(reportTo(j), fencelock.WithTTL(ttl))...)

	var inside [names]sync.Mutex // to see two at once
	var highest [names]int64
	var work sync.WaitGroup
	for w := range workers {
		work.Go(func() {
			for i := range cycles / workers {
				n := (w + i) % names
				err := l.Do(t.Context(), fmt.Sprint(n), func(_ context.Context, token fencelock.Token) error {
					if !inside[n].TryLock() {
						return fmt.Errorf("two hold %d at once", n)
					}
					defer inside[n].Unlock()
					if rev := token.Revision(); rev <= highest[n] {
						return fmt.Errorf("token %d after %d", rev, highest[n])
					} else {
						highest[n] = rev
					}
					return nil
				})
				if !assert.NoError(t, err) {
					return
				}
			}
		})
	}
	work.Wait()
	renewals := client.lease.Calls(harness.OpKeepAliveOnce)
	require.Empty(t, harness.Keys(t, b.clean, keyPrefix))

	// Idle, so the lease lapses, by itself.
	harness.NothingLeftWithin(t, b.clean, keyPrefix, ttl+soon)
	// One can have been on its way when the last lock was released.
	assert.LessOrEqual(t, client.lease.Calls(harness.OpKeepAliveOnce), renewals+1, "renewed while idle")
	assert.Zero(t, client.lease.Calls(harness.OpRevoke))

	// Renewals come every third of the TTL.
	k := b.acquire(l, "0")
	awaitReports[fencelock.RenewedInfo](t, j, len(reported[fencelock.RenewedInfo](j))+9, 4*ttl+soon)
	require.NoError(t, k.Err())
	b.release(k)
	assert.Empty(t, reported[fencelock.LostInfo](j))
}
