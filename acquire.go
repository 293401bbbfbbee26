package fencelock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock/internal/clock"
	"github.com/fencelock/fencelock/internal/hook"
)

// acquiring is one acquiring call.
type acquiring struct {
	name string
	kind kind
	opts []LockOption
	fn   func(ctx context.Context, token Token) error

	l   *Locker
	ctx context.Context
	cfg lockConfig

	started time.Time
	joined  clock.Instant // when it first stood in the queue
	queued  bool          // it has waited behind somebody
	lastErr error         // the last thing etcd said that did not end it
}

// acquire acquires the lock, or explains why not and leaves nothing behind.
func (l *Locker) acquire(ctx context.Context, a acquiring) (*Lock, error) {
	a.l, a.ctx, a.started = l, ctx, time.Now()
	if err := a.validate(); err != nil {
		return nil, err
	}
	k, err := a.run()
	var wait time.Duration
	if a.queued {
		wait = clock.Since(a.joined)
		hook.Call(l.cfg.log, l.cfg.hooks.Waited, WaitedInfo{
			Context: ctx, Name: a.name, Wait: wait, Granted: err == nil,
		})
	}
	if err != nil {
		result := resultOf(err)
		if result == ResultHeld && a.queued {
			result = ResultWaitExpired
		}
		hook.Call(l.cfg.log, l.cfg.hooks.NotAcquired, NotAcquiredInfo{
			Context: ctx, Name: a.name, Result: result, Took: time.Since(a.started), Wait: wait, Err: err,
		})
		return nil, err
	}
	info := AcquiredInfo{
		Context: ctx, Name: a.name, Token: k.token, Started: a.started, Took: time.Since(a.started),
		Waited: a.queued, Wait: wait, Advisory: k.advisory, TTL: k.ttl,
	}
	k.ctx.addValues(info)
	hook.Call(l.cfg.log, l.cfg.hooks.Acquired, info)
	return k, nil
}

// validate refuses what cannot work, before anything is sent.
func (a *acquiring) validate() error {
	if a.ctx == nil {
		return fmt.Errorf("%w: the context is nil", ErrInvalidOption)
	}
	if err := checkName(a.name); err != nil {
		return err
	}
	// The Locker's defaults are not meant for every kind of call; what was
	// given to this very call is.
	given, err := lockConfig{}.with(a.opts)
	if err != nil {
		return err
	}
	if given.maxWaitSet && a.kind == kindTry {
		return fmt.Errorf("%w: MaxWait with TryAcquire, which never waits; use Acquire", ErrInvalidOption)
	}
	if given.requireUse && a.kind == kindAdvisory {
		return fmt.Errorf("%w: RequireTokenUse with DoAdvisory, which has no token; use Do", ErrInvalidOption)
	}
	if given.requireUse && a.kind != kindDo {
		return fmt.Errorf("%w: RequireTokenUse with Acquire or TryAcquire, which have no callback; use Do", ErrInvalidOption)
	}
	if a.cfg, err = a.l.cfg.lock.with(a.opts); err != nil {
		return err
	}
	if a.l.isClosed() {
		return ErrClosed
	}
	for k := holdOf(a.ctx); k != nil; k = k.outer {
		if k.l == a.l && k.entry.name == a.name && k.unreleased() {
			return fmt.Errorf("%w (lock %q)", ErrReentrant, a.name)
		}
	}
	return nil
}

func (l *Locker) clientClosed() bool {
	select {
	case <-l.clientDone:
		return true
	default:
		return false
	}
}

func (l *Locker) isClosed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed
}

func (k *Lock) unreleased() bool {
	k.l.mu.Lock()
	defer k.l.mu.Unlock()
	return !k.returned
}

// alone reports whether the call joins the queue only if it is empty.
func (a *acquiring) alone() bool {
	return a.kind == kindTry || a.cfg.maxWaitSet && a.cfg.maxWait == 0
}

// fail makes the error of an acquire that ended in phase. The context's error
// and the last thing etcd said are both in it.
func (a *acquiring) fail(phase Phase, err error) error {
	if cerr := a.ctx.Err(); cerr != nil {
		if cause := context.Cause(a.ctx); !errors.Is(err, cause) {
			err = join(cause, err)
		}
		if !errors.Is(err, cerr) {
			err = join(cerr, err)
		}
	}
	if a.lastErr != nil && !errors.Is(err, a.lastErr) {
		err = join(err, a.lastErr)
	}
	if a.l.clientClosed() && !errors.Is(err, errClientClosed) {
		// What a request under way says then is gRPC's word for it.
		err = join(errClientClosed, err)
	}
	if a.l.isClosed() && !errors.Is(err, ErrClosed) {
		err = join(ErrClosed, err) // likewise: Close ends what is under way
	}
	return &AcquireError{Name: a.name, Phase: phase, Err: err}
}

// join is errors.Join on one line.
func join(first, second error) error {
	switch {
	case first == nil:
		return second
	case second == nil:
		return first
	}
	return fmt.Errorf("%w; %w", first, second)
}

// run goes round until the lock is granted or the call is over. A round is one
// place in the queue: a slot on a lease, a key, a wait. A place is lost when
// its key is deleted or its lease is lost; then there is another round.
func (a *acquiring) run() (*Lock, error) {
	// Slots found taken in etcd, by another Locker on the same session, stay
	// reserved up to the end of the call, so that the next round takes another.
	var taken []*entry
	defer func() {
		for _, e := range taken {
			e.free()
		}
	}()
	pause := backoff{first: 50 * time.Millisecond, max: time.Second}
	for {
		if a.ctx.Err() != nil || a.l.clientClosed() {
			return nil, a.fail(a.phase(), nil)
		}
		e, err := a.l.reserve(a.ctx, a.name)
		if err == nil {
			e.write(a.l)
			var k *Lock
			k, err = a.round(e, &taken)
			if k != nil {
				return k, nil
			}
		} else {
			err = &stopped{phase: PhaseLease, err: err}
		}
		var s *stopped
		switch {
		case err == nil && e.lease.alive():
			continue // its key was deleted, or the slot was taken
		case err == nil:
			// Its lease was lost. The next one can be had at once, but not ever
			// so many of them in a row.
		case !errors.As(err, &s):
			return nil, err
		case !a.queued || a.waitLeft() <= 0 || a.ctx.Err() != nil || a.l.clientClosed() || final(s.err):
			return nil, a.fail(s.phase, s.err)
		default:
			// It had a place in the queue and lost it. An outage is no reason to
			// give up while its context lives.
			a.lastErr = s.err
		}
		_ = pause.wait(a.ctx) // the next round begins with asking the context
	}
}

func (le *lease) alive() bool {
	select {
	case <-le.dead:
		return false
	default:
		return true
	}
}

// phase is where a call stands between two rounds.
func (a *acquiring) phase() Phase {
	if a.queued {
		return PhaseWait
	}
	return PhaseLease
}

// stopped is the end of a round by an error, in a phase.
type stopped struct {
	phase Phase
	err   error
}

func (s *stopped) Error() string { return s.err.Error() }
func (s *stopped) Unwrap() error { return s.err }

// waitLeft is what [MaxWait] leaves of the time in the queue.
func (a *acquiring) waitLeft() time.Duration {
	if !a.cfg.maxWaitSet {
		return 1<<63 - 1
	}
	if !a.queued {
		return a.cfg.maxWait
	}
	return a.cfg.maxWait - clock.Since(a.joined)
}

// reserve takes a slot on a usable lease, and first makes the lease usable.
func (l *Locker) reserve(ctx context.Context, name string) (*entry, error) {
	prepared, inVain := false, 0
	for first := true; ; first = false {
		l.mu.Lock()
		if l.closed {
			l.mu.Unlock()
			return nil, ErrClosed
		}
		le := l.current
		if le != nil && le.adopted && le.state == leaseLost {
			lost := *le.lost
			l.mu.Unlock()
			lost.Name = name
			return nil, &lost
		}
		// A lease just prepared may be older than usable asks, on a very slow
		// link; it must do, or such a link would never be served.
		if le != nil && (le.usable() || prepared && le.state == leaseLive && !le.expired()) {
			e := le.newEntry(name)
			l.mu.Unlock()
			return e, nil
		}
		p := l.preparing
		// One that began before this call may be failing in an outage that is
		// over. It can serve the call, but its failure is not the call's.
		earlier := first && p != nil
		if p == nil {
			p = &preparation{done: make(chan struct{})}
			l.preparing = p
			l.spawnLocked(func() { l.prepare(p) }) // not closed, so not stopped
		}
		l.mu.Unlock()
		select {
		case <-p.done:
			switch {
			case p.err == nil && prepared && inVain == 2:
				return nil, fmt.Errorf("etcd's answers take so long that every lease was past its deadline, TTL %v less margin %v, when it came, "+
					"or leases are revoked as soon as they are granted; give WithTTL more or WithMargin less", l.cfg.ttl, cmp.Or(l.cfg.margin, l.cfg.ttl/5))
			case p.err == nil && prepared:
				inVain++
			case p.err == nil:
				prepared = true
			case !earlier:
				return nil, p.err
			}
		case <-ctx.Done():
			return nil, fmt.Errorf("%w to granting or renewing a lease", errNoAnswer)
		case <-l.closing:
			return nil, ErrClosed
		case <-l.clientDone:
			return nil, errClientClosed
		}
	}
}

// answer is what etcd said to a Txn that joins a queue.
type answer struct {
	put   bool               // the key is in the queue, at e.rev
	ahead []*mvccpb.KeyValue // who is ahead of it then, youngest first; not all if there are more than viewDepth
	head  *mvccpb.KeyValue   // who heads the queue, if the key was not put
	err   error
}

// join sends the Txn that joins the queue, once, on a context of its own: it
// cannot be taken back, so if the caller's context ends first its answer is
// still awaited, and undone. ok is false if the caller's context ended first;
// the entry is taken care of then.
func (a *acquiring) join(e *entry) (ans answer, ok bool) {
	l := a.l
	j := &joining{a: a, e: e, over: make(chan struct{})}
	if !l.hand(j.run) {
		return answer{}, false // closed meanwhile, and nothing was sent
	}
	select {
	case <-j.over:
		return j.ans, true
	case <-a.ctx.Done():
	case <-l.closing:
	case <-l.clientDone:
	}
	if j.state.CompareAndSwap(joinAwaited, joinAbandoned) {
		l.spawn(func() { e.undoUnanswered(j.over) })
		return answer{}, false
	}
	<-j.over
	return j.ans, true
}

// joining is the Txn that joins a queue, on a goroutine of its own.
type joining struct {
	a     *acquiring
	e     *entry
	state atomic.Int32
	over  chan struct{} // closed when ans is there, or what came of it is undone
	ans   answer
}

// The states of a joining.
const (
	joinAwaited = iota
	joinAnswered
	joinAbandoned
)

func (j *joining) run() {
	defer close(j.over)
	e, l := j.e, j.a.l
	ctx, cancel := context.WithTimeout(detached{l.ctx, j.a.ctx}, min(e.lease.asked, acquireBound))
	defer cancel()
	resp, err := e.join(ctx, j.a.alone())
	switch {
	case err != nil:
		j.ans.err = err
		if ctx.Err() != nil {
			j.ans.err = fmt.Errorf("%w to joining the queue: %w", errNoAnswer, err)
		}
	case resp.Succeeded:
		j.ans.put = true
		near := resp.Responses[1].GetResponseRange().Kvs
		l.mu.Lock()
		e.rev, e.value = near[0].CreateRevision, nil
		l.mu.Unlock()
		j.ans.ahead = near[1:]
	default:
		if kvs := resp.Responses[0].GetResponseRange().Kvs; len(kvs) > 0 {
			j.ans.head = kvs[0]
		}
	}
	if !j.state.CompareAndSwap(joinAwaited, joinAnswered) {
		e.undo(j.ans)
	}
}

// unansweredAfter is how soon a request that nobody waits for any more should be
// answered.
const unansweredAfter = 250 * time.Millisecond

// undoUnanswered deletes the key of an abandoned request whose answer does not
// come. It can be lost while etcd is well, and others would be kept out for as
// long as it is awaited. Finding the key settles it; not finding it proves nothing,
// and undo follows when the request is over.
func (e *entry) undoUnanswered(over <-chan struct{}) {
	l := e.lease.l
	t := time.NewTimer(unansweredAfter)
	defer t.Stop()
	select {
	case <-over:
		return
	case <-l.ctx.Done():
		return
	case <-t.C:
	}
	ctx, cancel := context.WithTimeout(l.ctx, attemptBound)
	defer cancel()
	l.mu.Lock()
	value := e.value
	l.mu.Unlock()
	if value == nil {
		return // answered right now, and undone
	}
	own := clientv3.Compare(clientv3.Value(e.key), "=", string(value))
	resp, err := l.client.Txn(ctx).If(own).Then(e.deletion()).Commit()
	if err == nil && resp.Succeeded {
		e.free()
	}
}

// undo takes back what a Txn that joins a queue may have done.
func (e *entry) undo(ans answer) {
	switch {
	case ans.put:
	case ans.err == nil, refused(ans.err):
		e.free()
		return
	case outOfSpace(ans.err):
		l := e.lease.l
		l.mu.Lock()
		e.answered = true
		l.mu.Unlock()
	}
	e.discard()
}

// round is one place in the queue. It returns the lock, or an error that ends
// the call or, as a *stopped, the round; or neither, if there should be another.
func (a *acquiring) round(e *entry, taken *[]*entry) (*Lock, error) {
	ans, ok := a.join(e)
	if !ok {
		return nil, a.over(PhaseQueue)
	}
	switch {
	case leaseGone(ans.err):
		e.free() // the Txn failed whole
		a.l.loseLease(e.lease, goneReason(e.lease), ans.err)
		return nil, nil
	case ans.err != nil:
		e.undo(ans)
		return nil, &stopped{PhaseQueue, deniedAt("putting and reading", ans.err, e.queue)}
	case !ans.put:
		if ans.head != nil && ans.head.Lease == 0 {
			e.free()
			return nil, a.fail(PhaseQueue, foreignKey(string(ans.head.Key)))
		}
		if a.alone() {
			e.free()
			return nil, a.held(e, ans.head)
		}
		orphan, err := e.lease.removeOrphan(a.ctx, e.key, func() bool { return true })
		if err != nil {
			e.free()
			return nil, &stopped{PhaseQueue, err}
		}
		if orphan {
			e.free() // and the next round finds it free
			return nil, nil
		}
		*taken = append(*taken, e)
		return nil, nil
	}
	if len(ans.ahead) == 0 {
		return a.grant(e)
	}
	if head := ans.ahead[len(ans.ahead)-1]; head.Lease == 0 && len(ans.ahead) <= viewDepth {
		e.discard()
		return nil, a.fail(PhaseQueue, foreignKey(string(head.Key)))
	}
	return a.wait(e, ans.ahead)
}

func goneReason(le *lease) Reason {
	switch {
	case le.adopted:
		return LostSession
	case le.expired():
		return LostExpired
	}
	return LostRevoked
}

func foreignKey(key string) error {
	return fmt.Errorf("%w: %q; nothing of fencelock's or of etcd's concurrency package puts keys without a lease there: "+
		"find out what does, and delete the key with etcdctl del", ErrForeignKey, key)
}

// over is the error of a call whose wait for an answer was ended from outside.
func (a *acquiring) over(phase Phase) error {
	if phase == PhaseWait {
		return a.fail(phase, nil)
	}
	return a.fail(phase, errNoAnswer)
}

// giveUpBound bounds leaving the queue when [MaxWait] has run out.
const giveUpBound = time.Second

// giveUp leaves the queue because [MaxWait] has run out, and says who has the
// lock.
func (a *acquiring) giveUp(e *entry) error {
	ctx, cancel := context.WithTimeout(a.ctx, giveUpBound)
	defer cancel()
	resp, err := e.leave(ctx)
	if err != nil {
		e.discard()
		return a.fail(PhaseWait, join(fmt.Errorf("MaxWait of %v ran out", a.cfg.maxWait), err))
	}
	e.free()
	var head *mvccpb.KeyValue
	if kvs := resp.Responses[0].GetResponseRange().Kvs; len(kvs) > 0 {
		head = kvs[0]
	}
	if head != nil && head.CreateRevision == e.rev {
		return a.fail(PhaseWait, fmt.Errorf("MaxWait of %v ran out just when the lock came free; try again", a.cfg.maxWait))
	}
	return a.held(e, head)
}

// held is the error that names who heads the queue, if anybody does.
func (a *acquiring) held(e *entry, head *mvccpb.KeyValue) error {
	err := &HeldError{Name: a.name}
	if head != nil {
		err.Holder = claimOf(a.name, e.queue, head)
	}
	return err
}

// grant hands the lock out, if the lease still allows it at this very moment.
func (a *acquiring) grant(e *entry) (*Lock, error) {
	l, le := a.l, e.lease
	for refreshed := false; ; refreshed = true {
		if a.ctx.Err() != nil {
			e.discard()
			return nil, a.fail(PhaseGrant, nil)
		}
		k := a.newLock(e)
		l.mu.Lock()
		switch {
		case l.closed:
			l.mu.Unlock()
			k.cancel(nil)
			e.discard()
			return nil, a.fail(PhaseGrant, ErrClosed)
		case le.state == leaseLost || le.state == leaseEnding:
			l.mu.Unlock()
			k.cancel(nil)
			e.discard()
			return nil, nil
		case !le.expired():
			a.hold(k)
			l.mu.Unlock()
			k.nest()
			return k, nil
		}
		idle := len(le.holds) == 0
		l.mu.Unlock()
		k.cancel(nil)
		// The deadline passed in the queue, while the process was paused or cut
		// off. If nobody holds a lock on the lease nothing was promised to
		// anybody, and one answered renewal proves that it lives, with its keys.
		if !idle || refreshed {
			l.loseLease(le, LostExpired, nil)
			e.discard()
			return nil, nil
		}
		if err := le.refresh(a.ctx); err != nil && !le.judgeFailure(err) {
			a.lastErr = err
		}
	}
}

// newLock makes the lock of an entry, not yet held.
func (a *acquiring) newLock(e *entry) *Lock {
	k := &Lock{
		l:        a.l,
		entry:    e,
		token:    Token{name: a.name, rev: e.rev, holder: e.holder, key: e.key, used: new(atomic.Bool)},
		advisory: a.kind == kindAdvisory,
		mustUse:  a.cfg.requireUse,
		caller:   a.ctx,
		outer:    holdOf(a.ctx),
	}
	base := a.ctx
	if a.kind == kindAcquire || a.kind == kindTry {
		base = context.WithoutCancel(a.ctx)
	}
	inner, cancel := context.WithCancelCause(base)
	k.ctx, k.cancel = heldContext{Context: inner, k: k}, cancel
	return k
}

// hold puts the lock on its lease's books; l.mu must be held.
func (a *acquiring) hold(k *Lock) {
	l, le := a.l, k.entry.lease
	k.granted, k.ttl = clock.Now(), le.ttl()
	le.holds[k] = struct{}{}
	l.holds++
	le.startWatchdog()
	le.young.add(k)
	if a.cfg.maxHold > 0 {
		k.maxHold = l.after(a.cfg.maxHold, func() { k.lose(LostMaxHold, nil) })
	}
}
