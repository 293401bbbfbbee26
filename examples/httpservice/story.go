//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/examples/internal/localetcd"
	"github.com/fencelock/fencelock/examples/internal/process"
	"github.com/fencelock/fencelock/examples/internal/timeline"
)

// stage is where the story is played.
type stage struct {
	time    *timeline.Timeline
	group   *process.Group
	refused int // stale writes
	forged  int // made-up tokens that were refused
}

// hear is given every report of every process.
func (s *stage) hear(r process.Report) {
	if r.Event == refused {
		s.refused++
	}
	if r.Text != "" {
		s.time.Tell(r.At, r.Who, r.Token, r.Text)
	}
}

func (s *stage) play(ctx context.Context, dir, file string) error {
	etcd, err := localetcd.StartChild(ctx, s.group, "etcd", dir)
	if err != nil {
		return err
	}
	if _, err := s.group.Start("S", "service", etcd, file); err != nil {
		return err
	}
	up, err := s.group.Await(ctx, "S", serving)
	if err != nil {
		return err
	}
	addr := strings.TrimPrefix(up.Text, address)

	a, err := s.group.Start("A", "first", etcd, addr)
	if err != nil {
		return err
	}
	read, err := s.group.Await(ctx, "A", hasRead)
	if err != nil {
		return err
	}
	// It cannot write before Proceed, so it does not matter when the signal
	// arrives. It has before B has the lock: a process that runs renews its lease.
	if err := a.Stop(); err != nil {
		return err
	}
	s.time.Tell(time.Now(), "A", read.Token, "is stopped (SIGSTOP): no thread of it runs, nothing is renewed, nothing noticed")

	if err := s.forge(ctx, addr); err != nil {
		return err
	}

	if _, err := s.group.Start("B", "second", etcd, addr); err != nil {
		return err
	}
	s.time.Tell(time.Now(), "B", "", "is started, and waits until A's lease has expired")
	if _, err := s.group.Await(ctx, "B", applied); err != nil {
		return err
	}
	if _, err := s.group.Await(ctx, "B", process.Exited); err != nil {
		return err
	}

	s.time.Tell(time.Now(), "A", read.Token, "is continued (SIGCONT), and goes on where it was: after its read")
	if err := a.Proceed(); err != nil {
		return err
	}
	if err := a.Continue(); err != nil {
		return err
	}
	if _, err := s.group.Await(ctx, "A", told); err != nil {
		return err
	}
	_, err = s.group.Await(ctx, "A", process.Exited)
	return err
}

// forge tries the largest token there is. A service that took it would refuse
// every other for good.
func (s *stage) forge(ctx context.Context, addr string) error {
	token, err := fencelock.ParseToken(lockName(document), fmt.Sprintf("%d.made-up", math.MaxInt64))
	if err != nil {
		return err
	}
	err = newRemote(addr).write(ctx, token, "nobody else can write now\n")
	switch {
	case errors.Is(err, fencelock.ErrInvalidToken):
		s.forged++
		s.time.Tell(time.Now(), "X", "", "writes with a made-up token: REFUSED, the service answers 400: etcd never issued it")
		return nil
	case err == nil:
		return errors.New("a write with a made-up token was applied")
	}
	return err
}
