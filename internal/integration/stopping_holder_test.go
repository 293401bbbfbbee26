package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/integration/harness"
	"github.com/fencelock/fencelock/internal/integration/resource"
)

// The places at which a stoppingHolder stops.
const (
	beforeRead  = "before its first read"
	beforeCheck = "before its check"
	beforeWrite = "between its check and its write"
)

// lateValue is what a stoppingHolder writes.
const lateValue = "late"

// unfenced is the register that takes every write to the one of that name, as a
// resource without a fence would.
func unfenced(register string) string { return register + ", unfenced" }

// stoppingHolder is a process that takes a lock, reads, looks whether it still
// has the lock, and writes; and that stops itself with SIGSTOP at one place in
// between. The code is what Do is for, with one fault that makes it the worst
// case: its requests to the resource do not heed that the lock is lost, as one
// that had left the process could not, and it goes on after a refusal.
type stoppingHolder struct {
	Etcd, Resource string // addresses
	Lock           string
	TTL            time.Duration
	StopsAt        string
	Watched        bool // it works for so long that it watches its key
}

const stoppingHolderRoleName = "stopping holder"

func (s stoppingHolder) start(t testing.TB) *harness.Process {
	t.Helper()
	arg, err := json.Marshal(s)
	require.NoError(t, err)
	return harness.Start(t, stoppingHolderRoleName, string(arg))
}

// awaitStopped waits until a process has stopped itself.
func awaitStopped(t testing.TB, p *harness.Process) {
	t.Helper()
	p.Expect("stopping", eventually)
	require.Eventually(t, func() bool {
		stopped, err := isStopped(p.PID())
		return err == nil && stopped
	}, eventually, time.Millisecond, "it does not stop")
	// Now a second signal has no effect but the wait for all threads. Before, it
	// could come first, and the process would stop again when it is continued.
	require.NoError(t, p.Stop())
}

// stoppingHolderRole says of each step what came of it, as whatCame puts it.
func stoppingHolderRole(c *harness.Child) error {
	leaks := goleak.IgnoreCurrent()
	var s stoppingHolder
	if err := json.Unmarshal([]byte(c.Args()[0]), &s); err != nil {
		return err
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{s.Etcd}, DialTimeout: 2 * time.Second, Logger: zap.NewNop(),
	})
	if err != nil {
		return err
	}
	watched := make(chan struct{})
	client.KV = &firstGet{KV: client.KV, answered: watched}
	told := newJournal()
	locker, err := fencelock.New(client, fencelock.WithTTL(s.TTL),
		fencelock.WithHooks(told.hooks()), fencelock.WithLogger(told.logger()))
	if err != nil {
		return err
	}

	err = locker.Do(c.Context(), s.Lock, func(ctx context.Context, token fencelock.Token) error {
		if s.Watched {
			<-watched
		}
		return s.work(c, ctx, token)
	})
	c.Emit("did", whatCame(err))
	err = locker.Close() // and with it all that is told in the background
	for _, loss := range reported[fencelock.LostInfo](told) {
		c.Emit("hook", loss.Err.Reason, loss.Running)
	}
	for _, r := range reported[slog.Record](told) {
		c.Emit("log", r.Level, attribute(r, "lock"), attribute(r, "reason"))
	}
	return errors.Join(err, client.Close(), noLeaksIn(c.Context(), leaks))
}

// work is the callback of Do.
func (s stoppingHolder) work(c *harness.Child, ctx context.Context, token fencelock.Token) error {
	stopAt := func(place string) {
		if place != s.StopsAt {
			return
		}
		c.Emit("stopping", place)
		if err := stopSelf(); err != nil {
			panic(err)
		}
	}
	r := resource.NewClient(s.Resource)
	defer func() { _ = r.Close() }()
	underWay := context.WithoutCancel(ctx)
	// Before it is stopped, so that no dialling is between the stop and the
	// request.
	_, err := r.Read(underWay, s.Lock)
	if err != nil {
		return err
	}
	c.Emit("granted", token)

	stopAt(beforeRead)
	_, err = r.Claim(underWay, s.Lock, token)
	c.Emit("claim", whatCame(err))
	stopAt(beforeCheck)
	held := ctx.Err() == nil
	if held {
		c.Emit("check", "held")
	} else {
		c.Emit("check", whatCame(context.Cause(ctx)))
	}
	stopAt(beforeWrite)
	result := r.Write(underWay, s.Lock, token, lateValue)
	c.Emit("write", whatCame(result))
	c.Emit("overwrite", whatCame(r.Overwrite(underWay, unfenced(s.Lock), token, lateValue)))

	<-ctx.Done()
	c.Emit("told", whatCame(context.Cause(ctx)))
	return result
}

// whatCame puts an error into a few words: "done", "refused" by the fence, the
// reason why the lock was lost, the last two, or else the error's own.
func whatCame(err error) string {
	var loss *fencelock.LostError
	lost := errors.As(err, &loss)
	stale := errors.Is(err, fencelock.ErrStale)
	switch {
	case err == nil:
		return "done"
	case errors.Is(err, fencelock.ErrTokenRegression):
		return err.Error() // which is also stale
	case lost && stale:
		return fmt.Sprintf("%s and refused", loss.Reason)
	case lost:
		return string(loss.Reason)
	case stale:
		return "refused"
	default:
		return err.Error()
	}
}

// firstGet closes a channel when the first read is answered. A Locker that waits
// for nobody reads when the watch of its own key is confirmed, and never else.
type firstGet struct {
	clientv3.KV
	answered chan struct{}
	once     sync.Once
}

func (f *firstGet) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	resp, err := f.KV.Get(ctx, key, opts...)
	if err == nil {
		f.once.Do(func() { close(f.answered) })
	}
	return resp, err
}

// noLeaksIn returns an error unless the goroutines that were not there before
// end soon. It is [harness.NoLeaks] for a child process.
func noLeaksIn(ctx context.Context, before goleak.Option) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	err := goleak.Find(before)
	for err != nil && ctx.Err() == nil {
		err = goleak.Find(before)
	}
	return err
}
