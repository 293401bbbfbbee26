//go:build unix

// Command accounts moves money between accounts while the processes that move it
// are stopped, continued and killed at random, and then looks whether any of it
// is lost.
//
// Three workers share one lock. Whoever has it makes transfers: reads two
// balances, thinks, and writes what it worked out, through the fence, together
// with a line in a journal. Meanwhile the program stops workers with SIGSTOP for
// longer than their lock lasts, mostly the one that has the lock, and kills one
// now and then.
//
// Each time a worker finds that it had lost the lock, the program makes the audit
// an operator would make: it lists what was written with that token since the
// lease was last confirmed. In the end it replays the journal: the sum is what it
// was, every balance is what the journal makes it, and no token in it comes after
// a larger one.
//
// The accounts are in a SQLite file, or with -database in PostgreSQL:
//
//	go run ./examples/accounts -database postgres://user@127.0.0.1/test
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/fencelock/fencelock/examples/internal/localetcd"
	"github.com/fencelock/fencelock/examples/internal/process"
	"github.com/fencelock/fencelock/examples/internal/timeline"
)

var roles = process.Roles{"etcd": localetcd.Role, "worker": work}

func main() {
	process.Main(roles)

	duration := flag.Duration("duration", 10*time.Second, "how long workers are stopped and killed")
	seed := flag.Uint64("seed", rand.Uint64(), "what decides whom, when, and for how long")
	database := flag.String("database", "", "PostgreSQL to use instead of a SQLite file; its tables account, journal and fencelock_marks are dropped first")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, *duration+30*time.Second)
	defer cancel()
	if err := run(ctx, os.Stdout, *database, *duration, *seed); err != nil {
		fmt.Fprintln(os.Stderr, "accounts:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer, database string, duration time.Duration, seed uint64) (err error) {
	dir, err := os.MkdirTemp("", "fencelock-accounts-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if database == "" {
		database = filepath.Join(dir, "accounts.db")
	}
	bank, err := openBank(database)
	if err != nil {
		return err
	}
	defer bank.Close()
	if err := bank.create(ctx); err != nil {
		return err
	}

	fmt.Fprintf(out, "-seed=%d\n\n", seed)
	s := &story{
		out: out, time: timeline.New(out), bank: bank, database: database,
		random: rand.New(rand.NewPCG(seed, 0)), members: map[string]*process.Process{},
	}
	s.group = process.NewGroup(s.hear)
	defer s.group.Close()
	s.endpoint, err = localetcd.StartChild(ctx, s.group, "etcd", filepath.Join(dir, "etcd"))
	if err != nil {
		return err
	}
	if err := s.play(ctx, duration); err != nil {
		return err
	}

	result, err := bank.replay(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "\ntransfers: %d, by %d holders; losses: %d; stale writes refused: %d\n",
		result.transfers, result.holders, s.losses, s.refused)
	fmt.Fprintf(out, "stale writes applied: %d; balances that differ from the journal: %d; sum: %d of %d\n",
		result.stale, result.differing, result.sum, total)
	switch {
	case result.stale > 0 || result.differing > 0 || result.sum != total:
		return errors.New("the books are wrong")
	case result.transfers == 0 || s.losses == 0:
		return errors.New("no transfer was made, or no lock was lost: nothing was put to the test")
	}
	return nil
}
