package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/fencelock/fencelock"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// leaseTTL is so long that no lease is renewed while something is measured:
// fencelock renews after 20 s, an etcd session too, and a measurement takes a
// few seconds. So what is counted is the lock's own traffic, and no renewal
// falls into a latency.
const leaseTTL = 60 * time.Second

// contender is one who takes a lock on one name and gives it back, as one
// process would. It is used by one goroutine.
type contender interface {
	// acquire returns the fencing token's number, or 0 where there is none.
	acquire(ctx context.Context) (token int64, err error)
	release(ctx context.Context) error
	close() error
}

// kind makes contenders of one sort; client is the contender's own.
type kind func(client *clientv3.Client, name string) (contender, error)

// fencelockContender is what is judged: a Locker, with Acquire and Release
// (Do is these two and a function call).
type fencelockContender struct {
	locker *fencelock.Locker
	name   string
	held   *fencelock.Lock
}

func newFencelock(client *clientv3.Client, name string) (contender, error) {
	locker, err := fencelock.New(client, fencelock.WithTTL(leaseTTL))
	if err != nil {
		return nil, err
	}
	return &fencelockContender{locker: locker, name: name}, nil
}

func (c *fencelockContender) acquire(ctx context.Context) (int64, error) {
	held, err := c.locker.Acquire(ctx, c.name)
	if err != nil {
		return 0, err
	}
	c.held = held
	return held.Token().Revision(), nil
}

func (c *fencelockContender) release(ctx context.Context) error { return c.held.Release(ctx) }

func (c *fencelockContender) close() error { return c.locker.Close() }

// mutexContender is the peer: a concurrency.Mutex on a Session of its own.
type mutexContender struct {
	session *concurrency.Session
	mutex   *concurrency.Mutex
}

func newMutex(client *clientv3.Client, name string) (contender, error) {
	session, err := concurrency.NewSession(client, concurrency.WithTTL(int(leaseTTL/time.Second)))
	if err != nil {
		return nil, fmt.Errorf("bench: etcd session: %w", err)
	}
	return &mutexContender{session: session, mutex: concurrency.NewMutex(session, "mutex/"+name)}, nil
}

func (c *mutexContender) acquire(ctx context.Context) (int64, error) { return 0, c.mutex.Lock(ctx) }

func (c *mutexContender) release(ctx context.Context) error { return c.mutex.Unlock(ctx) }

func (c *mutexContender) close() error { return c.session.Close() }

// rawContender is the floor: the two requests no lock in etcd can do without,
// and nothing else. It excludes nobody who has to wait.
type rawContender struct {
	client *clientv3.Client
	lease  clientv3.LeaseID
	key    string
}

func newRaw(client *clientv3.Client, name string) (contender, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	lease, err := client.Grant(ctx, int64(leaseTTL/time.Second))
	if err != nil {
		return nil, fmt.Errorf("bench: etcd lease: %w", err)
	}
	return &rawContender{client: client, lease: lease.ID, key: "raw/" + name}, nil
}

func (c *rawContender) acquire(ctx context.Context) (int64, error) {
	answer, err := c.client.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(c.key), "=", 0)).
		Then(clientv3.OpPut(c.key, "", clientv3.WithLease(c.lease))).
		Commit()
	if err != nil {
		return 0, err
	}
	if !answer.Succeeded {
		return 0, fmt.Errorf("bench: key %q is taken; the raw case is for one contender", c.key)
	}
	return answer.Header.Revision, nil
}

func (c *rawContender) release(ctx context.Context) error {
	_, err := c.client.Delete(ctx, c.key)
	return err
}

func (c *rawContender) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, err := c.client.Revoke(ctx, c.lease)
	return err
}

// likeContender sends the requests a Locker sends for a cycle that nobody contends
// for, and does nothing else: no deadline, no watchdog, nobody who can leave.
type likeContender struct {
	client *clientv3.Client
	lease  clientv3.LeaseID
	queue  string
	rev    int64
}

func (c *likeContender) key() string { return fmt.Sprintf("%s%x-0", c.queue, c.lease) }

// likeValue is as long as what a Locker writes there about the holder.
var likeValue = strings.Repeat("x", 180)

func (c *likeContender) acquire(ctx context.Context) (int64, error) {
	key := c.key()
	answer, err := c.client.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
		Then(clientv3.OpPut(key, likeValue, clientv3.WithLease(c.lease)), clientv3.OpGet(c.queue, clientv3.WithPrefix(),
			clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortDescend), clientv3.WithLimit(18))).
		Else(clientv3.OpGet(c.queue, clientv3.WithFirstCreate()...)).
		Commit()
	if err != nil {
		return 0, err
	}
	if !answer.Succeeded {
		return 0, fmt.Errorf("bench: key %q is taken; this case is for one contender", key)
	}
	c.rev = answer.Header.Revision
	return c.rev, nil
}

func (c *likeContender) release(ctx context.Context) error {
	key := c.key()
	answer, err := c.client.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(key), "=", c.rev)).
		Then(clientv3.OpDelete(key)).
		Commit()
	if err == nil && !answer.Succeeded {
		err = fmt.Errorf("bench: key %q is not what was put", key)
	}
	return err
}

// readContender is the way to etcd and back: a read the member answers from its own
// memory. What a request costs beyond this is its commit.
type readContender struct {
	client *clientv3.Client
	key    string
}

func newRead(client *clientv3.Client, name string) (contender, error) {
	return &readContender{client: client, key: "read/" + name}, nil
}

func (c *readContender) acquire(ctx context.Context) (int64, error) {
	_, err := c.client.Get(ctx, c.key, clientv3.WithSerializable())
	return 0, err
}

func (c *readContender) release(context.Context) error { return nil }

func (c *readContender) close() error { return nil }
