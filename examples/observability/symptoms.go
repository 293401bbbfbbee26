package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/examples/internal/link"
	"github.com/fencelock/fencelock/httpfence"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"golang.org/x/sync/errgroup"
)

// symptom is one thing that can be seen on the page. The locks are named after it, so it
// has a label of its own.
type symptom struct {
	name  string
	make  func(context.Context, *stage) error
	shows []series // above 0 when it was made once
}

var symptoms = []symptom{
	{"calm", calm, []series{
		of("acquisitions_total", "lock_label", "calm", "result", "granted"),
		of("hold_duration_seconds", "lock_label", "calm", "hold_outcome", "released"),
		of("hold_ttl_ratio", "lock_label", "calm", "hold_outcome", "released"),
		of("releases_total", "lock_label", "calm", "release_confirmed", "true"),
		of("release_duration_seconds", "lock_label", "calm", "release_confirmed", "true"),
		of("lease_renewals_total", "renewal_answered", "true"),
		of("lease_renewal_duration_seconds"),
		of("lease_margin_seconds"),
		of("lease_margin_ratio"),
	}},
	{"busy", busy, []series{
		of("acquisitions_total", "lock_label", "busy", "result", "held"),
		of("acquisitions_total", "lock_label", "busy", "result", "wait-expired"),
		of("acquisitions_total", "lock_label", "busy", "result", "canceled"),
		of("wait_duration_seconds", "lock_label", "busy", "wait_granted", "true"),
		of("wait_duration_seconds", "lock_label", "busy", "wait_granted", "false"),
	}},
	{"queue", queue, []series{of("wait_duration_seconds", "lock_label", "queue", "wait_granted", "true")}},
	{"ghost", ghost, []series{of("acquisitions_total", "lock_label", "ghost", "result", "wait-expired")}},
	{"unreachable", unreachable, []series{of("acquisitions_total", "lock_label", "unreachable", "result", "unreachable")}},
	{"leaderless", leaderless, []series{of("acquisitions_total", "lock_label", "leaderless", "result", "unreachable")}},
	{"full", full, []series{of("acquisitions_total", "lock_label", "full", "result", "quota")}},
	{"denied", denied, []series{
		of("acquisitions_total", "lock_label", "denied", "result", "denied"),
		of("losses_total", "lock_label", "denied", "loss_reason", "denied"),
	}},
	{"closed", closed, []series{
		of("losses_total", "lock_label", "closed", "loss_reason", "closed"),
		of("acquisitions_total", "lock_label", "closed", "result", "closed"),
	}},
	{"evicted", evicted, []series{
		of("losses_total", "lock_label", "evicted", "loss_reason", "deleted", "loss_running", "true"),
		of("work_after_loss_duration_seconds", "lock_label", "evicted", "loss_reason", "deleted"),
		of("hold_duration_seconds", "lock_label", "evicted", "hold_outcome", "lost"),
		of("fence_rejections_total", "fence_name", "orders-db", "rejection_reason", "stale"),
	}},
	{"revoked", revoked, []series{of("losses_total", "lock_label", "revoked")}},
	{"session", session, []series{of("losses_total", "lock_label", "session")}},
	{"maxhold", maxHold, []series{of("losses_total", "lock_label", "maxhold", "loss_reason", "max-hold")}},
	{"cut", cut, []series{
		of("losses_total", "lock_label", "cut", "loss_reason", "expired"),
		of("lease_renewals_total", "renewal_answered", "false"),
	}},
	{"slow", slow, []series{of("acquisitions_total", "lock_label", "slow", "result", "granted")}},
	{"unconfirmed", unconfirmed, []series{
		of("releases_total", "lock_label", "unconfirmed", "release_confirmed", "false"),
		of("hold_duration_seconds", "lock_label", "unconfirmed", "hold_outcome", "unconfirmed"),
	}},
	{"unused", unused, []series{of("tokens_unused_total", "lock_label", "unused")}},
	{"rejected", rejected, []series{
		of("fence_rejections_total", "fence_name", "orders-db", "rejection_reason", "no-token"),
		of("fence_rejections_total", "fence_name", "orders-db", "rejection_reason", "scope"),
		of("fence_rejections_total", "fence_name", "orders-db", "rejection_reason", "invalid"),
	}},
}

// expect returns an error unless err is the fault that was to be made.
func expect(err, want error) error {
	if !errors.Is(err, want) {
		return fmt.Errorf("it should have ended with %q: %w", want, err)
	}
	return nil
}

// calm is how it should be: a hold that is renewed once or twice, and a fence that has
// nothing to refuse.
func calm(ctx context.Context, s *stage) error {
	fence := fencelock.Fence{Hooks: s.fence}
	return s.with(s.client, func(l *fencelock.Locker) error {
		return l.Do(ctx, "calm/report", func(ctx context.Context, token fencelock.Token) error {
			pause(ctx, ttl*2/3)
			return fence.Do(token, func() error { return nil })
		})
	}, fencelock.WithTTL(ttl))
}

// busy is a lock that others want: one does not wait, one not for long, one gives up,
// and one gets it.
func busy(ctx context.Context, s *stage) error {
	return s.with(s.client, func(l *fencelock.Locker) error {
		const name = "busy/door"
		held, err := l.Acquire(ctx, name)
		if err != nil {
			return err
		}
		if _, err := l.TryAcquire(ctx, name); !errors.Is(err, fencelock.ErrHeld) {
			return expect(err, fencelock.ErrHeld)
		}
		if _, err := l.Acquire(ctx, name, fencelock.MaxWait(100*time.Millisecond)); !errors.Is(err, fencelock.ErrHeld) {
			return expect(err, fencelock.ErrHeld)
		}
		waiting := of("lock_waiters", "lock_label", "busy")
		impatient, leave := context.WithCancel(ctx)
		defer leave()
		var g errgroup.Group
		g.Go(func() error {
			_, err := l.Acquire(impatient, name)
			return expect(err, context.Canceled)
		})
		if err := s.await(ctx, waiting, 1); err != nil {
			return err
		}
		leave()
		if err := g.Wait(); err != nil {
			return err
		}
		g.Go(func() error {
			next, err := l.Acquire(ctx, name)
			if err != nil {
				return err
			}
			return next.Release(ctx)
		})
		if err := s.await(ctx, waiting, 1); err != nil {
			return err
		}
		return errors.Join(held.Release(ctx), g.Wait())
	})
}

// queue is a lock that takes long to get because too many want it, each for a while.
func queue(ctx context.Context, s *stage) error {
	const contenders = 8
	return s.with(s.client, func(l *fencelock.Locker) error {
		var g errgroup.Group
		for range contenders {
			g.Go(func() error {
				return l.DoAdvisory(ctx, "queue/counter", func(ctx context.Context) error {
					pause(ctx, s.patience/contenders)
					return nil
				})
			})
		}
		return g.Wait()
	})
}

// ghost is a lock whose record names a holder that is in no metrics: here a key with a
// lease that somebody keeps alive and nobody works under.
func ghost(ctx context.Context, s *stage) (err error) {
	const name = "ghost/job"
	lease, err := s.client.Grant(ctx, int64((10*time.Minute)/time.Second))
	if err != nil {
		return err
	}
	defer func() {
		rctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_, rerr := s.client.Revoke(rctx, lease.ID)
		err = errors.Join(err, rerr)
	}()
	key := prefix + url.PathEscape(name) + "/" + fmt.Sprintf("%x", int64(lease.ID))
	if _, err := s.client.Put(ctx, key, "", clientv3.WithLease(lease.ID)); err != nil {
		return err
	}
	return s.with(s.client, func(l *fencelock.Locker) error {
		var g errgroup.Group
		g.Go(func() error {
			_, err := l.Acquire(ctx, name, fencelock.MaxWait(s.patience+time.Second))
			return expect(err, fencelock.ErrHeld)
		})
		err := errors.Join(s.await(ctx, of("lock_waiters", "lock_label", "ghost"), 1),
			s.await(ctx, of("lock_held", "lock_label", "ghost"), 0))
		return errors.Join(err, g.Wait())
	})
}

// refusedBy acquires where that cannot succeed.
func refusedBy(ctx context.Context, s *stage, client *clientv3.Client, name string) error {
	return s.with(client, func(l *fencelock.Locker) error {
		_, err := l.Acquire(ctx, name)
		return expect(err, fencelock.ErrNotAcquired)
	})
}

// unreachable: nobody answers in the time that the caller has.
func unreachable(ctx context.Context, s *stage) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return refusedBy(ctx, s, s.nobody, "unreachable/job")
}

// leaderless: a member is there and has no majority. It keeps what it is asked until
// there is a leader or the caller's time is over, so that is unreachable too; the result
// no-quorum is of requests that were under way when the leader was lost.
func leaderless(ctx context.Context, s *stage) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return refusedBy(ctx, s, s.leaderless, "leaderless/job")
}

// full: etcd is out of space.
func full(ctx context.Context, s *stage) error { return refusedBy(ctx, s, s.full, "full/job") }

// denied: one user may do nothing, and another's permission is withdrawn while a lock
// is held, so that its lease cannot be renewed.
func denied(ctx context.Context, s *stage) error {
	if err := refusedBy(ctx, s, s.denied, "denied/job"); err != nil {
		return err
	}
	err := s.with(s.worker, func(l *fencelock.Locker) error {
		return untilLost(ctx, l, "denied/work", fencelock.LostDenied, func(*fencelock.Lock) error { return s.forbidWorker(ctx) })
	}, fencelock.WithTTL(ttl))
	return errors.Join(err, s.allowWorker(ctx))
}

// untilLost acquires a lock, has something done that loses it, and waits for that. No
// reason is any.
func untilLost(ctx context.Context, l *fencelock.Locker, name string, reason fencelock.Reason, lose func(*fencelock.Lock) error) error {
	held, err := l.Acquire(ctx, name)
	if err != nil {
		return err
	}
	if err := lose(held); err != nil {
		return errors.Join(err, held.Release(ctx))
	}
	select {
	case <-held.Context().Done():
	case <-ctx.Done():
	}
	err = held.Release(ctx)
	var loss *fencelock.LostError
	if !errors.As(err, &loss) || reason != "" && loss.Reason != reason {
		return fmt.Errorf("the lock should have been lost, reason %q: %w", reason, err)
	}
	return nil
}

// closed: the Locker goes while its lock is held.
func closed(ctx context.Context, s *stage) error {
	return s.with(s.client, func(l *fencelock.Locker) error {
		var g errgroup.Group
		err := untilLost(ctx, l, "closed/job", fencelock.LostClosed, func(*fencelock.Lock) error {
			g.Go(func() error {
				_, err := l.Acquire(ctx, "closed/job")
				return expect(err, fencelock.ErrClosed)
			})
			if err := s.await(ctx, of("lock_waiters", "lock_label", "closed"), 1); err != nil {
				return err
			}
			g.Go(l.Close)
			return nil
		})
		return errors.Join(err, g.Wait())
	})
}

// evicted: an operator takes the lock from one who does not stop, and whose late write
// is refused, because the next holder has been at the fence.
func evicted(ctx context.Context, s *stage) error {
	const name = "evicted/orders"
	fence := fencelock.Fence{Hooks: s.fence}
	started, superseded := make(chan fencelock.Token, 1), make(chan struct{})
	return s.with(s.client, func(l *fencelock.Locker) error {
		var g errgroup.Group
		g.Go(func() error {
			defer close(superseded)
			var token fencelock.Token
			select {
			case token = <-started:
			case <-ctx.Done():
				return ctx.Err()
			}
			if err := l.Evict(ctx, name, token); err != nil {
				return err
			}
			return l.Do(ctx, name, func(_ context.Context, token fencelock.Token) error { return fence.Advance(token) })
		})
		g.Go(func() error {
			err := l.Do(ctx, name, func(hold context.Context, token fencelock.Token) error {
				if err := fence.Advance(token); err != nil {
					return err
				}
				started <- token
				<-superseded
				<-hold.Done() // as the caller's context does, so this ends
				pause(ctx, ttl)
				return fence.Do(token, func() error { return nil })
			})
			return errors.Join(expect(err, fencelock.ErrLost), expect(err, fencelock.ErrStale))
		})
		return g.Wait()
	}, fencelock.WithTTL(ttl))
}

// revoked: somebody revokes the lease. Its keys go with it, and a holder may see that
// first.
func revoked(ctx context.Context, s *stage) error {
	return s.with(s.client, func(l *fencelock.Locker) error {
		return untilLost(ctx, l, "revoked/job", "", func(*fencelock.Lock) error {
			keys, err := s.client.Get(ctx, prefix+url.PathEscape("revoked/job")+"/", clientv3.WithFirstCreate()...)
			if err != nil {
				return err
			}
			if len(keys.Kvs) == 0 {
				return errors.New("the lock has no key")
			}
			_, err = s.client.Revoke(ctx, clientv3.LeaseID(keys.Kvs[0].Lease))
			return err
		})
	}, fencelock.WithTTL(ttl))
}

// session: the locks stand on the lease of a session, which its owner closes.
func session(ctx context.Context, s *stage) error {
	session, err := concurrency.NewSession(s.client, concurrency.WithTTL(int(ttl/time.Second)))
	if err != nil {
		return err
	}
	return s.with(s.client, func(l *fencelock.Locker) error {
		return untilLost(ctx, l, "session/job", "", func(*fencelock.Lock) error { return session.Close() })
	}, fencelock.WithSession(session))
}

// maxHold: the work takes longer than it may.
func maxHold(ctx context.Context, s *stage) error {
	return s.with(s.client, func(l *fencelock.Locker) error {
		err := l.Do(ctx, "maxhold/job", func(ctx context.Context, token fencelock.Token) error {
			token.Revision()
			<-ctx.Done()
			return ctx.Err()
		}, fencelock.MaxHold(200*time.Millisecond))
		return expect(err, fencelock.ErrLost)
	})
}

// cut: no renewal is answered any more, and the lock is lost in time. An attempt is
// given up after half of the TTL, which with a smaller margin is before the loss.
func cut(ctx context.Context, s *stage) error {
	return s.linked(func(l *fencelock.Locker, way *link.Link) error {
		return untilLost(ctx, l, "cut/job", fencelock.LostExpired, func(k *fencelock.Lock) error {
			way.Cut()
			context.AfterFunc(k.Context(), way.Restore)
			return nil
		})
	}, fencelock.WithMargin(ttl/20))
}

// slow: a renewal is answered when little is left to the deadline.
func slow(ctx context.Context, s *stage) error {
	return s.linked(func(l *fencelock.Locker, way *link.Link) error {
		held, err := l.Acquire(ctx, "slow/job")
		if err != nil {
			return err
		}
		way.Cut()
		pause(ctx, ttl*13/20) // of the 16/20 that the deadline is away
		way.Restore()
		pause(ctx, ttl/10)
		if err := held.Release(ctx); err != nil && !errors.Is(err, fencelock.ErrLost) {
			return err
		}
		return nil // on a busy machine it is lost
	})
}

// unconfirmed: etcd does not answer the release.
func unconfirmed(ctx context.Context, s *stage) error {
	return s.linked(func(l *fencelock.Locker, way *link.Link) error {
		held, err := l.Acquire(ctx, "unconfirmed/job")
		if err != nil {
			return err
		}
		way.Cut()
		defer way.Restore()
		hurry, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		defer cancel()
		return expect(held.Release(hurry), fencelock.ErrUnconfirmed)
	})
}

// unused: a callback that has a token and does nothing with it.
func unused(ctx context.Context, s *stage) error {
	return s.with(s.client, func(l *fencelock.Locker) error {
		return l.Do(ctx, "unused/job", func(context.Context, fencelock.Token) error { return nil })
	})
}

// rejected: clients that send no token, another lock's, and none at all but a text; at
// a resource in memory and at one behind HTTP.
func rejected(ctx context.Context, s *stage) error {
	fence := fencelock.Fence{Hooks: s.fence}
	if err := expect(fence.Advance(fencelock.Token{}), fencelock.ErrNoToken); err != nil {
		return err
	}
	err := s.with(s.client, func(l *fencelock.Locker) error {
		return l.Do(ctx, "rejected/1", func(ctx context.Context, token fencelock.Token) error {
			if err := fence.Advance(token); err != nil {
				return err
			}
			return l.Do(ctx, "rejected/2", func(_ context.Context, other fencelock.Token) error {
				return expect(fence.Advance(other), fencelock.ErrScope)
			})
		})
	})
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, s.url+"/orders/7", strings.NewReader("{}"))
	if err != nil {
		return err
	}
	req.Header.Set(httpfence.Header, "no token at all")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return expect(httpfence.CheckResponse(resp), fencelock.ErrInvalidToken)
}
