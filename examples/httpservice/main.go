//go:build unix

// Command httpservice keeps documents behind HTTP, and refuses what comes from a
// writer that has lost its lock.
//
// Two writers append to one document, which a lock in etcd guards. A has the lock,
// has read the document, and is stopped with SIGSTOP for longer than its lock
// lasts. B gets the lock and appends. Then A is continued, and sends what it made
// of what it had read. The service, S, has seen B's larger token, so it answers 412,
// and A gets the same error as from a fence in its own process. In between a stranger,
// X, tries a token that etcd never issued.
//
// It exits with 1 if a stale write or the made-up token was applied, or if nothing was
// put to the test.
//
// The program starts itself again as etcd, as the service and as the writers, each
// a process of its own. What to copy is in service.go and writer.go.
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

var roles = process.Roles{"etcd": localetcd.Role, "service": service, "first": first, "second": second}

func main() {
	process.Main(roles)

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, 14*time.Second)
	defer cancel()
	if err := run(ctx, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "httpservice:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer) (err error) {
	dir, err := os.MkdirTemp("", "fencelock-httpservice-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	file := filepath.Join(dir, "documents.db")

	s := &stage{time: timeline.New(out)}
	s.group = process.NewGroup(s.hear)
	defer s.group.Close()
	if err := s.play(ctx, filepath.Join(dir, "etcd"), file); err != nil {
		return err
	}

	end, err := audit(ctx, file)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "\nthe document: %q\n", end.text)
	fmt.Fprintf(out, "made-up tokens refused: %d\nstale writes applied: %d, refused: %d\n", s.forged, end.stale, s.refused)
	switch {
	case end.stale > 0:
		return errors.New("a stale write was applied")
	case s.refused == 0:
		return errors.New("no stale write was refused: the service was not put to the test")
	case s.forged == 0:
		return errors.New("a made-up token was not refused")
	case end.text != "B was here\n":
		return errors.New("the document is not what the writer left whose write counts")
	}
	return nil
}
