//go:build unix

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/fencelock/fencelock/examples/internal/process"
	"github.com/fencelock/fencelock/examples/internal/timeline"
)

// story is what happens to the members.
type story struct {
	time     *timeline.Timeline
	group    *process.Group
	endpoint string // etcd's
	members  map[string]*process.Process
	ledger   *ledger
}

// hear is given every report of every process.
func (s *story) hear(r process.Report) {
	s.ledger.record(r)
	if r.Text != "" {
		s.time.Tell(r.At, r.Who, r.Token, r.Text)
	}
}

func (s *story) play(ctx context.Context) error {
	for _, who := range []string{"A", "B", "C"} {
		if err := s.enlist(who); err != nil {
			return err
		}
	}

	killed, err := s.leader(ctx, nil)
	if err != nil {
		return err
	}
	if err := s.kill(ctx, killed); err != nil {
		return err
	}
	if err := s.enlist(killed.who); err != nil {
		return err
	}

	stopped, err := s.leader(ctx, killed)
	if err != nil {
		return err
	}
	s.say(stopped, "is stopped (SIGSTOP)")
	stopped.end = "was stopped"
	if err := s.members[stopped.who].Stop(); err != nil {
		return err
	}
	successor, err := s.leader(ctx, stopped)
	if err != nil {
		return err
	}
	s.say(stopped, "is continued (SIGCONT), while another leads")
	if err := s.members[stopped.who].Continue(); err != nil {
		return err
	}
	if err := s.until(ctx, func() bool { return stopped.left }); err != nil {
		return err
	}

	if err := s.kill(ctx, successor); err != nil {
		return err
	}
	resigning, err := s.leader(ctx, successor)
	if err != nil {
		return err
	}
	s.say(resigning, "is asked to end")
	resigning.end = "was asked to end"
	if err := s.members[resigning.who].End(); err != nil {
		return err
	}
	if _, err := s.group.Await(ctx, resigning.who, process.Exited); err != nil {
		return err
	}
	_, err = s.leader(ctx, resigning)
	return err
}

func (s *story) enlist(who string) (err error) {
	s.members[who], err = s.group.Start(who, "member", s.endpoint)
	return err
}

// leader returns the term of the leader that came after that one, when it has
// led for some rounds.
func (s *story) leader(ctx context.Context, after *term) (*term, error) {
	const some = 25
	err := s.until(ctx, func() bool {
		t := s.ledger.last()
		return t != nil && t != after && t.rounds >= some
	})
	return s.ledger.last(), err
}

// until takes reports until cond holds, or two members were found to lead at
// the same time.
func (s *story) until(ctx context.Context, cond func() bool) error {
	for !cond() {
		if _, err := s.group.Next(ctx); err != nil {
			return fmt.Errorf("wait for the members: %w", err)
		}
		if s.ledger.overlaps() != nil {
			return errOverlap
		}
	}
	return nil
}

func (s *story) kill(ctx context.Context, t *term) error {
	s.say(t, "is killed (SIGKILL)")
	t.end = "was killed"
	if err := s.members[t.who].Kill(); err != nil {
		return err
	}
	_, err := s.group.Await(ctx, t.who, process.Exited)
	return err
}

// say tells what is done to a leader.
func (s *story) say(t *term, what string) { s.time.Tell(time.Now(), t.who, t.token, what) }
