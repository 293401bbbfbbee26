//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/examples/internal/process"
	"github.com/fencelock/fencelock/examples/internal/timeline"
)

// story is what happens to the workers.
type story struct {
	out      io.Writer
	time     *timeline.Timeline
	group    *process.Group
	endpoint string // etcd's
	database string
	bank     *bank
	random   *rand.Rand
	members  map[string]*process.Process

	holder  string           // who reported last that it has the lock
	windows []process.Report // of losses not audited yet
	losses  int
	refused int
}

// hear is given every report of every process.
func (s *story) hear(r process.Report) {
	switch r.Event {
	case hasLock:
		s.holder = r.Who
		return // too many for the timeline
	case window:
		s.windows = append(s.windows, r)
		return
	case lost:
		s.losses++
	case refused:
		s.refused++
	}
	if r.Text != "" {
		s.time.Tell(r.At, r.Who, r.Token, r.Text)
	}
}

const patience = 15 * time.Second

func (s *story) play(ctx context.Context, duration time.Duration) error {
	end := time.Now().Add(duration)
	names := []string{"A", "B", "C"}
	for _, name := range names {
		if err := s.enlist(name); err != nil {
			return err
		}
	}
	// A stop between a read and the write that rests on it is what it is about: it goes on
	// a while for one.
	latest := end.Add(patience)
	for time.Now().Before(end) || s.losses == 0 || s.refused == 0 && time.Now().Before(latest) {
		// Not right after a grant alone: anywhere in a shift.
		if err := s.listen(ctx, time.Duration(s.random.Int64N(int64(shift)))); err != nil {
			return err
		}
		victim := s.holder
		if victim == "" || s.random.IntN(4) == 0 {
			victim = names[s.random.IntN(len(names))]
		}
		do := s.stop
		if s.random.IntN(5) == 0 {
			do = s.kill
		}
		if err := do(ctx, victim); err != nil {
			return err
		}
		if err := s.audit(ctx); err != nil {
			return err
		}
	}
	for _, name := range names {
		if err := s.members[name].End(); err != nil {
			return err
		}
		if _, err := s.group.Await(ctx, name, process.Exited); err != nil {
			return err
		}
	}
	return s.audit(ctx)
}

func (s *story) enlist(name string) (err error) {
	s.members[name], err = s.group.Start(name, "worker", s.endpoint, s.database)
	return err
}

// stop stops a worker for as long as its lock lasts, more or less.
func (s *story) stop(ctx context.Context, name string) error {
	pause := ttl/2 + time.Duration(s.random.Int64N(int64(2*ttl)))
	s.time.Tell(time.Now(), name, "", fmt.Sprintf("is stopped (SIGSTOP) for %v", pause.Round(time.Millisecond)))
	if err := s.members[name].Stop(); err != nil {
		return err
	}
	if err := s.listen(ctx, pause); err != nil {
		return err
	}
	s.time.Tell(time.Now(), name, "", "is continued (SIGCONT)")
	if err := s.members[name].Continue(); err != nil {
		return err
	}
	return s.listen(ctx, ttl/4) // in which it notices
}

func (s *story) kill(ctx context.Context, name string) error {
	s.time.Tell(time.Now(), name, "", "is killed (SIGKILL), and started again")
	if err := s.members[name].Kill(); err != nil {
		return err
	}
	if _, err := s.group.Await(ctx, name, process.Exited); err != nil {
		return err
	}
	return s.enlist(name)
}

// listen takes reports for a while.
func (s *story) listen(ctx context.Context, d time.Duration) error {
	while, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	for {
		if _, err := s.group.Next(while); err != nil {
			if ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
				return nil
			}
			return err
		}
	}
}

// audit lists what was written in the window of each loss that was reported.
func (s *story) audit(ctx context.Context) error {
	for _, r := range s.windows {
		token, err := fencelock.ParseToken(lockName, r.Token)
		if err != nil {
			return err
		}
		lines, err := s.bank.written(ctx, token, r.At)
		if err != nil {
			return err
		}
		fmt.Fprintf(s.out, "          audit of token %s, after its lease was last confirmed: %d transfers\n",
			timeline.Number(r.Token), len(lines))
		for _, line := range lines {
			fmt.Fprintf(s.out, "            %s\n", line)
		}
	}
	s.windows = nil
	return nil
}
