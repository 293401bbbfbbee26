//go:build unix

package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/examples/internal/process"
	"github.com/fencelock/fencelock/sqlfence"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

const lockName = "account/alice"

// What the lock is used for, as an argument of a worker.
const (
	useAdvisory = "advisory"
	useFenced   = "fenced"
)

// What a worker reports.
const (
	hasLock = "has-lock"
	checked = "checked" // and the holder waits for Proceed
	applied = "applied"
	refused = "refused"
	told    = "told" // by fencelock, that the lock was lost
)

var nobody fencelock.Token

// worker makes one deposit. Holder and rival differ in the amount, and in the
// place where the holder waits to be stopped.
type worker struct {
	*process.Self
	amount int
	linger func() error
	locker *fencelock.Locker
	db     *sql.DB
}

// advisory is what goes wrong: the write trusts a check made before it.
func (w *worker) advisory(ctx context.Context) error {
	return w.locker.DoAdvisory(ctx, lockName, func(held context.Context) error {
		w.Say(hasLock, nobody, "has the lock")
		balance, err := w.prepare(held, nobody)
		if err != nil {
			return err
		}
		// A write that is given held is refused as well if it starts after the
		// loss: that is one check more, and moves the place where a stop does harm
		// to behind it, into the driver or the network. This write is there.
		tx, err := w.db.BeginTx(context.WithoutCancel(held), nil)
		if err != nil {
			return err
		}
		defer tx.Rollback() // in vain after the commit
		if err := writeBalance(tx, w.Name, w.amount, balance); err != nil {
			return err
		}
		if err := tx.Commit(); err != nil {
			return err
		}
		w.Say(applied, nobody, "writes a balance of %d: APPLIED", balance)
		return nil
	})
}

// fenced is what to copy: the database makes the check, together with the
// write, so there is no place between them.
func (w *worker) fenced(ctx context.Context) error {
	fence, err := sqlfence.New(w.db, sqlfence.SQLite)
	if err != nil {
		return err
	}
	return w.locker.Do(ctx, lockName, func(held context.Context, token fencelock.Token) error {
		w.Say(hasLock, token, "has the lock")
		// Before the first read: a late write of whoever had the lock earlier
		// must not land between this worker's read and its write.
		if err := fence.Advance(held, token); err != nil {
			return err
		}
		balance, err := w.prepare(held, token)
		if err != nil {
			return err
		}
		// Only so that it is the fence, and not the context, that is put to the
		// test; give held to yours.
		late := context.WithoutCancel(held)
		err = fence.Tx(late, token, func(tx *sql.Tx) error {
			return writeBalance(tx, w.Name, w.amount, balance)
		})
		switch {
		case err == nil:
			w.Say(applied, token, "writes a balance of %d: APPLIED", balance)
		case errors.Is(err, fencelock.ErrStale):
			w.Say(refused, token, "writes a balance of %d: REFUSED, a newer token was seen", balance)
		}
		return err
	})
}

// prepare works out the new balance, and makes the check.
func (w *worker) prepare(held context.Context, token fencelock.Token) (balance int, err error) {
	balance, err = readBalance(held, w.db)
	if err != nil {
		return 0, err
	}
	if held.Err() != nil {
		return 0, context.Cause(held)
	}
	w.Say(checked, token, "reads a balance of %d, sees that it has the lock, and will deposit %d", balance, w.amount)
	return balance + w.amount, w.linger()
}

func holder(ctx context.Context, self *process.Self) error {
	// The wait is for the stage: it puts the stop into the same place every time.
	// Without it that place would have to be hit, as it is in production now and then.
	return work(ctx, &worker{Self: self, amount: 100, linger: func() error { return self.Pause(ctx) }})
}

func rival(ctx context.Context, self *process.Self) error {
	return work(ctx, &worker{Self: self, amount: 10, linger: func() error { return nil }})
}

func work(ctx context.Context, w *worker) (err error) {
	endpoint, file, use := w.Args[0], w.Args[1], w.Args[2]
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	defer client.Close()
	w.locker, err = fencelock.New(client,
		fencelock.WithTTL(3*time.Second),                    // short, for a short story; the default of 15 s suits most work
		fencelock.WithLogger(slog.New(slog.DiscardHandler))) // the timeline says it; leave this out
	if err != nil {
		return err
	}
	defer w.locker.Close()
	w.db, err = openAccount(file)
	if err != nil {
		return err
	}
	defer w.db.Close()

	switch use {
	case useAdvisory:
		err = w.advisory(ctx)
	case useFenced:
		err = w.fenced(ctx)
	default:
		err = fmt.Errorf("unknown use of the lock %q", use)
	}
	if lost, ok := errors.AsType[*fencelock.LostError](err); ok {
		w.Say(told, nobody, "is told that it had lost the lock (%s) when it returned", lost.Reason)
		return nil
	}
	return err
}
