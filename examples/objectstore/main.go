// Command objectstore fences an object in an S3 store, which offers no
// transactions and no locks, only a PUT that is applied if the object is still
// the version that was read (If-Match).
//
// Two workers append to one object. A gets the lock and reads. Then an operator
// takes the lock from it, B gets it, and appends. A, which does not look at its
// context, writes what it made of what it had read. The mark in the object says
// that a later holder has been there, and A's write is refused.
//
// The program runs an etcd and an S3 server of its own. What to copy is in
// register.go.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/examples/internal/localetcd"
	"github.com/fencelock/fencelock/examples/internal/timeline"
)

const lockName = "journal"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	if err := run(ctx, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "objectstore:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer) (err error) {
	dir, err := os.MkdirTemp("", "fencelock-objectstore-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	etcd, err := localetcd.Start(ctx, dir)
	if err != nil {
		return err
	}
	defer etcd.Close()
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{etcd.Clients[0].Addr().String()}, Logger: zap.NewNop(),
	})
	if err != nil {
		return err
	}
	defer client.Close()
	store, end, err := startStore(ctx, "journals")
	if err != nil {
		return err
	}
	defer end()

	journal := &register{store: store, bucket: "journals", key: "2026-07", lock: lockName}
	p := play{client: client, journal: journal, time: timeline.New(out)}
	if err := p.run(ctx); err != nil {
		return err
	}
	last, err := journal.get(ctx)
	if err != nil {
		return err
	}
	stale := 0
	if last.data != "B was here\n" {
		stale = 1
	}
	fmt.Fprintf(out, "\nthe object: %q\nstale writes applied: %d, refused: %d\n", last.data, stale, p.refused)
	if stale > 0 || p.refused == 0 {
		return errors.New("a stale write was applied, or none was tried")
	}
	return nil
}

type play struct {
	client  *clientv3.Client
	journal *register
	time    *timeline.Timeline
	refused int
}

// worker returns a Locker for one worker. Each has its own, as each is a process
// of its own in earnest.
func (p *play) worker() (*fencelock.Locker, error) {
	return fencelock.New(p.client, fencelock.WithTTL(5*time.Second), fencelock.WithLogger(slog.New(slog.DiscardHandler)))
}

func (p *play) run(ctx context.Context) (err error) {
	a, err := p.worker()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.Close()) }()
	b, err := p.worker()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()

	err = a.Do(ctx, lockName, func(_ context.Context, token fencelock.Token) error {
		if err := p.journal.claim(ctx, token); err != nil {
			return err
		}
		p.time.Say("A", token, "has the lock, raises the mark in the object, and reads it")
		read, err := p.journal.get(ctx)
		if err != nil {
			return err
		}
		if err := p.evict(ctx, token); err != nil {
			return err
		}
		if err := p.append(ctx, b); err != nil {
			return err
		}
		// A was given a context that has ended by now. It does not look.
		err = p.journal.update(ctx, token, func(string) string { return read.data + "A was here\n" })
		p.time.Say("A", token, "writes what it made of what it read: %v", err)
		if errors.Is(err, fencelock.ErrStale) {
			p.refused++
		}
		return err
	})
	if !errors.Is(err, fencelock.ErrLost) || !errors.Is(err, fencelock.ErrStale) {
		return fmt.Errorf("the Do of A must say that the lock was lost and the write refused: %w", err)
	}
	return nil
}

// evict takes the lock from its holder, as an operator can.
func (p *play) evict(ctx context.Context, token fencelock.Token) error {
	resp, err := p.client.Get(ctx, "fencelock/"+lockName+"/", clientv3.WithFirstCreate()...)
	if err != nil {
		return err
	}
	if len(resp.Kvs) == 0 {
		return errors.New("the lock has no holder")
	}
	p.time.Say("op", fencelock.Token{}, "deletes the lock's key: it takes A for dead")
	_, err = p.client.Delete(ctx, string(resp.Kvs[0].Key))
	return err
}

// append is B's turn.
func (p *play) append(ctx context.Context, b *fencelock.Locker) error {
	return b.Do(ctx, lockName, func(ctx context.Context, token fencelock.Token) error {
		err := p.journal.update(ctx, token, func(data string) string { return data + "B was here\n" })
		p.time.Say("B", token, "has the lock and appends to the object: %v", err)
		return err
	})
}
