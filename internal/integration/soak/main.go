// Soak runs workers that share a lock against a real etcd cluster, does harm to
// all of them at random, and checks afterwards what the library promises.
//
//	go run ./internal/integration/soak -duration 5m [-seed N] [-faults a,b] [-strategy fenced|advisory|peer]
//	go run ./internal/integration/soak -replay FILE
//
// Three etcd servers, a resource and five workers are processes of their own, on
// loopback. Each worker has proxies of its own, to every etcd server and to the
// resource. The workers keep a set in one value: under the lock they read it,
// think, and write it back with one element more. Most think for some
// milliseconds, some for about as long as a lease lives.
//
// # Strategies
//
//   - fenced: Locker.Do; the token is claimed at the resource before the read and
//     checked at the write.
//   - advisory: Locker.DoAdvisory; work that heeds its context, and a resource
//     that checks nothing.
//   - peer: etcd's concurrency.Mutex with a session, and a resource that checks
//     nothing.
//
// # Faults
//
//   - stop: a worker's process is stopped, for its TTL and 0.6 s or two TTLs.
//   - partition: a worker is cut off from etcd for as long.
//   - oneway: the same in one direction, on all its links to etcd or one.
//   - late: what a worker writes arrives two TTLs later, when it has been cut off
//     from etcd.
//   - member: an etcd server is killed and started again, or stands still.
//   - leader: the leader is moved, up to three times in a row.
//   - revoke, delete: somebody revokes a lease or deletes a key of the queue.
//   - compaction: etcd's history is compacted past a watch that is cut off.
//
// Two of the workers' and one of etcd's go on side by side. The seed fixes what is
// chosen, but not how the machine schedules it, so it gives the same kind of run
// and not the same run.
//
// # What is checked
//
// The history, with the times of every call and return by one clock, is
// written to a file, and everything is checked on it, so that -replay finds in
// the file what the run found: that acknowledged updates are there in the end;
// that the resource applied nothing stale; that its registers behave like
// registers with a fence, for which porcupine searches an order; that tokens
// rise; that nobody who runs believes in a lock whose key is gone or that another
// has; that nothing is left behind. A search that takes too long is no violation;
// the table counts it as undecided.
//
// Every run begins with a positive control: workers of the unfenced peer are
// stopped by the same nemesis, until they have lost an update. If they do not
// within 30 s, the nemesis does no harm, and the run fails.
//
// # Exit status
//
// 0 if nothing was violated that the strategy promises, 1 if something was or
// the control lost nothing, 2 if the soak could not do its work or was
// interrupted. Fenced promises everything. Advisory cannot promise that nothing
// is stale or lost, and the peer promises none of what concerns the lock; there
// the table shows the damage, and the status is 0.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/fencelock/fencelock/internal/integration/harness"
)

// The exit status.
const (
	statusPassed = iota
	statusViolated
	statusFailedToRun
)

func main() {
	harness.RunRole(roles)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// A second signal ends the process at once, and with it all its children.
	context.AfterFunc(ctx, stop)
	os.Exit(command(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// command does what the arguments say and returns the exit status.
func command(ctx context.Context, args []string, out, errs io.Writer) int {
	s, replay, err := parse(args, errs)
	var records []record
	switch {
	case errors.Is(err, flag.ErrHelp):
		return statusPassed
	case err != nil:
	case replay != "":
		records, err = readHistory(replay)
	default:
		records, err = s.run(ctx, out)
	}
	sound := false
	if err == nil {
		sound, err = report(out, records)
	}
	switch {
	case err != nil:
		fmt.Fprintln(errs, err)
		return statusFailedToRun
	case ctx.Err() != nil:
		fmt.Fprintln(errs, "soak: interrupted; what is above was found until then")
		return statusFailedToRun
	case !sound:
		return statusViolated
	}
	return statusPassed
}

// parse reads the arguments: what run is wanted, or which history is to be
// checked again.
func parse(args []string, errs io.Writer) (s setup, replay string, err error) {
	flags := flag.NewFlagSet("soak", flag.ContinueOnError)
	flags.SetOutput(errs)
	flags.DurationVar(&s.duration, "duration", time.Minute, "how long the trial lasts")
	flags.Uint64Var(&s.seed, "seed", 0, "what the random choices are made from; 0 for a new one")
	faults := flags.String("faults", "", "faults to inject, separated by commas; all by default")
	name := flags.String("strategy", string(fenced), "how the workers protect what they do: fenced, advisory or peer")
	flags.StringVar(&s.history, "history", "", "file that the history is written to; a new one by default")
	flags.StringVar(&replay, "replay", "", "check this history again, and run nothing")
	if err := flags.Parse(args); err != nil {
		return s, "", err
	}
	if flags.NArg() > 0 {
		return s, "", fmt.Errorf("soak: unexpected argument %q; see -help", flags.Arg(0))
	}
	if s.duration <= 0 {
		return s, "", fmt.Errorf("soak: -duration %v is no time; give one above 0", s.duration)
	}
	if s.strategy, err = parseStrategy(*name); err != nil {
		return s, "", err
	}
	s.faults, err = parseFaults(*faults)
	return s, replay, err
}
