//go:build unix

// Command singleton keeps a job running on exactly one of three processes,
// while their leaders are killed, stopped and sent away.
//
// The program starts itself again as etcd and as three members A, B and C, each
// a process of its own, which stand for the lead with Lead. Whoever has it does
// the job in short rounds and reports, before each, that its context still says
// so. At the end stands who led from when to when, by these reports. It would be
// an overlap if two members' contexts had said so at the same time, and there
// must be none. And no round of a former leader may have had an effect after
// one of its successor: that is what the token in every write is for.
//
// What to copy is in member.go.
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
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

var roles = process.Roles{"etcd": localetcd.Role, "member": member}

func main() {
	process.Main(roles)

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, 29*time.Second)
	defer cancel()
	if err := run(ctx, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "singleton:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer) (err error) {
	dir, err := os.MkdirTemp("", "fencelock-singleton-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	s := &story{time: timeline.New(out), ledger: &ledger{}, members: map[string]*process.Process{}}
	s.group = process.NewGroup(s.hear)
	defer s.group.Close()
	s.endpoint, err = localetcd.StartChild(ctx, s.group, "etcd", filepath.Join(dir, "etcd"))
	if err != nil {
		return err
	}
	failed := s.play(ctx)
	fmt.Fprintln(out)
	s.ledger.print(out, s.time)
	overlaps := s.ledger.overlaps()
	for _, o := range overlaps {
		fmt.Fprintln(out, "OVERLAP:", o)
	}
	switch {
	case len(overlaps) > 0:
		return errOverlap
	case failed != nil:
		return failed
	}

	client, err := clientv3.New(clientv3.Config{Endpoints: []string{s.endpoint}, Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	defer client.Close()
	stale, err := staleRounds(ctx, client)
	if err != nil {
		return err
	}

	fmt.Fprintf(out, "terms: %d, overlaps: %d, stale rounds applied: %d\n", len(s.ledger.terms), len(overlaps), stale)
	if stale > 0 {
		return errors.New("a round of a former leader was applied")
	}
	return nil
}
