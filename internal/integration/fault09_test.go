package integration

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/integration/harness"
)

// mortalTTL is the TTL of those who die in the tests of row 9.
const mortalTTL = 2 * time.Second

// mortalRole holds a lock until it is killed, or, told to "churn", takes it and
// gives it back all the time.
func mortalRole(c *harness.Child) error {
	addr, name, manner := c.Args()[0], c.Args()[1], c.Args()[2]
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{addr}, Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	l, err := fencelock.New(client, fencelock.WithTTL(mortalTTL), fencelock.WithLabel("mortal"),
		fencelock.WithHooks(fencelock.Hooks{
			Renewed: func(fencelock.RenewedInfo) { c.Emit("renewed") },
		}))
	if err != nil {
		return err
	}
	for {
		k, err := l.Acquire(c.Context(), name)
		if err != nil {
			return err
		}
		c.Emit("held", k.Token())
		if manner != "churn" {
			<-c.Context().Done()
			return errors.New("to be killed, not told")
		}
		if err := k.Release(c.Context()); err != nil {
			return err
		}
	}
}

// TestFault09HolderKilled kills the process of a holder, at different moments of
// the life of its lease and of its work. A key without a lease, or one whose
// lease somebody else renews, would block the lock for ever; and a waiter that
// asks only now and then, or that watches one key only which then turns out to be
// that of a dead waiter, would come much later than it could.
func TestFault09HolderKilled(t *testing.T) {
	harness.Parallel(t)
	cluster := harness.StartCluster(t, harness.ClusterConfig{})
	clean := harness.NewClient(t, cluster.Endpoints()...)
	addr := cluster.Members[0].Addr()
	rnd := newRandom(t)

	cases := map[string]func(*testing.T){
		"right after the grant": func(t *testing.T) {
			killedWhileHolding(t, addr, clean, func(*harness.Process) {})
		},
		"right after a renewal": func(t *testing.T) {
			killedWhileHolding(t, addr, clean, func(p *harness.Process) { p.Expect("renewed", eventually) })
		},
		"with a dead waiter ahead": func(t *testing.T) { killedWithAWaiter(t, addr, clean) },
		"and nobody waits yet":     func(t *testing.T) { killedAndNobodyWaits(t, addr, clean) },
	}
	for i := range 2 {
		held, worked := time.Duration(rnd.Int64N(int64(mortalTTL))), time.Duration(rnd.Int64N(int64(100*time.Millisecond)))
		cases[fmt.Sprintf("some time after the grant, %d", i)] = func(t *testing.T) {
			killedWhileHolding(t, addr, clean, func(*harness.Process) { <-time.After(held) })
		}
		cases[fmt.Sprintf("while it takes and gives back, %d", i)] = func(t *testing.T) {
			killedAtWork(t, addr, worked)
		}
	}
	atOnce(t, cases, func(t *testing.T, run func(*testing.T)) { run(t) })
	harness.NothingLeft(t, clean, keyPrefix)
}

func startMortal(t *testing.T, addr, manner string) *harness.Process {
	t.Helper()
	return harness.Start(t, "mortal", addr, t.Name(), manner)
}

func heldBy(t *testing.T, p *harness.Process) fencelock.Token {
	t.Helper()
	token, err := fencelock.ParseToken(t.Name(), p.Expect("held", eventually).Text)
	require.NoError(t, err)
	return token
}

// killedWhileHolding: one waits already.
func killedWhileHolding(t *testing.T, addr string, clean *clientv3.Client, await func(*harness.Process)) {
	deletions := harness.WatchDeletions(t, clean, queueOf(t.Name()))
	holder := startMortal(t, addr, "hold")
	old := heldBy(t, holder)
	waiter := newParty(t, calmTTL, addr)
	granted := waiter.queue(t, clean, t.Name(), 1)
	await(holder)
	holder.Kill()
	died := time.Now()

	next := harness.Receive(t, granted, eventually, "grant to the waiter")
	waiter.requireInherited(t, next, died, old)
	gone := deletions.Expect(old.Revision(), eventually)
	t.Logf("its key was deleted %v after the death", gone.At.Sub(died))
	waiter.leaveInheritance(t, next)
}

// killedWithAWaiter: the one that was to be next dies too.
func killedWithAWaiter(t *testing.T, addr string, clean *clientv3.Client) {
	holder := startMortal(t, addr, "hold")
	heldBy(t, holder)
	dead := startMortal(t, addr, "hold")
	require.Eventually(t, func() bool { return len(harness.Keys(t, clean, queueOf(t.Name()))) == 2 },
		eventually, 5*time.Millisecond, "no waiter joined the queue")
	queue, err := clean.Get(t.Context(), queueOf(t.Name()), clientv3.WithLastCreate()...)
	require.NoError(t, err)
	waiter := newParty(t, calmTTL, addr)
	granted := waiter.queue(t, clean, t.Name(), 2)
	holder.Kill()
	dead.Kill()
	died := time.Now()

	next := harness.Receive(t, granted, eventually, "grant to the waiter")
	require.False(t, slices.ContainsFunc(dead.Events(), func(e harness.Event) bool { return e.Name == "held" }),
		"the dead waiter was granted the lock")
	require.Greater(t, next.lock.Token().Revision(), queue.Kvs[0].CreateRevision)
	waiter.requireInherited(t, next, died, fencelock.Token{})
	waiter.leaveInheritance(t, next)
}

// killedAndNobodyWaits: who comes meanwhile is told whose lock it is.
func killedAndNobodyWaits(t *testing.T, addr string, clean *clientv3.Client) {
	holder := startMortal(t, addr, "hold")
	old := heldBy(t, holder)
	other := newParty(t, calmTTL, addr)
	holder.Kill()
	died := time.Now()

	_, err := other.TryAcquire(t.Context(), t.Name())
	var held *fencelock.HeldError
	require.ErrorAs(t, err, &held)
	require.Equal(t, "mortal", held.Holder.Label)
	require.Equal(t, holder.PID(), held.Holder.PID)
	require.True(t, held.Holder.Token.Equal(old))

	next := harness.Receive(t, other.queue(t, clean, t.Name(), 1), eventually, "grant")
	other.requireInherited(t, next, died, old)
	other.leaveInheritance(t, next)
}

// killedAtWork: perhaps between a request and its answer.
func killedAtWork(t *testing.T, addr string, after time.Duration) {
	holder := startMortal(t, addr, "churn")
	heldBy(t, holder)
	other := newParty(t, calmTTL, addr)
	<-time.After(after)
	holder.Kill()
	died := time.Now()
	var last fencelock.Token
	for _, e := range holder.Events() {
		if e.Name != "held" {
			continue
		}
		token, err := fencelock.ParseToken(t.Name(), e.Text)
		require.NoError(t, err)
		require.Positive(t, token.Compare(last), "tokens rise")
		last = token
	}

	lock, err := other.Acquire(atMost(t, eventually), t.Name())
	next := grant{lock, err, time.Now()}
	other.requireInherited(t, next, died, last)
	other.leaveInheritance(t, next)
}

// requireInherited checks that the lock of a dead process came in time.
func (p *party) requireInherited(t *testing.T, next grant, died time.Time, old fencelock.Token) {
	t.Helper()
	require.NoError(t, next.err)
	t.Logf("granted %v after the death", next.at.Sub(died))
	require.Less(t, next.at.Sub(died), mortalTTL+time.Second+late)
	require.Positive(t, next.lock.Token().Compare(old), "tokens rise")
	acquired := reported[fencelock.AcquiredInfo](p.told)
	require.Len(t, acquired, 1)
	require.True(t, acquired[0].Token.Equal(next.lock.Token()))
	for _, w := range reported[fencelock.WaitedInfo](p.told) {
		require.True(t, w.Granted)
	}
}

// leaveInheritance gives the lock back and closes the Locker.
func (p *party) leaveInheritance(t *testing.T, next grant) {
	t.Helper()
	require.NoError(t, next.lock.Release(t.Context()))
	require.NoError(t, p.Close())
}
