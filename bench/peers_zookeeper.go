package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/go-zookeeper/zk"
)

// startZooKeeper starts one server with Debian's jars and ZooKeeper's own settings: it
// has each write on disk before it answers.
func startZooKeeper(ctx context.Context, dir string) (*server, []peer, error) {
	java, err := exec.LookPath("java")
	if err != nil {
		return nil, nil, fmt.Errorf("java is not in PATH, so no ZooKeeper: %w", errNoServer)
	}
	const jars = "/usr/share/java"
	if _, err := os.Stat(filepath.Join(jars, "zookeeper.jar")); err != nil {
		return nil, nil, fmt.Errorf("zookeeper.jar is not in %s: %w", jars, errNoServer)
	}
	s := &server{name: "zookeeper"}
	config := func() string { return filepath.Join(s.dir, "zoo.cfg") }
	s.command = func() *exec.Cmd {
		return s.child(java, "-cp", filepath.Join(jars, "*"), "-Dzookeeper.admin.enableServer=false",
			"org.apache.zookeeper.server.ZooKeeperServerMain", config())
	}
	s.configure = func() error {
		text := fmt.Sprintf("dataDir=%s\nclientPortAddress=127.0.0.1\nclientPort=%d\ntickTime=2000\nmaxClientCnxns=0\nmaxSessionTimeout=%d\n",
			filepath.Join(s.dir, "data"), s.port, leaseTTL.Milliseconds())
		return os.WriteFile(config(), []byte(text), 0o644)
	}
	open := func(ctx context.Context) (*zk.Conn, error) {
		conn, events, err := zk.Connect([]string{s.address()}, leaseTTL, zk.WithLogger(silent{}))
		if err != nil {
			return nil, err
		}
		for {
			select {
			case e := <-events:
				if e.State == zk.StateHasSession {
					return conn, nil
				}
			case <-ctx.Done():
				conn.Close()
				return nil, context.Cause(ctx)
			}
		}
	}
	s.ready = func(ctx context.Context) error {
		conn, err := open(ctx)
		if err == nil {
			conn.Close()
		}
		return err
	}
	if err := s.start(ctx, dir); err != nil {
		return nil, nil, err
	}
	return s, []peer{{"zookeeper", "one ZooKeeper server that has each write on disk before it answers; the node's czxid can be a fencing token",
		func(ctx context.Context) (process, error) {
			ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
			defer cancel()
			conn, err := open(ctx)
			if err != nil {
				return nil, fmt.Errorf("session: %w", err)
			}
			return &zooKeeperProcess{conn}, nil
		}}}, nil
}

// silent keeps the client's log off the output.
type silent struct{}

func (silent) Printf(string, ...any) {}

type zooKeeperProcess struct{ conn *zk.Conn }

func (p *zooKeeperProcess) contender(name string) contender {
	return &zooKeeperContender{conn: p.conn, lock: zk.NewLock(p.conn, "/locks/"+name, zk.WorldACL(zk.PermAll))}
}

func (p *zooKeeperProcess) close() error {
	p.conn.Close()
	return nil
}

type zooKeeperContender struct {
	conn *zk.Conn
	lock *zk.Lock
}

// acquire ends the session with ctx, which is the only way out of a Lock that waits.
func (c *zooKeeperContender) acquire(ctx context.Context) (int64, error) {
	stop := context.AfterFunc(ctx, c.conn.Close)
	err := c.lock.Lock()
	if !stop() && err != nil {
		err = errors.Join(context.Cause(ctx), err)
	}
	return 0, err
}

func (c *zooKeeperContender) release(context.Context) error { return c.lock.Unlock() }

func (c *zooKeeperContender) close() error { return nil }
