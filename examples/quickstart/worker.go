package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/sqlfence"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	_ "modernc.org/sqlite" // the database/sql driver "sqlite"
)

// worker is what a process of its own would have: an etcd client, a Locker,
// a handle on the database and the fence in it. It shares the lock and the
// file with the other worker, and nothing in memory.
type worker struct {
	name    string
	client  *clientv3.Client
	locker  *fencelock.Locker
	db      *sql.DB
	fence   *sqlfence.Fence
	refused atomic.Int64 // stale writes, as the fence counts them
}

func newWorker(ctx context.Context, name string, endpoints []string, file string) (w *worker, err error) {
	w = &worker{name: name}
	defer func() {
		if err != nil {
			w.close()
			err = fmt.Errorf("worker %s: %w", name, err)
		}
	}()

	w.client, err = clientv3.New(clientv3.Config{Endpoints: endpoints, Logger: zap.NewNop()})
	if err != nil {
		return w, err
	}
	w.locker, err = fencelock.New(w.client,
		fencelock.WithTTL(3*time.Second), // short, for a short story; the default of 15 s suits most work
		fencelock.WithLabel("worker "+name),
		fencelock.WithLogger(slog.New(slog.DiscardHandler))) // the timeline says it; leave this out
	if err != nil {
		return w, err
	}

	// Two processes that write to one SQLite file wait for each other instead
	// of failing at once.
	w.db, err = sql.Open("sqlite", "file:"+file+"?_pragma=busy_timeout(5000)")
	if err != nil {
		return w, err
	}
	if _, err = w.db.ExecContext(ctx, tables); err != nil {
		return w, fmt.Errorf("create the tables: %w", err)
	}
	w.fence, err = sqlfence.New(w.db, sqlfence.SQLite, sqlfence.WithHooks(fencelock.Hooks{
		TokenRejected: func(info fencelock.TokenRejectedInfo) {
			if errors.Is(info.Err, fencelock.ErrStale) {
				w.refused.Add(1)
			}
		},
	}))
	if err != nil {
		return w, err
	}
	return w, w.fence.Migrate(ctx)
}

func (w *worker) close() {
	if w.locker != nil {
		_ = w.locker.Close()
	}
	if w.client != nil {
		_ = w.client.Close()
	}
	if w.db != nil {
		_ = w.db.Close()
	}
}
