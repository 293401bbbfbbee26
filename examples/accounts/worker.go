//go:build unix

package main

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/examples/internal/process"
)

const (
	lockName = "bank"
	ttl      = 2 * time.Second // short, for a short story
	shift    = 700 * time.Millisecond
)

// What a worker reports.
const (
	hasLock = "has-lock"
	lost    = "lost"
	refused = "refused"
)

// work makes transfers, a shift of them at a time, until it is asked to end.
func work(ctx context.Context, self *process.Self) (err error) {
	endpoint, database := self.Args[0], self.Args[1]
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	defer client.Close()
	locker, err := fencelock.New(client, fencelock.WithTTL(ttl),
		fencelock.WithLogger(slog.New(slog.DiscardHandler))) // the timeline says it; leave this out
	if err != nil {
		return err
	}
	defer locker.Close()
	bank, err := openBank(database)
	if err != nil {
		return err
	}
	defer bank.Close()

	w := &worker{Self: self, bank: bank}
	for ctx.Err() == nil {
		err := locker.Do(ctx, lockName, w.shift)
		// Nothing here ends the worker: what was refused or rolled back was not
		// applied, and the next shift starts from what the database says.
		if loss, ok := errors.AsType[*fencelock.LostError](err); ok {
			self.Report(process.Report{
				Event: lost, Token: loss.Token.String(),
				Text: "had lost the lock (" + string(loss.Reason) + "), and went on for " +
					loss.Returned.Sub(loss.LostAt).Round(time.Millisecond).String(),
			})
			self.Report(process.Report{
				Event: window, Token: loss.Token.String(), At: loss.LastConfirmed,
			})
		}
		if errors.Is(err, fencelock.ErrStale) {
			self.Report(process.Report{Event: refused, Text: "had a transfer REFUSED: a newer token was seen"})
		}
	}
	return nil
}

// window is the report of when a lost lease was last confirmed.
const window = "window"

type worker struct {
	*process.Self
	bank *bank
}

func (w *worker) shift(ctx context.Context, token fencelock.Token) error {
	w.Say(hasLock, token, "has the lock")
	// Before the first read, or a late write of the holder before could land
	// between a read and the write that rests on it.
	if err := w.bank.fence.Advance(ctx, token); err != nil {
		return err
	}
	for end := time.Now().Add(shift); time.Now().Before(end); {
		t := transfer{debit: rand.IntN(accounts), amount: rand.Int64N(50)}
		t.credit = (t.debit + 1 + rand.IntN(accounts-1)) % accounts
		var err error
		if t.debitAfter, err = w.bank.balance(ctx, t.debit); err != nil {
			return err
		}
		if t.creditAfter, err = w.bank.balance(ctx, t.credit); err != nil {
			return err
		}
		t.debitAfter -= t.amount
		t.creditAfter += t.amount
		time.Sleep(rand.N(60 * time.Millisecond)) // it thinks; most stops fall here

		// Without the held context, so that it is the fence that a late write is
		// put to, and not the context alone. Give yours ctx.
		if err := w.bank.write(context.WithoutCancel(ctx), w.Name, token, t); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}
