package main

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock"
)

// strategy is how workers protect what they do.
type strategy string

const (
	// fenced is Do, with the token claimed at the resource before the read and
	// checked at the write. Half of the sections do not heed their context: the
	// fence has to hold for them too.
	fenced strategy = "fenced"
	// advisory is DoAdvisory: every section heeds its context and looks before
	// it writes, and the resource checks nothing.
	advisory strategy = "advisory"
	// peer is concurrency.Mutex on a session, as most code around it is: it
	// never looks whether the session is done, and the resource checks nothing.
	peer strategy = "peer"
)

var strategies = []strategy{fenced, advisory, peer}

func parseStrategy(text string) (strategy, error) {
	if s := strategy(text); slices.Contains(strategies, s) {
		return s, nil
	}
	var names []string
	for _, s := range strategies {
		names = append(names, string(s))
	}
	return "", fmt.Errorf("soak: no strategy %q; there are %s", text, strings.Join(names, ", "))
}

// keyPrefix is where every lock of a soak is, of the peer's too: the watch and
// the nemesis need not know whose key it is.
const keyPrefix = "fencelock/"

// locking is a strategy at work in a worker.
type locking interface {
	// section acquires the lock, has work done under it, and releases it.
	section(ctx context.Context, p plan, work func(h hold) error) error
	// close gives back what is held, and the lease.
	close() error
}

// hold is a lock as the work under it sees it.
type hold struct {
	ctx   context.Context // of the requests of work that heeds it
	token fencelock.Token // as good as the strategy has it; only fenced is checked
	// alive looks whether the lock is still held, as the strategy's users can.
	alive func() bool
	// onLoss calls tell when the work is told of a loss, without it looking.
	// Until stop was called.
	onLoss func(tell func(reason string)) (stop func())
}

func newLocking(s strategy, client *clientv3.Client, lock string, ttl, margin time.Duration) (locking, error) {
	if s == peer {
		return newMutex(client, lock, ttl), nil
	}
	l := &library{lock: lock, advisory: s == advisory}
	var err error
	l.locker, err = fencelock.New(client, fencelock.WithTTL(ttl), fencelock.WithMargin(margin),
		fencelock.WithPrefix(keyPrefix), fencelock.WithLogger(slog.New(slog.DiscardHandler)),
		fencelock.WithHooks(fencelock.Hooks{Acquired: l.acquired}))
	return l, err
}
