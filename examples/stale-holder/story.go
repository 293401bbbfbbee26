//go:build unix

package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/fencelock/fencelock/examples/internal/process"
	"github.com/fencelock/fencelock/examples/internal/timeline"
	"github.com/fencelock/fencelock/sqlfence"
)

// stage is where the acts are played.
type stage struct {
	out      io.Writer
	time     *timeline.Timeline
	group    *process.Group
	endpoint string // etcd's
	refused  int    // writes, in this act
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

func (s *stage) act(ctx context.Context, title, use, file string) (outcome, error) {
	fmt.Fprintf(s.out, "\n%s\n", title)
	s.refused = 0
	db, err := openAccount(file)
	if err != nil {
		return outcome{}, err
	}
	defer db.Close()
	if _, err := db.ExecContext(ctx, tables); err != nil {
		return outcome{}, fmt.Errorf("create the account: %w", err)
	}
	fence, err := sqlfence.New(db, sqlfence.SQLite)
	if err != nil {
		return outcome{}, err
	}
	if err := fence.Migrate(ctx); err != nil {
		return outcome{}, err
	}

	a, err := s.group.Start("A", "holder", s.endpoint, file, use)
	if err != nil {
		return outcome{}, err
	}
	saw, err := s.group.Await(ctx, "A", checked)
	if err != nil {
		return outcome{}, err
	}
	// It cannot write before Proceed, so it does not matter when the signal
	// arrives. It has before B has the lock: a process that runs renews its lease.
	if err := a.Stop(); err != nil {
		return outcome{}, err
	}
	s.time.Tell(time.Now(), "A", saw.Token, "is stopped (SIGSTOP): no thread of it runs, nothing is renewed, nothing noticed")

	if _, err := s.group.Start("B", "rival", s.endpoint, file, use); err != nil {
		return outcome{}, err
	}
	s.time.Tell(time.Now(), "B", "", "is started, and waits until A's lease has expired")
	if _, err := s.group.Await(ctx, "B", applied); err != nil {
		return outcome{}, err
	}
	if _, err := s.group.Await(ctx, "B", process.Exited); err != nil {
		return outcome{}, err
	}

	s.time.Tell(time.Now(), "A", saw.Token, "is continued (SIGCONT), and goes on where it was: after its check")
	if err := a.Proceed(); err != nil {
		return outcome{}, err
	}
	if err := a.Continue(); err != nil {
		return outcome{}, err
	}
	if _, err := s.group.Await(ctx, "A", told); err != nil {
		return outcome{}, err
	}
	if _, err := s.group.Await(ctx, "A", process.Exited); err != nil {
		return outcome{}, err
	}
	end, err := audit(ctx, db)
	end.refused = s.refused
	return end, err
}
