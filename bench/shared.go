package main

import (
	"sync"

	"github.com/fencelock/fencelock"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// newShared returns a kind whose contenders share one Locker for each client, as
// goroutines of one process do.
func newShared() kind {
	var mu sync.Mutex
	lockers := make(map[*clientv3.Client]*sharedLocker)
	return func(client *clientv3.Client, name string) (contender, error) {
		mu.Lock()
		defer mu.Unlock()
		shared := lockers[client]
		if shared == nil {
			locker, err := fencelock.New(client, fencelock.WithTTL(leaseTTL))
			if err != nil {
				return nil, err
			}
			shared = &sharedLocker{Locker: locker}
			lockers[client] = shared
		}
		shared.mu.Lock()
		defer shared.mu.Unlock()
		shared.users++
		return &sharedContender{fencelockContender{locker: shared.Locker, name: name}, shared}, nil
	}
}

type sharedLocker struct {
	*fencelock.Locker
	mu    sync.Mutex
	users int
}

type sharedContender struct {
	fencelockContender
	shared *sharedLocker
}

// close closes the Locker with the last of its contenders.
func (c *sharedContender) close() error {
	c.shared.mu.Lock()
	c.shared.users--
	last := c.shared.users == 0
	c.shared.mu.Unlock()
	if !last {
		return nil
	}
	return c.shared.Close()
}
