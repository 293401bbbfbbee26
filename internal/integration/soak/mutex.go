package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/fencelock/fencelock"
)

// unlockWithin bounds an unlock. The peer has no bound of its own.
const unlockWithin = 5 * time.Second

// mutex is the strategy peer.
type mutex struct {
	client  *clientv3.Client
	created *creations
	lock    string
	ttl     int // seconds

	current *concurrency.Session
}

func newMutex(client *clientv3.Client, lock string, ttl time.Duration) *mutex {
	m := &mutex{client: client, created: &creations{KV: client.KV}, lock: lock, ttl: int(ttl / time.Second)}
	client.KV = m.created
	return m
}

func (m *mutex) section(ctx context.Context, _ plan, work func(h hold) error) (err error) {
	session, err := m.session(ctx)
	if err != nil {
		return err
	}
	mu := concurrency.NewMutex(session, keyPrefix+m.lock)
	if err := mu.Lock(ctx); err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), unlockWithin)
		defer cancel()
		if uerr := mu.Unlock(ctx); err == nil {
			err = uerr
		}
	}()
	token, err := fencelock.ParseToken(m.lock,
		strconv.FormatInt(m.created.last, 10)+"."+strconv.FormatInt(int64(session.Lease()), 16))
	if err != nil {
		return err
	}
	return work(hold{
		ctx:   ctx,
		token: token,
		alive: func() bool {
			select {
			case <-session.Done():
				return false
			default:
				return true
			}
		},
		onLoss: func(tell func(reason string)) func() {
			stopped, over := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(over)
				select {
				case <-session.Done():
					tell("done")
				case <-stopped:
				}
			}()
			return func() {
				close(stopped)
				<-over
			}
		},
	})
}

// session returns a session that is not known to be done. The lease is granted
// here, since NewSession would do it without a bound.
func (m *mutex) session(ctx context.Context) (*concurrency.Session, error) {
	if m.current != nil {
		select {
		case <-m.current.Done():
		default:
			return m.current, nil
		}
	}
	lease, err := m.client.Grant(ctx, int64(m.ttl))
	if err != nil {
		return nil, err
	}
	session, err := concurrency.NewSession(m.client, concurrency.WithLease(lease.ID), concurrency.WithTTL(m.ttl))
	if err == nil && session == nil {
		err = fmt.Errorf("soak: no session for lease %x, and no error", lease.ID)
	}
	if err != nil {
		return nil, err
	}
	m.current = session
	return session, nil
}

func (m *mutex) close() error {
	if m.current == nil {
		return nil
	}
	// The lease of a session that is done has mostly expired.
	if err := m.current.Close(); !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return err
	}
	return nil
}

// creations notes the creation revision of the last key that a transaction put
// or found: a Mutex keeps its own to itself, and the revision it tells is that
// of whatever happened last in etcd.
type creations struct {
	clientv3.KV
	last int64
}

func (c *creations) Txn(ctx context.Context) clientv3.Txn { return creating{c.KV.Txn(ctx), c} }

type creating struct {
	clientv3.Txn
	noted *creations
}

func (t creating) If(cs ...clientv3.Cmp) clientv3.Txn   { return creating{t.Txn.If(cs...), t.noted} }
func (t creating) Then(ops ...clientv3.Op) clientv3.Txn { return creating{t.Txn.Then(ops...), t.noted} }
func (t creating) Else(ops ...clientv3.Op) clientv3.Txn { return creating{t.Txn.Else(ops...), t.noted} }

func (t creating) Commit() (*clientv3.TxnResponse, error) {
	resp, err := t.Txn.Commit()
	switch {
	case err != nil:
	case resp.Succeeded:
		t.noted.last = resp.Header.Revision
	default:
		t.noted.last = resp.Responses[0].GetResponseRange().Kvs[0].CreateRevision
	}
	return resp, err
}
