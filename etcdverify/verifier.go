package etcdverify

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencelock/fencelock"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	defaultKey = "fencelock/"

	// readTimeout bounds a read, which no single caller's context does because
	// it serves several.
	readTimeout = 5 * time.Second
)

// Option configures [New].
type Option func(*Verifier) error

// WithKey sets the key that is read to learn etcd's revision, "fencelock/" by
// default. It need not exist. Where etcd has authentication on, the client's user
// must have the permission to read it. An empty key is an error.
func WithKey(key string) Option {
	return func(v *Verifier) error {
		if key == "" {
			return fmt.Errorf("%w: etcdverify.WithKey of an empty key", fencelock.ErrInvalidOption)
		}
		v.key = key
		return nil
	}
}

// Verifier compares tokens with etcd's current revision. It is made by [New], and
// can be used from any goroutine.
//
// It asks etcd only about tokens above the highest revision it has seen, which for
// honest clients is about once for each grant of a lock; and with one read at a time
// for however many, so that made-up tokens cannot flood etcd through the service.
type Verifier struct {
	client *clientv3.Client
	key    string

	seen atomic.Int64 // a revision that etcd has reached

	mu      sync.Mutex
	next    *read // not sent yet: what is asked from now on can be answered by it
	reading bool
}

// read is one look at etcd's revision, shared by those who asked before it began.
type read struct {
	done     chan struct{}
	revision int64
	err      error
}

// New returns a verifier that asks the etcd behind client, which is the one the
// locks are in. It sends no request, and does not close the client. A nil client and
// a bad option are errors that wrap [fencelock.ErrInvalidOption].
func New(client *clientv3.Client, opts ...Option) (*Verifier, error) {
	if client == nil {
		return nil, fmt.Errorf("%w: etcdverify.New of a nil client", fencelock.ErrInvalidOption)
	}
	v := &Verifier{client: client, key: defaultKey}
	for _, opt := range opts {
		if opt == nil {
			return nil, fmt.Errorf("%w: etcdverify.New with a nil option", fencelock.ErrInvalidOption)
		}
		if err := opt(v); err != nil {
			return nil, err
		}
	}
	return v, nil
}

// Verify returns nil if etcd's revision has reached the token's. It returns:
//
//   - [fencelock.ErrNoToken]: the token is zero; no request was sent;
//   - an error that wraps [fencelock.ErrInvalidToken]: etcd answered a read that
//     began after this call with a smaller revision, so the token was not issued by
//     it. After etcd was restored from a snapshot without --bump-revision that can
//     be said of honest tokens from before;
//   - any other: etcd gave no answer, in time or until ctx ended, whose error and
//     cause it then is. The token is neither good nor bad.
//
// It returns when ctx ends, and within 10 s: a read has 5 s, and what is left of the one
// under way comes first. A read that nobody waits for any more ends by itself. Tokens
// up to a revision that was seen need no read, and pass also while etcd is silent.
func (v *Verifier) Verify(ctx context.Context, token fencelock.Token) error {
	if ctx == nil {
		return fmt.Errorf("%w: the context is nil", fencelock.ErrInvalidOption)
	}
	if token.IsZero() {
		return fencelock.ErrNoToken
	}
	if token.Revision() <= v.seen.Load() {
		return nil
	}
	r := v.ask()
	select {
	case <-r.done:
	case <-ctx.Done():
		return fmt.Errorf("etcdverify: token %s was not verified: %w", token, ended(ctx))
	}
	switch {
	case r.err != nil:
		return fmt.Errorf("etcdverify: token %s was not verified: cannot read etcd's revision: %w", token, r.err)
	case token.Revision() > r.revision:
		return fmt.Errorf("%w: %s was never issued, etcd is at revision %d", fencelock.ErrInvalidToken, token, r.revision)
	}
	return nil
}

// ask returns a read that has not begun yet. One that is under way will not do:
// it may have passed etcd before the token was issued.
func (v *Verifier) ask() *read {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.next == nil {
		v.next = &read{done: make(chan struct{})}
	}
	if !v.reading {
		v.reading = true
		go v.serve() // ends when nobody asks; each read has a bound
	}
	return v.next
}

func (v *Verifier) serve() {
	for {
		v.mu.Lock()
		r := v.next
		v.next = nil
		if r == nil {
			v.reading = false
			v.mu.Unlock()
			return
		}
		v.mu.Unlock()

		r.revision, r.err = v.read()
		v.raise(r.revision)
		close(r.done)
	}
}

// read returns etcd's revision, by a linearizable read: one member's own view, as
// Status has it, can be older than a token.
func (v *Verifier) read() (int64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	resp, err := v.client.Get(ctx, v.key, clientv3.WithCountOnly())
	if err != nil {
		return 0, err
	}
	return resp.Header.Revision, nil
}

func (v *Verifier) raise(revision int64) {
	// Only serve calls it, and there is one at a time.
	if revision > v.seen.Load() {
		v.seen.Store(revision)
	}
}

func ended(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if cause == err {
		return err
	}
	return fmt.Errorf("%w: %w", err, cause)
}
