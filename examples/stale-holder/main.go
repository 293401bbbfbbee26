//go:build unix

// Command stale-holder stops a process for longer than its lock lasts, at the
// worst place there is: after it has seen that it still holds the lock, and
// before it writes.
//
// An account in a SQLite file is guarded by a lock in etcd. The program starts
// itself again as etcd, as the holder A and as the rival B, each a process of
// its own. A takes the lock, reads the balance, and asks its context whether the
// lock is still its own; it is. There A is stopped with SIGSTOP, until B has got
// the lock and made its deposit, and then continued. What A knows is as true to
// it as before, so it writes.
//
// That is played twice: with DoAdvisory and a plain write, where B's deposit is
// overwritten, and with Do and a fenced write, which the database refuses. No
// further check in A would help the first, for A can be stopped after that one.
//
// What to copy, and what not, is in worker.go.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/fencelock/fencelock/examples/internal/localetcd"
	"github.com/fencelock/fencelock/examples/internal/process"
	"github.com/fencelock/fencelock/examples/internal/timeline"
)

var roles = process.Roles{"etcd": localetcd.Role, "holder": holder, "rival": rival}

func main() {
	process.Main(roles)

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, 19*time.Second)
	defer cancel()
	if err := run(ctx, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "stale-holder:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer) (err error) {
	dir, err := os.MkdirTemp("", "fencelock-stale-holder-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	s := &stage{out: out, time: timeline.New(out)}
	s.group = process.NewGroup(s.hear)
	defer s.group.Close()
	s.endpoint, err = localetcd.StartChild(ctx, s.group, "etcd", filepath.Join(dir, "etcd"))
	if err != nil {
		return err
	}

	unfenced, err := s.act(ctx, "first act: DoAdvisory, and a write that trusts the check", useAdvisory, filepath.Join(dir, "unfenced.db"))
	if err != nil {
		return err
	}
	fenced, err := s.act(ctx, "second act: Do, and a write that the fence checks", useFenced, filepath.Join(dir, "fenced.db"))
	if err != nil {
		return err
	}

	fmt.Fprintln(out)
	fmt.Fprintln(out, "DoAdvisory, unfenced:", unfenced)
	fmt.Fprintln(out, "Do, fenced:          ", fenced)
	switch {
	case fenced.stale > 0 || fenced.lost() != 0:
		return errors.New("the fence let a stale write pass")
	case fenced.refused == 0:
		return errors.New("no stale write was refused: the fence was not put to the test")
	case unfenced.stale == 0 || unfenced.lost() == 0:
		return errors.New("without the fence nothing was damaged: the stop did no harm, so the fence has proved nothing")
	}
	return nil
}
