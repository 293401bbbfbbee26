package fencelock

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock/internal/clock"
	"github.com/fencelock/fencelock/internal/hook"
)

// Locker acquires locks on one etcd cluster. It has one lease, granted on
// first use and shared by all its locks: they are lost together when the lease
// is, so work that must not share a fate gets a Locker of its own. While nothing
// is held or waited for, the lease lapses, and soon nothing runs in the background. Its
// methods can be called from any goroutine. Close it before its client.
type Locker struct {
	client     *clientv3.Client
	clientDone <-chan struct{}
	cfg        config
	about      about
	random     string // tells this Locker's holder ids from all others

	ctx         context.Context // ends when everything in the background must
	cancel      context.CancelFunc
	wg          sync.WaitGroup // everything in the background
	jobs        chan func()    // to idle workers
	watchStream atomic.Int64   // which stream new watches go on; see view.run
	closing     chan struct{}  // closed when no new work is taken any more
	closeBegun  atomic.Bool
	closeResult error
	closeDone   chan struct{}

	mu        sync.Mutex // never held across I/O or a callback
	closed    bool       // no new work
	stopped   bool       // nothing may start in the background
	counter   uint64     // of acquisitions
	current   *lease
	leases    map[*lease]struct{} // all that may still be in etcd
	preparing *preparation
	views     map[string]*view // by key or prefix
	holds     int              // locks held, over all leases
	watches   int              // holders that watch their key
	change    chan struct{}    // closed and renewed when a hold or a slot is given back
	warned    map[string]struct{}
}

// preparation is one run of prepare, waited for by acquires.
type preparation struct {
	done chan struct{}
	err  error
}

// New returns a Locker that keeps its locks in the cluster of client, which
// stays the caller's to close, after the Locker. Nothing is sent to etcd. A nil
// client and a bad option are an error that wraps [ErrInvalidOption].
func New(client *clientv3.Client, opts ...Option) (*Locker, error) {
	if client == nil || client.KV == nil || client.Lease == nil || client.Watcher == nil {
		return nil, fmt.Errorf("%w: the etcd client is nil or was not made by clientv3.New", ErrInvalidOption)
	}
	cfg, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	if cfg.session != nil && cfg.session.Client() != client {
		return nil, fmt.Errorf("%w: WithSession of a session of another etcd client", ErrInvalidOption)
	}
	random := make([]byte, 8)
	if _, err := rand.Read(random); err != nil {
		return nil, fmt.Errorf("fencelock: drawing a random id: %w", err)
	}
	l := &Locker{
		client:    client,
		cfg:       cfg,
		about:     newAbout(cfg.label, hostName(), os.Getpid()),
		random:    hex.EncodeToString(random),
		jobs:      make(chan func()),
		closing:   make(chan struct{}),
		closeDone: make(chan struct{}),
		leases:    map[*lease]struct{}{},
		views:     map[string]*view{},
		change:    make(chan struct{}),
		warned:    map[string]struct{}{},
	}
	if ctx := client.Ctx(); ctx != nil {
		l.clientDone = ctx.Done()
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l, nil
}

// spawn runs f in the background, where Close waits for it, and reports
// whether it does: not once the Locker is stopped.
func (l *Locker) spawn(f func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.spawnLocked(f)
}

// spawnLocked is spawn with l.mu held, which is what keeps it from racing with
// Close's wait.
func (l *Locker) spawnLocked(f func()) bool {
	if l.stopped {
		return false
	}
	l.wg.Go(f)
	return true
}

// after runs f once d has passed, unless the Locker is stopped by then.
func (l *Locker) after(d time.Duration, f func()) *time.Timer {
	return time.AfterFunc(d, func() { l.spawn(f) })
}

// changed wakes those that wait for holds or slots to be given back; l.mu must
// be held.
func (l *Locker) changed() {
	if l.closed {
		close(l.change)
		l.change = make(chan struct{})
	}
}

// lockState is how far a lock's life has come.
type lockState int

const (
	lockHeld lockState = iota
	lockLost
	lockReleasing // Release was called in time; no loss is recorded any more
	lockReleased
)

// Lock is a lock that was acquired. It is held until [Lock.Release], or until
// it is lost, which its context and [Lock.Err] tell. Its methods can be called
// from any goroutine.
type Lock struct {
	l        *Locker
	entry    *entry
	token    Token
	advisory bool
	mustUse  bool            // its token, or Do returns an error
	caller   context.Context // the acquiring call's, for hooks
	ctx      heldContext
	cancel   context.CancelCauseFunc
	outer    *Lock // the hold it was acquired in
	granted  clock.Instant
	ttl      time.Duration

	loss atomic.Pointer[LostError]
	over atomic.Bool // lost, or Release was called

	// guarded by l.mu
	state    lockState
	returned bool // Release was called
	young    youngPlace
	maxHold  *time.Timer
	view     *view
	sub      *sub
	inner    map[*Lock]struct{} // locks acquired with this one's context

	done   chan struct{} // made with the first Release, closed when result is set
	result error
}

// Name returns the lock's name.
func (k *Lock) Name() string { return k.entry.name }

// Token returns the fencing token of this acquisition: pass it to every write
// that the lock is to protect. It stays the same after a loss and a release.
func (k *Lock) Token() Token { return k.token }

// Context returns the context of the hold. It has the values of the context
// given to Acquire, not its cancellation or deadline. It is cancelled when the
// lock is lost, with a [*LostError] as [context.Cause], and when Release is
// called, with [ErrReleased]; also if a lock is lost in whose callback, or with
// whose context, this one was acquired.
//
// Its Err and Done, and those of contexts that only add values to it, read the
// clock at the call: after a pause of the process they report the loss at once.
// Contexts derived with a cancel or a deadline report it when a timer has run.
func (k *Lock) Context() context.Context { return &k.ctx }

// Err returns nil while the lock is held, a [*LostError] once it is lost, and
// [ErrReleased] after Release was called on a lock that was not. It reads the
// clock and sends nothing: nil says that etcd cannot have given the lock to
// another by expiry, as far as this machine's clocks know.
func (k *Lock) Err() error {
	k.look()
	if loss := k.loss.Load(); loss != nil {
		return loss
	}
	if k.over.Load() {
		return ErrReleased
	}
	return nil
}

// markLost records the loss of a lock that is still held, and reports whether
// it was; then announceLoss must follow, without l.mu, which must be held here.
func (k *Lock) markLost(reason Reason, now time.Time, err error) bool {
	if k.state != lockHeld {
		return false
	}
	k.state = lockLost
	k.stopTimers()
	k.loss.Store(&LostError{
		Name: k.entry.name, Token: k.token, Reason: reason,
		LastConfirmed: k.entry.lease.lastConfirmed(), LostAt: now.Round(0), Err: err,
	})
	k.over.Store(true)
	return true
}

func (k *Lock) stopTimers() {
	k.entry.lease.young.remove(k)
	if k.maxHold != nil {
		k.maxHold.Stop()
	}
}

// announceLosses tells everybody of losses that were marked, and first of all the
// holders, every one of them: a log or a hook that is slow, or ends its goroutine,
// must not come between a holder and the end of its context.
func announceLosses(lost []*Lock) {
	for _, k := range lost {
		k.endContexts(k.loss.Load())
	}
	for _, k := range lost {
		k.announceLoss()
	}
}

// announceLoss tells everybody but the holder, whose context has ended.
func (k *Lock) announceLoss() {
	loss := k.loss.Load()
	k.endWatch()
	l := k.l
	attrs := []any{"lock", k.entry.name, "token", k.token, "reason", string(loss.Reason), "lastConfirmed", loss.LastConfirmed}
	if loss.Err != nil {
		attrs = append(attrs, "error", loss.Err)
	}
	l.cfg.log.Warn("fencelock: lock lost while it was held", attrs...)
	// It was running when the loss was marked, even if it has heard of the loss
	// and returned since.
	hook.Call(l.cfg.log, l.cfg.hooks.Lost, LostInfo{
		Context: k.caller, Err: loss, Held: clock.Since(k.granted), Running: true,
	})
}

// lose loses this lock alone, its lease lives on.
func (k *Lock) lose(reason Reason, err error) {
	l := k.l
	l.mu.Lock()
	lost := k.markLost(reason, time.Now(), err)
	l.mu.Unlock()
	if !lost {
		return
	}
	announceLosses([]*Lock{k})
	switch reason {
	case LostMaxHold:
		// One margin to stop in; then the key goes whether it has stopped or not.
		l.after(k.entry.lease.margin, k.entry.discard)
	case LostDeleted:
		// Perhaps the whole lease was revoked: the other locks on it should not
		// hear of that at the next renewal only.
		k.entry.lease.renewSoon()
	}
}

// watchOwnKey watches the key of a lock that is held for longer, so that an
// operator's deletion is felt soon. Where the Locker has the queue's view open
// that serves. Where too many do so already the key is polled.
func (k *Lock) watchOwnKey() {
	l := k.l
	// The key was there at its own revision, which is a snapshot.
	s := &sub{key: k.entry.key, rev: k.entry.rev, floor: k.entry.rev, tell: func(finding) { k.lose(LostDeleted, nil) }}
	l.mu.Lock()
	if k.state != lockHeld {
		l.mu.Unlock()
		return
	}
	if l.watches == maxOwnWatches {
		k.entry.lease.polled[k] = struct{}{}
		k.entry.lease.startPolling()
		l.mu.Unlock()
		return
	}
	key, prefix := k.entry.key, false
	if l.views[k.entry.queue] != nil {
		key, prefix = k.entry.queue, true
	}
	v, joined := l.openView(key, prefix, nil, k.ttl, s)
	if v == nil {
		l.mu.Unlock()
		return
	}
	k.view, k.sub = v, s
	l.watches++
	l.mu.Unlock()
	if !joined {
		v.subscribe(s)
	}
}

func (k *Lock) endWatch() {
	k.l.mu.Lock()
	v, s := k.view, k.sub
	if v != nil {
		k.l.watches--
	}
	k.view, k.sub = nil, nil
	k.l.mu.Unlock()
	if v != nil {
		v.unsubscribe(s)
		v.drop()
	}
}

// Release gives the lock back: it deletes the lock's key if it still is this
// acquisition's. Call it when the work has stopped, never before. A second call
// returns the first one's result.
//
// It returns nil if etcd confirmed it, which proves that the record named this
// holder from grant to release. If the lock was lost it returns the
// [*LostError], with Returned set, and the key is gone or going. If there was
// no clear answer it returns [ErrUnconfirmed], and the key goes on being deleted
// in the background, until it goes with its lease at the latest.
//
// It retries until ctx ends, or for the lease's TTL or 5 s, whichever is longer,
// if ctx has no deadline before. With a context that has already ended it takes
// 5 s at most. Of the lock's own context, or one made from it, only the deadline
// counts.
func (k *Lock) Release(ctx context.Context) error {
	if ctx == nil {
		return fmt.Errorf("%w: the context is nil", ErrInvalidOption)
	}
	bound := max(k.ttl, attemptBound)
	if ctx.Err() != nil {
		ctx, bound = context.WithoutCancel(ctx), attemptBound
	}
	for h := holdOf(ctx); h != nil; h = h.outer {
		if h == k {
			// The release itself ends that context, before there is an answer.
			deadline, ok := ctx.Deadline()
			ctx = context.WithoutCancel(ctx)
			if ok {
				bound = min(bound, max(time.Until(deadline), 0))
			}
			break
		}
	}
	return k.release(ctx, bound)
}

func (k *Lock) release(ctx context.Context, bound time.Duration) error {
	k.look() // a loss that nobody has noticed yet is a loss
	l, le := k.l, k.entry.lease
	now := time.Now()
	l.mu.Lock()
	if k.returned {
		l.mu.Unlock()
		select {
		case <-k.done:
			return k.result
		default:
		}
		ctx, cancel := context.WithTimeout(ctx, bound)
		defer cancel()
		select {
		case <-k.done:
			return k.result
		case <-ctx.Done():
			return fmt.Errorf("%w: lock %q: another Release is still under way: %w", ErrUnconfirmed, k.entry.name, ctx.Err())
		}
	}
	k.returned, k.done = true, make(chan struct{})
	inTime := k.state == lockHeld
	if inTime {
		k.state = lockReleasing
		k.over.Store(true)
		k.stopTimers()
	}
	l.mu.Unlock()
	defer close(k.done)
	k.unnest()

	if !inTime {
		k.result = k.leaveLost(now)
		return k.result
	}

	k.cancel(ErrReleased)
	k.endWatch()
	held := clock.Since(k.granted)
	started := clock.Now()
	found, clear, err := k.entry.release(ctx, bound)

	l.mu.Lock()
	k.state = lockReleased
	if clear {
		k.entry.freeLocked()
	} else {
		k.entry.discardLocked()
	}
	k.gone()
	l.mu.Unlock()

	info := ReleasedInfo{
		Context: k.caller, Name: k.entry.name, Token: k.token, Held: held, Took: clock.Since(started), TTL: k.ttl,
	}
	switch {
	case found:
		info.Confirmed = true
	case clear && err == nil:
		// The key was not there at the first answer: somebody deleted it, or it
		// went with its lease, while the lock was held.
		loss := &LostError{
			Name: k.entry.name, Token: k.token, Reason: LostDeleted,
			LastConfirmed: le.lastConfirmed(), LostAt: now.Round(0), Returned: now.Round(0),
		}
		if le.expired() {
			loss.Reason = LostExpired
		}
		k.loss.Store(loss)
		l.cfg.log.Warn("fencelock: lock was lost before it was released", "lock", k.entry.name, "token", k.token,
			"reason", string(loss.Reason), "lastConfirmed", loss.LastConfirmed)
		hook.Call(l.cfg.log, l.cfg.hooks.Lost, LostInfo{Context: k.caller, Err: loss, Held: held})
		k.result = loss
		return k.result
	default:
		info.Err = fmt.Errorf("%w: lock %q (token %s): %w", ErrUnconfirmed, k.entry.name, k.token, err)
		l.cfg.log.Warn("fencelock: release not confirmed; the key goes on being deleted, and goes with its lease at the latest",
			"lock", k.entry.name, "token", k.token, "error", err)
	}
	hook.Call(l.cfg.log, l.cfg.hooks.Released, info)
	k.result = info.Err
	return k.result
}

// gone takes the lock off its lease's books; l.mu must be held.
func (k *Lock) gone() {
	l := k.l
	delete(k.entry.lease.holds, k)
	delete(k.entry.lease.polled, k)
	l.holds--
	l.endIfDone(k.entry.lease)
	l.changed()
}

// leaveLost ends a lock that was lost, when its holder has returned.
func (k *Lock) leaveLost(now time.Time) error {
	l, le := k.l, k.entry.lease
	lost := *k.loss.Load()
	lost.Returned = now.Round(0)
	l.mu.Lock()
	switch {
	case lost.Reason == LostDeleted:
		k.entry.freeLocked()
	case lost.Reason == LostMaxHold, le.adopted:
		k.entry.discardLocked()
	default:
		// The key goes with its lease, which is revoked when the last holder on
		// it has returned, or by Close.
	}
	k.gone()
	l.mu.Unlock()
	k.cancel(&lost) // it is cancelled already, unless the marking is very recent
	hook.Call(l.cfg.log, l.cfg.hooks.ReturnedAfterLoss, ReturnedAfterLossInfo{
		Context: k.caller, Err: &lost, After: lost.Returned.Sub(lost.LostAt),
	})
	return &lost
}

// release deletes the key until there is an answer, ctx ends or bound has passed. clear says
// that the key is known to be gone and to what it was: found, or not there at
// the first answer with no unanswered attempt before. Absent after an unanswered
// one is not clear: that attempt, or somebody else, may have deleted it.
func (e *entry) release(ctx context.Context, bound time.Duration) (found, clear bool, err error) {
	began := clock.Now()
	attempt := func() {
		actx, cancel := context.WithTimeout(ctx, min(releaseAttempt, bound))
		found, err = e.delete(actx)
		cancel()
	}
	attempt() // the only one, as a rule: it needs no second deadline around it
	if err != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, bound-clock.Since(began))
		defer cancel()
	}
	pause := backoff{first: 20 * time.Millisecond, max: time.Second}
	unanswered := false
	for ; ; attempt() {
		switch {
		case err == nil && (found || !unanswered):
			return found, true, nil
		case err == nil:
			return false, true, errors.New("the key was gone after an attempt without an answer")
		case refused(err):
			return false, false, deniedAt("releasing", err, e.queue)
		}
		unanswered = true
		if e.lease.l.clientClosed() {
			return false, false, errClientClosed
		}
		if ctx.Err() != nil || pause.wait(ctx) != nil {
			return false, false, fmt.Errorf("%w: %w", errNoAnswer, err)
		}
	}
}

// releaseAttempt bounds one attempt to release, so that the next can reach
// another endpoint while the caller still waits.
const releaseAttempt = 2 * time.Second

// Do acquires the lock name, runs fn, and releases the lock. It is for
// correctness: fn gets a fencing token, and the lock protects exactly what
// checks that token: pass it to every write, through one of the fences or
// [Token.IsOwner].
//
// fn runs in the caller's goroutine with a child of ctx, which is also cancelled
// when the lock is lost; see [Lock.Context]. fn should return then, as it should
// when ctx ends; the lock is kept until it does, except that with [MaxHold], and
// after [Locker.Close], the key goes one margin after the context. Nothing can
// stop a fn that goes on, but the fence. The lock is released also if fn panics,
// which is passed on, or calls [runtime.Goexit]. The release is bounded to 5 s
// and does not depend on ctx.
//
// If fn did not run, the error is [ErrInvalidOption], [ErrInvalidName],
// [ErrReentrant], [ErrClosed], an [*AcquireError], or a [*HeldError] if
// [MaxWait] ran out; nothing is left in etcd, or it is being cleaned up. If it
// ran:
//
//   - nil: fn returned nil, and etcd's record named this holder from grant to
//     release.
//   - [ErrLost], joined with fn's error if there is one: the lock was lost
//     meanwhile, as the [*LostError] says. What fn wrote through a fence before
//     the next holder came is there.
//   - [ErrUnconfirmed], joined with fn's error: the release had no clear answer.
//   - [ErrTokenRegression]: a fence refused this token although the lock was
//     held throughout.
//   - [ErrTokenUnused]: see [RequireTokenUse]. Without that option a callback
//     that never used its token is logged as a warning, once a name.
//   - else fn's error.
func (l *Locker) Do(ctx context.Context, name string, fn func(ctx context.Context, token Token) error, opts ...LockOption) error {
	if fn == nil {
		return errNilCallback
	}
	_, err := l.do(ctx, acquiring{name: name, kind: kindDo, opts: opts, fn: fn})
	return err
}

// DoAdvisory is [Locker.Do] for efficiency: two runs at once would waste work
// and do no harm. fn gets no token, and nothing protects a resource from a
// holder that lost the lock and goes on. Do and DoAdvisory of one name exclude
// each other. It returns what Do returns, without the errors that concern tokens.
func (l *Locker) DoAdvisory(ctx context.Context, name string, fn func(ctx context.Context) error, opts ...LockOption) error {
	if fn == nil {
		return errNilCallback
	}
	_, err := l.do(ctx, acquiring{name: name, kind: kindAdvisory, opts: opts, fn: func(ctx context.Context, _ Token) error { return fn(ctx) }})
	return err
}

var errNilCallback = fmt.Errorf("%w: the callback is nil", ErrInvalidOption)

// kind is which method an acquisition came from.
type kind int

const (
	kindDo kind = iota
	kindAdvisory
	kindAcquire
	kindTry
)

// outcome is what became of a call, beside its error.
type outcome struct {
	lock *Lock // nil if it was not acquired
	loss *LostError
}

func (l *Locker) do(ctx context.Context, c acquiring) (outcome, error) {
	k, err := l.acquire(ctx, c)
	if err != nil {
		return outcome{}, err
	}
	returned := false
	defer func() {
		if !returned { // fn panicked or called Goexit
			_ = k.releaseDetached() // whatever became of it is logged
		}
	}()
	err = c.fn(&k.ctx, k.token)
	returned = true
	return k.conclude(err)
}

func (k *Lock) releaseDetached() error {
	return k.release(context.WithoutCancel(k.caller), attemptBound)
}

// conclude releases the lock and says what became of the call whose callback
// returned fnErr.
func (k *Lock) conclude(fnErr error) (outcome, error) {
	err := k.releaseDetached()
	o := outcome{lock: k}
	switch {
	case err != nil:
		var loss *LostError
		errors.As(err, &loss)
		o.loss = loss
		// The release's error comes first: a callback likes to return the cause
		// of its context, which is the loss as it was before the callback
		// returned, and errors.As must not find that one.
		if loss, same := fnErr.(*LostError); fnErr != nil && !(same && loss == k.loss.Load()) {
			err = errors.Join(err, fnErr)
		}
		return o, err
	case k.advisory:
		return o, fnErr
	case fnErr != nil:
		if stale := staleFor(fnErr, k.token); stale != nil {
			return o, &regressionError{stale: stale, err: fnErr}
		}
		return o, fnErr
	case k.token.wasUsed():
		return o, nil
	}
	hook.Call(k.l.cfg.log, k.l.cfg.hooks.TokenUnused, TokenUnusedInfo{Context: k.caller, Name: k.entry.name, Token: k.token})
	if k.mustUse {
		return o, fmt.Errorf("%w (lock %q)", ErrTokenUnused, k.entry.name)
	}
	k.l.warnUnused(k.entry.name)
	return o, nil
}

// maxWarned bounds the names remembered as warned about.
const maxWarned = 1024

func (l *Locker) warnUnused(name string) {
	l.mu.Lock()
	_, known := l.warned[name]
	known = known || len(l.warned) >= maxWarned
	if !known {
		l.warned[name] = struct{}{}
	}
	l.mu.Unlock()
	if !known {
		l.cfg.log.Warn("fencelock: the callback of Do never used its fencing token, so nothing protects what it writes; "+
			"check the token where the effect lands, or use DoAdvisory", "lock", name)
	}
}

// Lead keeps fn running on one holder at a time: it acquires the lock, runs fn
// as [Locker.Do] does, and if the lock is lost acquires it again, once fn has
// returned. Each run has a token of its own. After an error of etcd's it tries
// again, after a pause that grows from 0.1 s to 5 s. So it does when [MaxWait]
// ran out, which makes it leave the queue and join it again at its end: Lead is
// better used without.
//
// It returns fn's result, as Do gives it, when fn returns while it still holds
// the lock; an error that is the context's when ctx ends; and at once what no
// repetition can mend: a bad argument, [ErrReentrant], [ErrClosed], a permission
// that etcd denies, a key that blocks the queue, the loss of an adopted session.
func (l *Locker) Lead(ctx context.Context, name string, fn func(ctx context.Context, token Token) error, opts ...LockOption) error {
	if fn == nil {
		return errNilCallback
	}
	pause := backoff{first: 100 * time.Millisecond, max: 5 * time.Second}
	for {
		o, err := l.do(ctx, acquiring{name: name, kind: kindDo, opts: opts, fn: fn})
		switch {
		case o.lock == nil && (ctx == nil || ctx.Err() != nil || final(err)):
			return err
		case o.lock != nil && (o.loss == nil || o.loss.Reason == LostClosed):
			return err
		case o.lock != nil && ctx.Err() != nil:
			if cause := context.Cause(ctx); !errors.Is(err, cause) {
				err = errors.Join(err, cause)
			}
			return err
		case o.lock != nil && clock.Since(o.lock.granted) > o.lock.ttl:
			pause.reset()
		}
		if pause.wait(ctx) != nil {
			return errors.Join(context.Cause(ctx), err)
		}
	}
}

// final reports whether an acquiring call's error cannot be mended by another
// try.
func final(err error) bool {
	for _, f := range []error{ErrInvalidOption, ErrInvalidName, ErrReentrant, ErrClosed, ErrForeignKey, ErrLost, errClientClosed} {
		if errors.Is(err, f) {
			return true
		}
	}
	return denied(err)
}

// Acquire acquires the lock name, waiting in first-in-first-out order, and
// returns it held. The caller must Release it, and should watch its Context.
// [Locker.Do] does both; Acquire is for where a callback does not fit.
//
// The wait ends when ctx does, and can be bounded with [MaxWait]. What comes
// before it, obtaining the lease and joining the queue, is given up after 10 s or
// the TTL, whichever is shorter, if etcd does not answer. The error is
// [ErrInvalidOption], [ErrInvalidName], [ErrReentrant], [ErrClosed], an
// [*AcquireError] that says how far it came, or a [*HeldError] if MaxWait ran
// out. Then nothing is left in etcd, or it is being cleaned up.
func (l *Locker) Acquire(ctx context.Context, name string, opts ...LockOption) (*Lock, error) {
	return l.acquire(ctx, acquiring{name: name, kind: kindAcquire, opts: opts})
}

// TryAcquire acquires the lock name if nobody has it or waits for it, with one
// request that leaves nothing in etcd otherwise. If somebody does, the error is
// a [*HeldError] that names the holder. The other errors are Acquire's.
func (l *Locker) TryAcquire(ctx context.Context, name string, opts ...LockOption) (*Lock, error) {
	return l.acquire(ctx, acquiring{name: name, kind: kindTry, opts: opts})
}
