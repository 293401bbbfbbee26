package main

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/fencelock/fencelock"
)

// etcdPeers returns fencelock, which is the first, and etcd's own locks.
func etcdPeers(endpoint string) []peer {
	const promise = "a majority of etcd has it on disk; the key's creation revision can be a fencing token"
	connect := func(open func(*clientv3.Client) (process, error)) func(context.Context) (process, error) {
		return func(context.Context) (process, error) {
			client, _, err := dial(endpoint)
			if err != nil {
				return nil, err
			}
			p, err := open(client)
			if err != nil {
				_ = client.Close()
				return nil, err
			}
			return p, nil
		}
	}
	return []peer{
		{"fencelock", promise + ", and is one", connect(func(client *clientv3.Client) (process, error) {
			locker, err := fencelock.New(client, fencelock.WithTTL(leaseTTL))
			return &lockerProcess{client, locker}, err
		})},
		{"mutex_session_shared", promise, connect(func(client *clientv3.Client) (process, error) {
			session, err := newSession(client)
			return &sessionProcess{client, session}, err
		})},
		{"mutex_session_each", promise + "; a session for each lock", connect(func(client *clientv3.Client) (process, error) {
			return &clientProcess{client}, nil
		})},
	}
}

func newSession(client *clientv3.Client) (*concurrency.Session, error) {
	session, err := concurrency.NewSession(client, concurrency.WithTTL(int(leaseTTL/time.Second)))
	if err != nil {
		return nil, fmt.Errorf("bench: etcd session: %w", err)
	}
	return session, nil
}

type lockerProcess struct {
	client *clientv3.Client
	locker *fencelock.Locker
}

func (p *lockerProcess) contender(name string) contender {
	return &fencelockContender{locker: p.locker, name: name}
}

func (p *lockerProcess) close() error {
	defer p.client.Close()
	return p.locker.Close()
}

type sessionProcess struct {
	client  *clientv3.Client
	session *concurrency.Session
}

func (p *sessionProcess) contender(name string) contender {
	return &mutexContender{session: p.session, mutex: concurrency.NewMutex(p.session, "mutex/"+name)}
}

func (p *sessionProcess) close() error {
	defer p.client.Close()
	return p.session.Close()
}

type clientProcess struct{ client *clientv3.Client }

func (p *clientProcess) contender(name string) contender {
	return &sessionEachContender{client: p.client, name: "mutex-each/" + name}
}

func (p *clientProcess) close() error { return p.client.Close() }

// sessionEachContender makes a session for each grant, as code does that wants to
// notice the loss of each lock by itself.
type sessionEachContender struct {
	client  *clientv3.Client
	name    string
	session *concurrency.Session
	mutex   *concurrency.Mutex
}

func (c *sessionEachContender) acquire(ctx context.Context) (int64, error) {
	session, err := newSession(c.client)
	if err != nil {
		return 0, err
	}
	c.session, c.mutex = session, concurrency.NewMutex(session, c.name)
	if err := c.mutex.Lock(ctx); err != nil {
		_ = session.Close() // the lease ends by itself where this fails
		return 0, err
	}
	return 0, nil
}

func (c *sessionEachContender) release(ctx context.Context) error {
	if err := c.mutex.Unlock(ctx); err != nil {
		return err
	}
	return c.session.Close()
}

func (c *sessionEachContender) close() error { return nil }
