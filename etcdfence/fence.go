package etcdfence

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/hook"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Fence applies effects to one etcd and refuses stale tokens. It keeps the rule
// of every fence: a token below the highest seen of its lock, or equal to it but of
// another holder, is refused; any other becomes the highest, in one transaction with
// the effect.
//
// It is made by [New]. Its methods can be called from any goroutine.
type Fence struct {
	kv     clientv3.KV
	prefix string // of the keys of the marks
	scope  string // the only lock, empty for any
	maxOps int    // etcd's --max-txn-ops
	hooks  fencelock.Hooks
}

// New returns a fence for the etcd behind kv, which it does not close: a
// [clientv3.Client], or its KV alone, also one of package namespace. It sends no
// request. A nil kv and a bad option are errors that wrap
// [fencelock.ErrInvalidOption] or [fencelock.ErrInvalidName].
func New(kv clientv3.KV, opts ...Option) (*Fence, error) {
	if kv == nil || reflect.ValueOf(kv).Kind() == reflect.Pointer && reflect.ValueOf(kv).IsNil() {
		return nil, fmt.Errorf("%w: etcdfence.New of a nil client", fencelock.ErrInvalidOption)
	}
	f := &Fence{kv: kv, prefix: defaultPrefix, maxOps: defaultMaxTxnOps}
	for _, opt := range opts {
		if opt == nil {
			return nil, fmt.Errorf("%w: etcdfence.New with a nil option", fencelock.ErrInvalidOption)
		}
		if err := opt(f); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// Advance raises the mark to token without an effect: from its return on
// nothing of an earlier holder is applied. Call it before the first read that is not
// made in a fenced transaction. It returns what [Txn.Commit] returns.
func (f *Fence) Advance(ctx context.Context, token fencelock.Token) error {
	_, err := f.Txn(ctx, token).Commit()
	return err
}

// Highest returns the mark of the lock called name: the highest token that passed,
// or the zero Token if there is none. It is for people and tests. What it returns can
// be outdated at once, so it is no check. It fails with [fencelock.ErrInvalidName],
// [ErrDamagedMark], ctx's error and cause, or what etcd said.
func (f *Fence) Highest(ctx context.Context, name string) (fencelock.Token, error) {
	if ctx == nil {
		return fencelock.Token{}, errNilContext()
	}
	if err := checkName(name); err != nil {
		return fencelock.Token{}, err
	}
	resp, err := f.kv.Get(ctx, f.markKey(name))
	if err != nil {
		return fencelock.Token{}, fmt.Errorf("etcdfence: cannot read the mark of lock %q: %w", name, because(ctx, err))
	}
	if len(resp.Kvs) == 0 {
		return fencelock.Token{}, nil
	}
	return f.readMark(name, string(resp.Kvs[0].Value))
}

func (f *Fence) readMark(name, value string) (fencelock.Token, error) {
	token, ok := parseMark(name, value)
	if !ok {
		return fencelock.Token{}, fmt.Errorf("%w: key %q has the value %.200q; it is no revision of %d digits, '.' and a holder",
			ErrDamagedMark, f.markKey(name), value, revisionDigits)
	}
	return token, nil
}

// admit refuses what needs no etcd.
func (f *Fence) admit(token fencelock.Token) error {
	switch {
	case token.IsZero():
		return fencelock.ErrNoToken
	case f.scope != "" && token.Name() != f.scope:
		return fmt.Errorf("%w: %q, this fence guards %q", fencelock.ErrScope, token.Name(), f.scope)
	}
	return nil
}

// rejected calls the hook.
func (f *Fence) rejected(token fencelock.Token, err error) {
	hook.Call(nil, f.hooks.TokenRejected, fencelock.TokenRejectedInfo{Token: token, Err: err})
}

// checkName finds what the root package says of a name.
func checkName(name string) error {
	// An empty text is never a token; the name is looked at first.
	if _, err := fencelock.ParseToken(name, ""); errors.Is(err, fencelock.ErrInvalidName) {
		return err
	}
	return nil
}

func errNilContext() error {
	return fmt.Errorf("%w: the context is nil", fencelock.ErrInvalidOption)
}
