package fencelock

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/connectivity"

	"github.com/fencelock/fencelock/internal/clock"
	"github.com/fencelock/fencelock/internal/hook"
)

const (
	// attemptBound bounds one clean-up or revoke.
	attemptBound = 5 * time.Second
	// acquireBound bounds the Txn that joins a queue, and granting a lease,
	// where the TTL is longer.
	acquireBound = 10 * time.Second
)

// leaseState says what may still be done with a lease.
type leaseState int

const (
	// leaseLive: acquisitions go here.
	leaseLive leaseState = iota
	// leaseRetired: an acquire on it got no answer and can still arrive at
	// etcd. No new acquisitions; renewed for those that hold; revoked after
	// the last of them.
	leaseRetired
	// leaseLost: its holders were told. Not renewed; revoked once they have
	// returned, so that they have the margin to stop in.
	leaseLost
	// leaseEnding: it is being revoked. Nothing is granted on it, nothing
	// renews it.
	leaseEnding
)

// lease is one etcd lease, shared by all locks of a Locker.
type lease struct {
	l       *Locker
	id      clientv3.LeaseID
	asked   time.Duration
	adopted bool // a session's: never revoked, never replaced
	margin  time.Duration
	put     clientv3.Op // with the lease, of no key

	// Read without a lock: a holder asks on every Err of its context.
	confirmed atomic.Pointer[confirmation]

	dead chan struct{} // closed when nothing is granted on it any more
	kick chan struct{} // asks the keeper for a renewal now

	// guarded by l.mu
	state    leaseState
	slots    slots
	used     int // slots taken, by holders, waiters and clean-ups
	holds    map[*Lock]struct{}
	entries  map[*entry]struct{} // whatever may have a key in etcd
	young    young
	polled   map[*Lock]struct{} // held for longer, and not watched
	keeping  bool               // the keeper runs
	polling  bool               // the poller runs
	watching bool               // the watchdog's timer runs
	swept    clock.Instant      // when it was last looked over for orphans, or granted
	lost     *LostError         // why it was lost, without a lock's name and token
}

// confirmation is the latest sent of the answered grant and renewals.
//
// Its age is measured from its own time of sending, always. Adding up a deadline
// in one frame would be wrong where elapsed time is the larger of two clocks: a
// wall clock that is set forward and back would leave the step in the sum.
type confirmation struct {
	sent clock.Instant
	ttl  time.Duration // the smaller of asked and granted
}

func (c *confirmation) age() time.Duration { return clock.Since(c.sent) }

func newLease(l *Locker, id clientv3.LeaseID, sent clock.Instant, asked, granted time.Duration, adopted bool) *lease {
	le := &lease{
		l: l, id: id, asked: asked, adopted: adopted, swept: sent,
		put:     clientv3.OpPut("", "", clientv3.WithLease(id)),
		dead:    make(chan struct{}),
		kick:    make(chan struct{}, 1),
		slots:   newSlots(),
		holds:   map[*Lock]struct{}{},
		polled:  map[*Lock]struct{}{},
		entries: map[*entry]struct{}{},
	}
	c := &confirmation{sent: sent, ttl: min(asked, granted)}
	le.confirmed.Store(c)
	le.margin = l.cfg.margin
	if le.margin == 0 {
		le.margin = c.ttl / 5
	}
	return le
}

// left is the time to the deadline: the moment at which holders are told,
// one margin before the lease can expire.
func (le *lease) left() time.Duration {
	c := le.confirmed.Load()
	return c.ttl - le.margin - c.age()
}

func (le *lease) expired() bool { return le.left() <= 0 }

// usable reports whether acquisitions may go on the lease as it is: live, and
// young enough that the keeper renews it in time. l.mu must be held.
func (le *lease) usable() bool {
	c := le.confirmed.Load()
	return le.state == leaseLive && c.age() < min(c.ttl/2, (c.ttl-le.margin)/4*3)
}

// renewEvery is a third of the TTL, less if a large margin leaves less; but not
// so little that the keeper would do nothing else.
func (le *lease) renewEvery() time.Duration {
	ttl := le.ttl()
	return max(min(ttl/3, (ttl-le.margin)/2), 10*time.Millisecond)
}

func (le *lease) ttl() time.Duration { return le.confirmed.Load().ttl }

// lastConfirmed is for people.
func (le *lease) lastConfirmed() time.Time { return le.confirmed.Load().sent.Time().Round(0) }

// extend counts an answered renewal. For a holder a late answer is no
// resurrection: past the deadline its lock is lost even if the answer would
// prove that the lease lived on, since the deadline is when a holder is promised
// to be told. Where nobody holds a lock nothing was promised.
func (le *lease) extend(sent clock.Instant, granted time.Duration) (left time.Duration, ok bool) {
	l := le.l
	l.mu.Lock()
	defer l.mu.Unlock()
	left = le.left()
	if le.state == leaseLost || le.state == leaseEnding || left <= 0 && len(le.holds) > 0 {
		return left, false
	}
	// Answers can overtake each other; the latest sent counts.
	if sent.Sub(le.confirmed.Load().sent) > 0 {
		le.confirmed.Store(&confirmation{sent: sent, ttl: min(le.asked, granted)})
	}
	le.sweepIfDue()
	return left, true
}

// renewOnce sends one renewal and waits for its answer until ctx ends. The
// time counts from before the request left: etcd restarts the TTL at some moment
// between then and the answer, and the answer can take any time.
func (le *lease) renewOnce(ctx context.Context) (sent clock.Instant, granted time.Duration, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// KeepAliveOnce retries Unavailable in a loop without a pause
	// (client/v3 v3.7.3, lease.go). With every connection down that is a busy
	// loop, so it is ended as soon as the client itself has given up on them;
	// the keeper tries again after a pause.
	if conn := le.l.client.ActiveConnection(); conn != nil {
		var check *time.Timer
		check = time.AfterFunc(time.Hour, func() {
			switch {
			case ctx.Err() != nil:
			case conn.GetState() == connectivity.TransientFailure:
				cancel()
			default:
				check.Reset(20 * time.Millisecond)
			}
		})
		check.Reset(20 * time.Millisecond)
		defer check.Stop()
	}
	le.l.reconnect()
	sent = clock.Now()
	resp, err := le.l.client.KeepAliveOnce(ctx, le.id)
	if err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("%w to a renewal", errNoAnswer)
		}
		return sent, 0, err
	}
	return sent, time.Duration(resp.TTL) * time.Second, nil
}

// reconnect has the client connect again now, if every connection has failed.
// gRPC by itself waits longer after each failure, up to two minutes, and so
// for longer than a lease has left when the network is there again: the lock
// would be lost to an outage that is over. Those who call it pause after a
// failure, up to a second, so etcd is not stormed.
func (l *Locker) reconnect() {
	if conn := l.client.ActiveConnection(); conn != nil && conn.GetState() == connectivity.TransientFailure {
		conn.ResetConnectBackoff()
	}
}

// renewal is what became of one renewal.
type renewal struct {
	sent    clock.Instant
	granted time.Duration
	err     error
}

// startKeeper lets the keeper run while something needs the lease; l.mu must
// be held.
func (le *lease) startKeeper() {
	if !le.keeping {
		le.keeping = le.l.spawnLocked(le.keep)
	}
}

// maxRenewals bounds the renewals of one lease that are under way.
const maxRenewals = 4

// keep renews the lease every third of its TTL while a holder, a waiter or a
// clean-up needs it. An attempt that is not answered in half of that time is not
// given up but joined by another: on a slow link the first is still the one that
// will be answered, on a dead one the next can reach another endpoint.
func (le *lease) keep() {
	l := le.l
	ctx, cancel := context.WithCancel(l.ctx)
	defer cancel()
	answers := make(chan renewal, maxRenewals) // all under way fit in
	underWay := 0
	var attempted clock.Instant // when the last one was sent
	again := time.Duration(-1)  // pause after a failure; negative: the last one did not fail
	pause := backoff{first: 50 * time.Millisecond, max: time.Second}

	var ended <-chan struct{}
	if le.adopted {
		// The session's own keep-alive can learn first that the lease is gone.
		ended = l.cfg.session.Done()
	}
	now := false // do not wait for the next one's time
	for {
		l.mu.Lock()
		if le.used == 0 || le.state == leaseLost || le.state == leaseEnding || l.stopped {
			le.keeping = false
			l.mu.Unlock()
			return
		}
		l.mu.Unlock()
		c := le.confirmed.Load()
		ttl := c.ttl
		next := max(le.renewEvery()-c.age(), le.renewEvery()/2-clock.Since(attempted))
		if again >= 0 {
			next = again - clock.Since(attempted)
		}
		if now || next <= 0 {
			now, again, attempted = false, -1, clock.Now()
			if underWay < maxRenewals && l.spawn(func() {
				actx, cancel := context.WithTimeout(ctx, ttl/2)
				defer cancel()
				// The check of the held keys follows an answer, but must not wait for
				// a renewal that went to a dead connection, where others are well.
				defer l.after(time.Second, le.startCheck).Stop()
				var a renewal
				a.sent, a.granted, a.err = le.renewOnce(actx)
				answers <- a
			}) {
				underWay++
			}
			continue
		}

		timer := time.NewTimer(next)
		select {
		case <-timer.C:
		case <-le.kick:
			now = true
		case <-ended:
			ended, now = nil, true
		case <-le.dead:
		case <-l.ctx.Done():
		case a := <-answers:
			underWay--
			again = le.answered(a, &pause)
			if again >= 0 {
				again += clock.Since(attempted)
			}
			if a.err == nil {
				le.startCheck()
			}
		}
		timer.Stop()
	}
}

// answered acts on the answer to a renewal, and returns the pause before the
// next attempt, negative if there is nothing to hurry for.
func (le *lease) answered(a renewal, pause *backoff) time.Duration {
	l := le.l
	if a.err == nil {
		pause.reset()
		left, ok := le.extend(a.sent, a.granted)
		if !ok {
			if left <= 0 {
				l.loseLease(le, LostExpired, nil)
			}
			return -1
		}
		hook.Call(l.cfg.log, l.cfg.hooks.Renewed, RenewedInfo{
			Lease: int64(le.id), TTL: a.granted, Took: clock.Since(a.sent), Margin: left, Locks: le.holders(),
		})
		return -1
	}
	if l.ctx.Err() != nil {
		return -1
	}
	hook.Call(l.cfg.log, l.cfg.hooks.RenewalFailed, RenewalFailedInfo{
		Lease: int64(le.id), Err: a.err, Left: le.left(), Locks: le.holders(),
	})
	if le.judgeFailure(a.err) {
		return -1
	}
	return pause.step()
}

// judgeFailure loses the lease if err is etcd's answer that it is gone or that
// the permission is, and reports whether it was.
func (le *lease) judgeFailure(err error) bool {
	switch {
	case le.expired() && (!le.adopted || le.holders() > 0):
		le.l.loseLease(le, LostExpired, err)
	case leaseGone(err) && le.adopted:
		le.l.loseLease(le, LostSession, err)
	case leaseGone(err):
		le.l.loseLease(le, LostRevoked, err)
	case denied(err):
		le.l.loseLease(le, LostDenied, deniedAt("renewing", err, le.prefixes()...))
	default:
		return false
	}
	return true
}

// prefixes returns what the keys on the lease start with, for an error's text. etcd
// renews a lease only for who may write all of them, and does not say which it
// was.
func (le *lease) prefixes() []string {
	le.l.mu.Lock()
	defer le.l.mu.Unlock()
	queues := map[string]struct{}{}
	for e := range le.entries {
		queues[e.queue] = struct{}{}
	}
	if len(queues) == 0 {
		return []string{le.l.cfg.prefix}
	}
	return slices.Sorted(maps.Keys(queues))
}

func (le *lease) holders() int {
	le.l.mu.Lock()
	defer le.l.mu.Unlock()
	return len(le.holds)
}

// renewSoon asks the keeper for a renewal now.
func (le *lease) renewSoon() {
	select {
	case le.kick <- struct{}{}:
	default:
	}
}

// maxTxnOps is etcd's limit of operations in a Txn (--max-txn-ops, by default).
const maxTxnOps = 128

// startCheck looks at the key of every lock held on the lease that is not polled,
// because the watch of a key can be deaf. It is called after each answered renewal,
// from the keeper.
func (le *lease) startCheck() {
	l := le.l
	l.mu.Lock()
	defer l.mu.Unlock()
	held := make([]*Lock, 0, len(le.holds))
	for k := range le.holds {
		if _, polled := le.polled[k]; !polled && k.state == lockHeld {
			held = append(held, k)
		}
	}
	if len(held) == 0 {
		return
	}
	every := le.renewEvery()
	l.spawnLocked(func() {
		ctx, cancel := context.WithTimeout(l.ctx, every)
		defer cancel()
		// An unanswered check proves nothing, but the next can reach another
		// endpoint, and a holder whose watch is deaf has only this. So it is
		// repeated up to the next renewal, which brings one of its own.
		patience := firstPatience
		pause := backoff{first: 50 * time.Millisecond, max: 500 * time.Millisecond}
		for len(held) > 0 {
			n := min(len(held), maxTxnOps)
			actx, cancel := context.WithTimeout(ctx, patience)
			err := le.check(actx, held[:n])
			cancel()
			switch {
			case err == nil:
				held = held[n:]
				continue
			case denied(err):
				le.judgeFailure(err)
				return
			}
			patience *= 2
			if pause.wait(ctx) != nil {
				return
			}
		}
	})
}

func (le *lease) check(ctx context.Context, held []*Lock) error {
	cmps := make([]clientv3.Cmp, len(held))
	gets := make([]clientv3.Op, len(held))
	for i, k := range held {
		cmps[i] = createdAt(k.entry.rawKey, k.entry.rev)
		gets[i] = clientv3.OpGet(k.entry.key, clientv3.WithKeysOnly())
	}
	// The reads are only made if a compare fails. They also make etcd serve the
	// Txn linearizably: one without any operation is answered from the member's
	// own state.
	resp, err := le.l.client.Txn(ctx).If(cmps...).Else(gets...).Commit()
	if err != nil || resp.Succeeded {
		return err
	}
	for i, k := range held {
		kvs := resp.Responses[i].GetResponseRange().GetKvs()
		if len(kvs) == 0 || kvs[0].CreateRevision != k.entry.rev {
			k.lose(LostDeleted, nil)
		}
	}
	return nil
}

// startWatchdog lets the watchdog's timer run while locks are held; l.mu must
// be held.
func (le *lease) startWatchdog() {
	if le.watching {
		return
	}
	le.watching = true
	le.l.after(le.watchStep(), le.watch)
}

// watchStep is when the watchdog looks next: at the deadline, but soon enough
// after a suspend, during which its timer stood still.
func (le *lease) watchStep() time.Duration {
	tick := min(max(le.ttl()/20, 50*time.Millisecond), time.Second)
	return max(min(le.left(), tick), 0)
}

// watch is the watchdog. It asks nobody: neither a renewal in flight nor a
// mutex that is held across one can delay it.
func (le *lease) watch() {
	if le.expired() {
		le.l.loseLease(le, LostExpired, nil)
	}
	le.l.mu.Lock()
	defer le.l.mu.Unlock()
	if len(le.holds) == 0 || le.state == leaseLost || le.state == leaseEnding {
		le.watching = false
		return
	}
	le.l.after(le.watchStep(), le.watch)
}

// loseLease tells every holder on the lease that it is lost, for good.
func (l *Locker) loseLease(le *lease, reason Reason, err error) {
	now := time.Now()
	l.mu.Lock()
	if le.state == leaseLost || le.state == leaseEnding {
		l.mu.Unlock()
		return
	}
	le.state = leaseLost
	le.lost = &LostError{Reason: reason, LastConfirmed: le.lastConfirmed(), LostAt: now.Round(0), Err: err}
	close(le.dead)
	if l.current == le && !le.adopted {
		l.current = nil
	}
	var told []*Lock
	for k := range le.holds {
		if k.markLost(reason, now, err) {
			told = append(told, k)
		}
	}
	l.endIfDone(le)
	l.mu.Unlock()
	announceLosses(told)
}

// retire takes the lease out of use because an acquire on it can still arrive
// at etcd: nobody would know that key, and a shared lease would keep it alive
// for ever. An adopted lease cannot be given up; there the clean-up goes on.
func (l *Locker) retire(le *lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if le.state != leaseLive || le.adopted {
		return
	}
	le.state = leaseRetired
	if l.current == le {
		l.current = nil
	}
	l.endIfDone(le)
}

// endIfDone revokes a lease that is out of use once nobody holds a lock on
// it. The decision is taken under the lock that guards grants: from here on
// nothing is granted on the lease or renews it. l.mu must be held.
func (l *Locker) endIfDone(le *lease) {
	if le.adopted || len(le.holds) > 0 || (le.state != leaseRetired && le.state != leaseLost) {
		return
	}
	l.startEnding(le)
	l.spawnLocked(func() {
		pause := backoff{first: 100 * time.Millisecond, max: 5 * time.Second}
		for !l.clientClosed() {
			err := le.revoke(l.ctx)
			if err == nil || le.confirmed.Load().age()/2 > le.asked+attemptBound {
				break // by now it has expired by itself
			}
			if pause.wait(l.ctx) != nil {
				break
			}
		}
		l.forget(le)
	})
}

// startEnding makes the lease one on which nothing is granted or renewed; l.mu
// must be held.
func (l *Locker) startEnding(le *lease) {
	if le.state != leaseLost {
		close(le.dead)
	}
	le.state = leaseEnding
	if l.current == le {
		l.current = nil
	}
}

// forget drops a lease that is gone from etcd.
func (l *Locker) forget(le *lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.leases, le)
}

// revoke revokes the lease once, bounded. If that is denied, the keys that are
// still known are deleted one by one: another name's permission can be the one
// that was withdrawn. nil means that the lease is gone.
func (le *lease) revoke(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, attemptBound)
	defer cancel()
	le.l.reconnect()
	// Several attempts in the time of one: the next can reach another endpoint.
	// That the lease is gone is what a repeated revoke is told, too.
	actx, cancelAttempt := context.WithTimeout(ctx, releaseAttempt)
	_, err := le.l.client.Revoke(actx, le.id)
	for err != nil && actx.Err() != nil && ctx.Err() == nil {
		cancelAttempt()
		actx, cancelAttempt = context.WithTimeout(ctx, releaseAttempt)
		_, err = le.l.client.Revoke(actx, le.id)
	}
	cancelAttempt()
	switch {
	case err == nil, leaseGone(err):
		return nil
	case !denied(err):
		return err
	}
	for _, e := range le.all() {
		_, _ = e.delete(ctx) // what is left goes when the lease expires
	}
	return deniedAt("revoking a lease that has", err, le.prefixes()...)
}

// all returns whatever may have a key in etcd.
func (le *lease) all() []*entry {
	le.l.mu.Lock()
	defer le.l.mu.Unlock()
	entries := make([]*entry, 0, len(le.entries))
	for e := range le.entries {
		entries = append(entries, e)
	}
	return entries
}

// slots are the numbers that keys have on one lease, by the name of their lock: a bit
// for each of the first 64, which are all that most locks ever have, and of the others.
type slots struct {
	few  map[string]uint64
	many map[string][]uint64
}

func newSlots() slots {
	return slots{few: map[string]uint64{}, many: map[string][]uint64{}}
}

// take returns the lowest free number.
func (s slots) take(name string) int {
	few := s.few[name]
	if n := bits.TrailingZeros64(^few); n < 64 {
		s.few[name] = few | 1<<n
		return n
	}
	many := s.many[name]
	for i, word := range many {
		if bit := bits.TrailingZeros64(^word); bit < 64 {
			many[i] |= 1 << bit
			return 64*(i+1) + bit
		}
	}
	s.many[name] = append(many, 1)
	return 64 * (len(many) + 1)
}

// giveBack frees a number that was taken.
func (s slots) giveBack(name string, n int) {
	many := s.many[name]
	if n < 64 {
		s.few[name] &^= 1 << n
	} else {
		many[n/64-1] &^= 1 << (n % 64)
	}
	if s.few[name] == 0 && !slices.ContainsFunc(many, func(word uint64) bool { return word != 0 }) {
		delete(s.few, name)
		delete(s.many, name)
	}
}

// prepare makes the current lease usable: it renews one that is running low,
// and grants one where there is none or that one is gone. It is bounded, and
// shared by all acquires that wait for it.
func (l *Locker) prepare(p *preparation) {
	ctx, cancel := context.WithTimeout(l.ctx, min(l.cfg.ttl, acquireBound))
	defer cancel()
	p.err = l.freshLease(ctx)
	l.mu.Lock()
	l.preparing = nil
	l.changed()
	l.mu.Unlock()
	close(p.done)
}

func (l *Locker) freshLease(ctx context.Context) error {
	l.mu.Lock()
	le := l.current
	l.mu.Unlock()
	if le != nil {
		// A lease of our own that lapsed while it was idle is gone; an adopted
		// one has been renewed by its session meanwhile.
		if le.expired() && !le.adopted {
			l.loseLease(le, LostExpired, nil)
		} else if err := le.refresh(ctx); err == nil {
			return nil
		} else if !le.judgeFailure(err) {
			return err
		}
		if le.adopted {
			return nil // its loss is what acquires are told
		}
	}
	if l.cfg.session != nil {
		return l.adopt(ctx)
	}
	l.reconnect()
	sent := clock.Now()
	resp, err := l.client.Grant(ctx, int64(l.cfg.ttl/time.Second))
	if err != nil {
		// etcd may have granted it. Nobody knows its ID and nothing is bound to it:
		// it expires by itself. (Choosing the ID would allow to revoke it, but
		// clientv3's Lease has no way to ask for one.)
		return answerless(ctx, err, fmt.Sprintf("granting a lease, from %s", strings.Join(l.client.Endpoints(), ", ")))
	}
	return l.use(newLease(l, resp.ID, sent, l.cfg.ttl, time.Duration(resp.TTL)*time.Second, false))
}

// refresh renews the lease, for an acquire that found it running low.
func (le *lease) refresh(ctx context.Context) error {
	// After that it is lost anyway; but where nobody holds a lock on it, and it
	// is only low, a moment later would do as well.
	bound := le.left()
	if bound <= 0 || le.holders() == 0 {
		bound = max(bound, le.asked/3)
	}
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	pause := backoff{first: 50 * time.Millisecond, max: 200 * time.Millisecond}
	sent, granted, err := le.renewOnce(ctx)
	for errors.Is(err, errNoAnswer) && pause.wait(ctx) == nil {
		// The client had no connection at that moment, which is no reason to
		// fail an acquire that has time.
		sent, granted, err = le.renewOnce(ctx)
	}
	if err != nil {
		return err
	}
	if _, ok := le.extend(sent, granted); !ok {
		return fmt.Errorf("%w in time to a renewal", errNoAnswer)
	}
	return nil
}

// adopt takes over the session's lease: one renewal tells its TTL, and is the
// first time of sending from which deadlines count.
func (l *Locker) adopt(ctx context.Context) error {
	id := l.cfg.session.Lease()
	probe := &lease{l: l, id: id}
	sent, granted, err := probe.renewOnce(ctx)
	if leaseGone(err) {
		le := newLease(l, id, sent, time.Second, time.Second, true)
		if err := l.use(le); err != nil {
			return err
		}
		l.loseLease(le, LostSession, err)
		return nil
	}
	if err != nil {
		return answerless(ctx, err, "renewing the session's lease")
	}
	if l.cfg.margin >= granted {
		return badMargin(l.cfg.margin, granted)
	}
	return l.use(newLease(l, id, sent, granted, granted, true))
}

func (l *Locker) use(le *lease) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped {
		return ErrClosed // the lease expires by itself
	}
	l.leases[le] = struct{}{}
	if l.closed {
		return ErrClosed // Close revokes it
	}
	l.current = le
	return nil
}

// answerless makes an error say that there was no answer, where ctx ended. What
// the client says of it is for people alone: ctx is not the caller's, whose
// deadline it must not be taken for.
func answerless(ctx context.Context, err error, what string) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%w to %s (%v)", errNoAnswer, what, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}
