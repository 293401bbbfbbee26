package main

import (
	"context"
	"fmt"
	"math"
	"os/exec"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

func startRedisAlways(ctx context.Context, dir string) (*server, []peer, error) {
	return startRedis(ctx, dir, "fsync_always", "one Redis server that has each write on disk before it answers; no fencing token",
		"--appendonly", "yes", "--appendfsync", "always")
}

func startRedisOff(ctx context.Context, dir string) (*server, []peer, error) {
	return startRedis(ctx, dir, "in_memory", "one Redis server that writes nothing to disk: a restart forgets who holds; no fencing token",
		"--appendonly", "no")
}

// startRedis starts one server: neither library waits for a replica.
func startRedis(ctx context.Context, dir, name, promise string, settings ...string) (*server, []peer, error) {
	program, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, nil, fmt.Errorf("redis-server is not in PATH (%s): %w", name, errNoServer)
	}
	s := &server{name: "redis-server"}
	s.command = func() *exec.Cmd {
		args := []string{"--bind", "127.0.0.1", "--port", fmt.Sprint(s.port), "--dir", s.dir, "--save", "", "--daemonize", "no"}
		return s.child(program, append(args, settings...)...)
	}
	open := func() *redis.Client {
		return redis.NewClient(&redis.Options{Addr: s.address(), PoolSize: spread})
	}
	s.ready = func(ctx context.Context) error {
		client := open()
		defer client.Close()
		return client.Ping(ctx).Err()
	}
	if err := s.start(ctx, dir); err != nil {
		return nil, nil, err
	}
	return s, []peer{
		{"redislock_" + name, promise + "; polled every 100 ms, as its documentation has it", func(context.Context) (process, error) {
			client := open()
			return &redisProcess{client, func(name string) contender {
				return &redislockContender{client: redislock.New(client), name: name}
			}}, nil
		}},
		{"redsync_" + name, promise + "; polled after 50 to 250 ms, its default", func(context.Context) (process, error) {
			client := open()
			// Its default is 32 tries, after which a waiter gives up.
			locks := redsync.New(goredis.NewPool(client))
			return &redisProcess{client, func(name string) contender {
				return &redsyncContender{locks.NewMutex("redsync/"+name, redsync.WithExpiry(leaseTTL), redsync.WithTries(math.MaxInt32))}
			}}, nil
		}},
	}, nil
}

type redisProcess struct {
	client *redis.Client
	make   func(name string) contender
}

func (p *redisProcess) contender(name string) contender { return p.make(name) }

func (p *redisProcess) close() error { return p.client.Close() }

type redislockContender struct {
	client *redislock.Client
	name   string
	held   *redislock.Lock
}

func (c *redislockContender) acquire(ctx context.Context) (int64, error) {
	held, err := c.client.Obtain(ctx, "redislock/"+c.name, leaseTTL,
		&redislock.Options{RetryStrategy: redislock.LinearBackoff(100 * time.Millisecond)})
	c.held = held
	return 0, err
}

func (c *redislockContender) release(ctx context.Context) error { return c.held.Release(ctx) }

func (c *redislockContender) close() error { return nil }

type redsyncContender struct{ mutex *redsync.Mutex }

func (c *redsyncContender) acquire(ctx context.Context) (int64, error) {
	return 0, c.mutex.LockContext(ctx)
}

func (c *redsyncContender) release(ctx context.Context) error {
	ok, err := c.mutex.UnlockContext(ctx)
	if err == nil && !ok {
		return fmt.Errorf("bench: redsync lost the lock %q", c.mutex.Name())
	}
	return err
}

func (c *redsyncContender) close() error { return nil }
