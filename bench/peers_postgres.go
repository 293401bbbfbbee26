package main

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"

	"github.com/jackc/pgx/v5/pgxpool"
)

// startPostgres starts a server with its own settings, which are durable. An advisory
// lock writes nothing: it is in the memory of one server, and ends with its session.
func startPostgres(ctx context.Context, dir string) (*server, []peer, error) {
	programs, err := postgresPrograms()
	if err != nil {
		return nil, nil, err
	}
	s := &server{name: "postgres", users: []string{"postgres", "nobody"}}
	data := func() string { return filepath.Join(s.dir, "data") }
	s.prepare = func() error {
		out, err := s.child(filepath.Join(programs, "initdb"), "--pgdata", data(), "--username", "bench", "--auth", "trust",
			"--encoding", "UTF8", "--locale", "C", "--no-sync", "--no-instructions").CombinedOutput()
		if err != nil {
			return fmt.Errorf("initdb: %w\n%s", err, out)
		}
		return nil
	}
	s.command = func() *exec.Cmd {
		return s.child(filepath.Join(programs, "postgres"), "-D", data(), "-h", "127.0.0.1", "-p", fmt.Sprint(s.port),
			"-c", "unix_socket_directories=", "-c", "max_connections=200")
	}
	open := func(ctx context.Context) (*pgxpool.Pool, error) {
		return pgxpool.New(ctx, fmt.Sprintf("postgres://bench@%s/postgres?sslmode=disable&pool_max_conns=%d", s.address(), spread))
	}
	s.ready = func(ctx context.Context) error {
		pool, err := open(ctx)
		if err != nil {
			return err
		}
		defer pool.Close()
		return pool.Ping(ctx)
	}
	if err := s.start(ctx, dir); err != nil {
		return nil, nil, err
	}
	return s, []peer{{"postgres_advisory", "in the memory of one PostgreSQL server, for as long as the connection stands; no fencing token",
		func(ctx context.Context) (process, error) {
			pool, err := open(ctx)
			if err != nil {
				return nil, err
			}
			return &postgresProcess{pool}, nil
		}}}, nil
}

// postgresPrograms returns the folder with the server's programs: that of PATH, or
// Debian's, which is not in PATH.
func postgresPrograms() (string, error) {
	if program, err := exec.LookPath("initdb"); err == nil {
		return filepath.Dir(program), nil
	}
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if err != nil || len(found) == 0 {
		return "", fmt.Errorf("initdb is neither in PATH nor in /usr/lib/postgresql/*/bin: %w", errNoServer)
	}
	return filepath.Dir(found[len(found)-1]), nil
}

type postgresProcess struct{ pool *pgxpool.Pool }

func (p *postgresProcess) contender(name string) contender {
	return &advisoryContender{pool: p.pool, name: name}
}

func (p *postgresProcess) close() error {
	p.pool.Close()
	return nil
}

// advisoryContender keeps one connection from acquire to release: the lock is its
// session's, and another one could not release it.
type advisoryContender struct {
	pool *pgxpool.Pool
	name string
	held *pgxpool.Conn
}

func (c *advisoryContender) acquire(ctx context.Context) (int64, error) {
	conn, err := c.pool.Acquire(ctx)
	if err != nil {
		return 0, err
	}
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock(hashtextextended($1, 0))", c.name); err != nil {
		conn.Release()
		return 0, err
	}
	c.held = conn
	return 0, nil
}

func (c *advisoryContender) release(ctx context.Context) error {
	defer c.held.Release()
	var held bool
	if err := c.held.QueryRow(ctx, "SELECT pg_advisory_unlock(hashtextextended($1, 0))", c.name).Scan(&held); err != nil {
		return err
	}
	if !held {
		return fmt.Errorf("bench: the connection does not hold the advisory lock %q", c.name)
	}
	return nil
}

func (c *advisoryContender) close() error { return nil }
