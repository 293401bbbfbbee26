package fencelock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/sqlfence"
)

// The examples are compiled here, and what they show is run against a real
// etcd by the tests of internal/integration.
var (
	client *clientv3.Client
	db     *sql.DB
)

func ExampleLocker_Do() {
	locker, err := fencelock.New(client)
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()
	fence, err := sqlfence.New(db, sqlfence.PostgreSQL)
	if err != nil {
		log.Fatal(err)
	}

	ctx := context.Background()
	err = locker.Do(ctx, "billing/2026-11", func(ctx context.Context, token fencelock.Token) error {
		// The transaction starts by raising the fence's mark to the token, or is
		// refused. So what it reads is not overwritten by a late predecessor, and
		// what it writes is not applied if this holder is the late one.
		return fence.Tx(ctx, token, func(tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, `UPDATE invoices SET state = 'sent' WHERE state = 'due'`)
			return err
		})
	})
	switch {
	case err == nil:
		// Done, and the record named this holder from grant to release.
	case errors.Is(err, fencelock.ErrStale):
		// Another holder came before the write; nothing of it was applied.
	case errors.Is(err, fencelock.ErrNotAcquired):
		// The callback did not run.
	default:
		log.Print(err)
	}
}

func ExampleLocker_TryAcquire() {
	locker, err := fencelock.New(client)
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()

	ctx := context.Background()
	lock, err := locker.TryAcquire(ctx, "nightly-report")
	var held *fencelock.HeldError
	if errors.As(err, &held) {
		fmt.Println("already running:", held.Holder.Label)
		return
	}
	if err != nil {
		log.Fatal(err)
	}
	defer lock.Release(ctx)

	// Lock.Context ends when the lock is lost, and Lock.Token goes into every
	// write, as in the callback of Do.
}

func ExampleToken_IsOwner() {
	locker, err := fencelock.New(client)
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()

	ctx := context.Background()
	err = locker.Do(ctx, "config", func(ctx context.Context, token fencelock.Token) error {
		// For data in the same etcd the lock's own key is the fence: the Txn
		// writes only while etcd's record still names this acquisition.
		resp, err := client.Txn(ctx).
			If(token.IsOwner()).
			Then(clientv3.OpPut("config/current", "v42")).
			Commit()
		if err != nil {
			return err
		}
		if !resp.Succeeded {
			return errors.New("the lock was lost before the write; nothing was written")
		}
		return nil
	})
	if err != nil {
		log.Print(err)
	}
}
