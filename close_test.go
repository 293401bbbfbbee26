package fencelock

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

func closeLater(l *Locker) *running {
	return background(func(r *running) { r.err = l.Close() })
}

// Holders are told first. The lease goes when the last of them has returned, or
// after the margin, and Close returns then; not a moment before, and with
// nothing left in etcd.
func TestCloseGivesHoldersTheMargin(t *testing.T) {
	const margin = 3 * time.Second // a fifth of 15 s
	for name, c := range map[string]struct {
		stop []time.Duration // each holder, after it was told; 0: at once
		took time.Duration
	}{
		"nobody holds":       {},
		"they stop at once":  {stop: []time.Duration{0, 0}},
		"they take a while":  {stop: []time.Duration{time.Second, 2 * time.Second}, took: 2 * time.Second},
		"one does not stop":  {stop: []time.Duration{0, time.Hour}, took: margin},
		"none of them stops": {stop: []time.Duration{time.Hour, time.Hour}, took: margin},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
				locker := newLocker(t, l)
				require.NoError(t, mustAcquire(t, locker, "before").Release(t.Context()))
				var holders []*running
				for i, stop := range c.stop {
					name := string(rune('a' + i))
					holders = append(holders, background(func(r *running) {
						r.err = locker.Do(t.Context(), name, func(ctx context.Context, _ Token) error {
							awaitIn(t, ctx.Done())
							time.Sleep(stop)
							return nil
						})
					}))
				}
				time.Sleep(time.Minute)
				closed := time.Now()
				r := closeLater(locker)
				require.NoError(t, r.wait(t).err)
				assert.Equal(t, c.took, r.took)
				requireNothingLeft(t, e)
				revokes := l.requests(fakeRevoke)
				if len(c.stop) > 0 { // else its lease had lapsed
					require.Len(t, revokes, 1)
					assert.Equal(t, closed.Add(c.took), revokes[0].sent)
				}
				for i, h := range holders {
					requireIs(t, h.wait(t).err, ErrLost)
					lost := requireAs[*LostError](t, h.err)
					assert.Equal(t, LostClosed, lost.Reason)
					assert.Equal(t, closed.Round(0), lost.LostAt)
					assert.Equal(t, c.stop[i], lostFor(lost))
				}
				assert.Len(t, l.requests(fakeRevoke), len(revokes))
			})
		})
	}
}

// Close returns within the margin and 5 s also if etcd does not answer, and says
// what is left and until when.
func TestCloseIsBounded(t *testing.T) {
	for name, c := range map[string]struct {
		returns bool
		margin  time.Duration
		took    time.Duration
	}{
		"a holder that returns":     {returns: true, took: 5 * time.Second},
		"a holder that does not":    {took: 8 * time.Second},
		"the same, a longer margin": {margin: 10 * time.Second, took: 15 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
				var opts []Option
				if c.margin > 0 {
					opts = append(opts, WithMargin(c.margin))
				}
				locker := newLocker(t, l, opts...)
				lock := mustAcquire(t, locker, "n")
				if c.returns {
					go func() {
						<-lock.Context().Done()
						_ = lock.Release(context.Background())
					}()
				}
				// Work of all kinds is under way, and must not hold it up.
				waiter := acquireLater(t.Context(), locker, "n")
				time.Sleep(time.Second)
				l.cut()
				joining := acquireLater(t.Context(), locker, "m")
				time.Sleep(100 * time.Millisecond)

				r := closeLater(locker)
				require.True(t, waiter.isDone())
				require.True(t, joining.isDone())
				requireIs(t, waiter.err, ErrNotAcquired, ErrClosed)
				requireIs(t, joining.err, ErrNotAcquired, ErrClosed)
				err := r.wait(t).err
				assert.Equal(t, c.took, r.took)
				requireIs(t, err, ErrUnconfirmed)
				assert.ErrorContains(t, err, "its keys go when it expires")
				l.heal()
				time.Sleep(15 * time.Second)
				synctest.Wait()
				requireNothingLeft(t, e)
				require.ErrorIs(t, lock.Release(t.Context()), ErrLost)
			})
		})
	}
}

func TestCloseFromManyGoroutines(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *fakeEtcd, l *fakeLink) {
		locker := newLocker(t, l)
		lock := mustAcquire(t, locker, "n")
		l.intercept(only(fakeRevoke, fault{err: rpctypes.ErrGRPCCorrupt}))
		errs, start := make([]error, 8), time.Now()
		var wg sync.WaitGroup
		for i := range errs {
			wg.Go(func() { errs[i] = locker.Close() })
		}
		wg.Wait()
		assert.Equal(t, 3*time.Second, time.Since(start))
		for _, err := range append(errs, locker.Close()) {
			requireIs(t, err, ErrUnconfirmed)
			assert.Same(t, errs[0], err)
		}
		assert.Len(t, l.requests(fakeRevoke), 1)
		require.ErrorIs(t, lock.Release(t.Context()), ErrLost)
	})
}

// What is on its way when Close is called is undone too: a lease that is being
// granted, a key that is being put.
func TestCloseMeetsWhatIsUnderWay(t *testing.T) {
	for name, c := range map[string]struct {
		slow match
		took time.Duration
	}{
		"a lease": {slow: ofKind(fakeGrant), took: time.Second},
		"a key":   {slow: joins}, // it goes with the lease
	} {
		for _, f := range []fault{{requestDelay: 2 * time.Second}, {replyDelay: 2 * time.Second}} {
			t.Run(name, func(t *testing.T) {
				inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
					locker := newLocker(t, l)
					l.intercept(c.slow.all(f))
					call := acquireLater(t.Context(), locker, "n")
					time.Sleep(time.Second)
					r := closeLater(locker)
					require.True(t, call.isDone())
					requireIs(t, call.err, ErrNotAcquired, ErrClosed)
					require.NoError(t, r.wait(t).err)
					assert.Equal(t, c.took, r.took)
					time.Sleep(time.Second)
					synctest.Wait()
					requireNothingLeft(t, e)
				})
			})
		}
	}
}

// A holder whose release is under way when the Locker closes has returned: its
// release is awaited as long as its margin, and is a release.
func TestCloseDuringARelease(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		locker := newLocker(t, l)
		lock := mustAcquire(t, locker, "n")
		l.intercept(deletes.all(fault{replyDelay: time.Second}))
		release := background(func(r *running) { r.err = lock.Release(t.Context()) })
		synctest.Wait()
		r := closeLater(locker)
		require.NoError(t, r.wait(t).err)
		assert.Equal(t, time.Second, r.took)
		require.NoError(t, release.wait(t).err)
		requireNothingLeft(t, e)
	})
}

// A session's lease is not the Locker's to revoke: its keys are deleted one by
// one, those of holders that do not stop after the margin.
func TestCloseOnAnAdoptedLease(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		session := newSession(t, l, 15)
		locker := newLocker(t, l, WithSession(session))
		stops, goesOn := mustAcquire(t, locker, "stops"), mustAcquire(t, locker, "goes-on")
		go func() {
			<-stops.Context().Done()
			time.Sleep(time.Second)
			_ = stops.Release(context.Background())
		}()
		start := time.Now()
		r := closeLater(locker)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		keys := e.keys("fencelock/")
		require.Len(t, keys, 1)
		assert.Equal(t, goesOn.entry.key, string(keys[0].Key))
		require.NoError(t, r.wait(t).err)
		assert.Equal(t, 3*time.Second, time.Since(start))
		assert.Empty(t, e.keys("fencelock/"))
		assert.Contains(t, e.expiries(), session.Lease())
		require.ErrorIs(t, goesOn.Release(t.Context()), ErrLost)
		assert.Empty(t, l.requests(fakeRevoke))
	})
}

// Shutdown takes no new work, waits for the holders for as long as it may, and
// goes on renewing for them.
func TestShutdownWaitsForHolders(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		locker := newLocker(t, l, WithTTL(6*time.Second))
		lock := mustAcquire(t, locker, "n")
		waiter := acquireLater(t.Context(), locker, "n")
		time.Sleep(time.Second)
		shutdown := background(func(r *running) { r.err = locker.Shutdown(within(t, time.Hour)) })
		require.True(t, waiter.isDone())
		requireIs(t, waiter.err, ErrNotAcquired, ErrClosed)
		for _, call := range acquiringCalls(t, locker) {
			requireIs(t, call(t.Context(), "m"), ErrClosed)
		}
		time.Sleep(20 * time.Minute)
		require.False(t, shutdown.isDone())
		require.NoError(t, lock.Err())
		assert.Len(t, e.keys("fencelock/"), 1, "the waiter's key is gone")

		require.NoError(t, lock.Release(t.Context()))
		require.NoError(t, shutdown.wait(t).err)
		assert.Equal(t, 20*time.Minute, shutdown.took)
		requireNothingLeft(t, e)
	})
}

// When its time is over Shutdown returns at once. The holders are told then, and
// have the margin, while closing goes on in the background.
func TestShutdownWithoutTime(t *testing.T) {
	for name, frozen := range map[string]bool{"etcd answers": false, "etcd does not": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
				locker := newLocker(t, l)
				lock := mustAcquire(t, locker, "n")
				if frozen {
					l.cut()
				}
				start := time.Now()
				err := locker.Shutdown(within(t, 2*time.Second))
				assert.Equal(t, 2*time.Second, time.Since(start))
				requireIs(t, err, context.DeadlineExceeded)
				assert.ErrorContains(t, err, "wait for it with Close")
				synctest.Wait()
				assert.Equal(t, LostClosed, lostBy(t, lock))
				require.Empty(t, l.requests(fakeRevoke), "its holder has the margin")

				err = locker.Close()
				if frozen {
					requireIs(t, err, ErrUnconfirmed)
					assert.Equal(t, 10*time.Second, time.Since(start))
					l.heal()
					time.Sleep(15 * time.Second)
					synctest.Wait()
				} else {
					require.NoError(t, err)
					assert.Equal(t, 5*time.Second, time.Since(start))
				}
				requireNothingLeft(t, e)
				require.ErrorIs(t, lock.Release(t.Context()), ErrLost)
			})
		})
	}
}

// Its time can also end while it closes: etcd does not answer the revoke.
func TestShutdownEndsWhileItCloses(t *testing.T) {
	inBubble(t, func(t *testing.T, e *fakeEtcd, l *fakeLink) {
		locker := newLocker(t, l)
		lock := mustAcquire(t, locker, "n")
		l.intercept(only(fakeRevoke, fault{loseRequest: true}))
		shutdown := background(func(r *running) { r.err = locker.Shutdown(within(t, 2*time.Second)) })
		time.Sleep(time.Second)
		require.NoError(t, lock.Release(t.Context()))
		requireIs(t, shutdown.wait(t).err, context.DeadlineExceeded)
		assert.Equal(t, 2*time.Second, shutdown.took)
		requireIs(t, locker.Close(), ErrUnconfirmed)
		assert.Equal(t, 6*time.Second, time.Since(shutdown.started))
		time.Sleep(15 * time.Second)
		synctest.Wait()
		requireNothingLeft(t, e)
	})
}
