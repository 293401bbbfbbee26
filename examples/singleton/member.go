//go:build unix

package main

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/examples/internal/process"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

const (
	lockName = "reporter"
	jobKey   = "report/latest" // what the job writes
	pace     = 20 * time.Millisecond
)

// What a member reports.
const (
	stands = "stands"
	leads  = "leads" // before every round, with the time of its check
	left   = "left"
)

// member is one of the three processes: it stands for the lead, again after
// every loss, until it is asked to end.
func member(ctx context.Context, self *process.Self) error {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{self.Args[0]}, Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	defer client.Close()
	locker, err := fencelock.New(client,
		fencelock.WithTTL(2*time.Second),                    // short, for a short story; the default of 15 s suits most work
		fencelock.WithLogger(slog.New(slog.DiscardHandler))) // the timeline says it; leave this out
	if err != nil {
		return err
	}
	defer locker.Close()

	self.Say(stands, fencelock.Token{}, "stands for the lead")
	err = locker.Lead(ctx, lockName, func(held context.Context, token fencelock.Token) error {
		return job(held, self, client, token)
	})
	if ctx.Err() != nil {
		return nil // asked to end
	}
	return err
}

// job works in rounds, for as long as this member leads. The check before a
// round makes it stop soon after a loss. That a round which is late all the
// same has no effect is up to IsOwner: etcd compares and writes in one step.
func job(held context.Context, self *process.Self, client *clientv3.Client, token fencelock.Token) error {
	ticker := time.NewTicker(pace)
	defer ticker.Stop()
	report := process.Report{Event: leads, Token: token.String(), Text: "leads"}
	for {
		// The time before the look, not after it: a context that is alive was
		// alive before, also if this process is stopped between the two.
		report.At = time.Now()
		if held.Err() != nil {
			break
		}
		self.Report(report)
		report.Text = "" // once is enough for people

		// An error here is no answer, and none is needed: the next round writes
		// again, if this member still leads.
		resp, err := client.Txn(held).If(token.IsOwner()).Then(clientv3.OpPut(jobKey, token.String())).Commit()
		if err == nil && !resp.Succeeded {
			self.Say(left, token, "has a round refused: etcd's record names it no more")
			return errors.New("no longer the owner")
		}
		select {
		case <-ticker.C:
		case <-held.Done():
		}
	}
	if lost, ok := errors.AsType[*fencelock.LostError](context.Cause(held)); ok {
		self.Say(left, token, "sees that it has lost the lead (%s), and stops", lost.Reason)
	} else {
		self.Say(left, token, "stops, and gives the lead back")
	}
	return context.Cause(held)
}
