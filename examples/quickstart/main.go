// Command quickstart shows what a fencing token is for, in a few seconds.
//
// Two workers share an account in a SQLite file, guarded by a lock in etcd.
// Worker A holds the lock and is cut off from etcd, so its lease expires; B is
// granted the lock and writes. Then A, which paid no attention to its cancelled
// context, writes too. The lock cannot stop that write: etcd's record is right,
// and A does not ask. The token, checked where the write lands, does stop it.
//
// What to copy is in deposit.go; the story is in story.go. The rest is the
// stage: an etcd, A's link to it, and the timeline.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"github.com/fencelock/fencelock/examples/internal/link"
	"github.com/fencelock/fencelock/examples/internal/localetcd"
)

func main() {
	endpoints := flag.String("endpoints", "", "etcd to use, as host:port,host:port; without it one is started")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, 14*time.Second)
	defer cancel()
	if err := run(ctx, os.Stdout, *endpoints); err != nil {
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer, endpoints string) (err error) {
	dir, err := os.MkdirTemp("", "fencelock-quickstart-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	if endpoints == "" {
		server, err := localetcd.Start(ctx, filepath.Join(dir, "etcd"))
		if err != nil {
			return err
		}
		defer server.Close()
		endpoints = server.Clients[0].Addr().String()
	}
	members := strings.Split(strings.ReplaceAll(endpoints, "http://", ""), ",")
	way, err := link.New(members[0])
	if err != nil {
		return err
	}
	defer way.Close()

	file := filepath.Join(dir, "account.db")
	a, err := newWorker(ctx, "A", []string{way.Addr()}, file)
	if err != nil {
		return err
	}
	defer a.close()
	b, err := newWorker(ctx, "B", members, file)
	if err != nil {
		return err
	}
	defer b.close()

	end, err := play(ctx, out, a, b, way)
	if err != nil {
		return err
	}
	applied, err := staleWrites(ctx, b.db)
	if err != nil {
		return err
	}
	refused := a.refused.Load() + b.refused.Load()
	fmt.Fprintf(out, "stale writes applied: %d, refused: %d\n", applied, refused)
	switch {
	case applied > 0:
		return errors.New("a stale write was applied")
	case refused == 0:
		return errors.New("no stale write was refused: the fence was not put to the test")
	case !end.aCancelled.Before(end.bGranted):
		return fmt.Errorf("context of worker A ended %v after B was granted the lock", end.aCancelled.Sub(end.bGranted))
	}
	return nil
}
