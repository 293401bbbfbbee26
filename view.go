package fencelock

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"

	"github.com/fencelock/fencelock/internal/clock"
)

// viewLinger is how long a view outlives its last user: a name that was
// contended once is contended again, and opening a view costs a watch and a
// read on the hand-over's path.
const viewLinger = 3 * time.Second

// verdict is what a view says of one key it was asked about.
type verdict int

const (
	verdictHead    verdict = iota + 1 // nothing is ahead of it any more
	verdictDead                       // it is not there any more
	verdictBlocked                    // a key without a lease is ahead of it
	verdictFailed                     // the view cannot be had, and never will
)

// finding is a verdict and what goes with it.
type finding struct {
	verdict verdict
	key     string // the blocking key of verdictBlocked
	err     error  // of verdictFailed
}

// view follows the deletions in one lock's queue, for all waiters of a Locker on
// that name; or that of a single key, for a holder that watches its own.
//
// Each deletion goes to everybody who follows the queue. So a view whose foremost
// waiter has many ahead of it sleeps: it watches one key, some places ahead of that
// waiter, and hears nothing of the turns before that is gone, nor costs them
// anything. Nobody is granted from there: it follows the queue then, from a read
// that shows who is left. All other waiters of the Locker are behind that one.
//
// etcd serves a watch that starts at or below its current revision only on a
// 100 ms tick (etcd 3.7.3, mvcc/watchable_store.go, syncWatchersLoop), so a
// view watches from now, and when the watch is confirmed reads the queue once.
// What comes with a revision above that read's is applied on top. A waiter that
// comes later has a snapshot of its own: the answer to the Txn that put its key.
//
// Only deletions are asked for. A key that joins the queue is behind all that
// stand in it, so it concerns none of them, and half of the events never leave
// etcd.
type view struct {
	l      *Locker
	key    string // the queue's prefix, or the single key
	prefix bool
	ttl    time.Duration
	need   chan struct{} // asks for a read, for subs that have no snapshot

	// guarded by l.mu
	refs   int
	linger *time.Timer
	cancel context.CancelFunc

	mu      sync.Mutex
	asleep  *target    // what it sleeps on; nil while it follows the queue
	brief   bool       // does not outlive its last user
	live    bool       // every deletion after since comes, or has come
	since   int64      // and is in recent
	recent  []deletion // in the order they came
	applied uint64     // counts responses, for the deafness check
	subs    map[*sub]struct{}
	waiting int   // subs that wait for the head
	lastErr error // what ended the last watch
}

// place is one key in the queue.
type place struct {
	rev   int64 // creation revision
	lease int64
}

// target is a key that a view sleeps on.
type target struct {
	key string
	place
}

// aheadOf reports whether the sub can be slept for on the target: behind it, the
// target's turn would never come. Waiters do not subscribe in the order in which
// they joined the queue.
func (t *target) aheadOf(s *sub) bool { return s.waiter && t.rev < s.rev }

// deletion is one that the watch told of.
type deletion struct {
	key string
	rev int64
}

// maxRecent bounds the deletions a view remembers, for waiters that have joined the
// queue and not come to the view yet. Whoever takes longer costs a read.
const maxRecent = 128

// sub is one key's interest in a view. Its tell is called once, from the
// view's goroutine or from watch's, without a lock held, and must not block.
type sub struct {
	key    string
	rev    int64 // the creation revision it is known by
	waiter bool  // wants to hear of heading the queue; else only of death
	tell   func(finding)

	// ahead is what was ahead of it in the queue at revision floor, less what
	// was deleted since. A floor of 0 is no snapshot: it takes a read, sent after
	// the sub came, to tell.
	ahead map[string]place
	floor int64
	dead  bool
}

// hear applies a deletion. Slots are reused, so one at or below the revision of
// the snapshot is of an earlier life of its key.
func (s *sub) hear(d deletion) {
	switch {
	case s.floor == 0 || d.rev <= s.floor:
	case d.key == s.key:
		s.dead = true
	default:
		delete(s.ahead, d.key)
	}
}

// settle gives the sub the snapshot of a read.
func (s *sub) settle(places map[string]place, rev int64) {
	s.floor = rev
	s.dead = places[s.key].rev != s.rev
	if s.waiter {
		s.ahead = s.aheadIn(places)
	}
}

// aheadIn returns what of places is ahead of the sub.
func (s *sub) aheadIn(places map[string]place) map[string]place {
	ahead := map[string]place{}
	for key, p := range places {
		if p.rev < s.rev {
			ahead[key] = p
		}
	}
	return ahead
}

// openView returns the view of a queue or key with one more user; a nil view
// if the Locker is stopped. If there is none yet it sleeps on on, unless that is
// nil, and has s from the start: its first watch may be refused before anybody
// else could come. Where joined is false s must subscribe. l.mu must be held.
func (l *Locker) openView(key string, prefix bool, on *target, ttl time.Duration, s *sub) (v *view, joined bool) {
	v = l.views[key]
	if v == nil {
		ctx, cancel := context.WithCancel(l.ctx)
		v = &view{
			l: l, key: key, prefix: prefix, ttl: ttl, need: make(chan struct{}, 1),
			asleep: on, brief: !prefix || on != nil,
			cancel: cancel, subs: map[*sub]struct{}{},
		}
		v.add(s)
		joined = true
		if !l.spawnLocked(func() { v.run(ctx) }) {
			cancel()
			return nil, false
		}
		l.views[key] = v
	}
	v.refs++
	if v.linger != nil {
		v.linger.Stop()
		v.linger = nil
	}
	return v, joined
}

func (v *view) add(s *sub) {
	v.subs[s] = struct{}{}
	if s.waiter {
		v.waiting++
	}
}

// drop gives one use of the view back.
func (v *view) drop() {
	l := v.l
	l.mu.Lock()
	defer l.mu.Unlock()
	v.refs--
	if v.refs > 0 {
		return
	}
	v.mu.Lock()
	brief := v.brief
	v.mu.Unlock()
	if brief {
		v.end()
		return
	}
	v.linger = time.AfterFunc(viewLinger, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if v.refs == 0 && l.views[v.key] == v {
			v.end()
		}
	})
}

// end closes the view; l.mu must be held.
func (v *view) end() {
	v.cancel()
	delete(v.l.views, v.key)
}

// subscribe registers s, which hears of its verdict at once if it is there.
func (v *view) subscribe(s *sub) {
	v.mu.Lock()
	v.add(s)
	near := !s.waiter || s.floor != 0 && len(s.ahead) <= viewDepth
	switch {
	case v.live:
		v.catchUp(s)
	case v.asleep != nil && (near || !v.asleep.aheadOf(s)):
		v.ask() // those it sleeps for have left, or are behind this one
	}
	if s.waiter && near && v.prefix {
		v.brief = false
	}
	told := v.judge()
	v.mu.Unlock()
	deliver(told)
}

// catchUp applies to s what the view has heard since the snapshot of s. One that is
// older than the view knows is worth nothing. v.mu must be held.
func (v *view) catchUp(s *sub) {
	if s.floor < v.since {
		s.floor = 0
		v.ask()
		return
	}
	for _, d := range v.recent {
		s.hear(d)
	}
}

// ask asks the view's goroutine for what it takes to tell all subs.
func (v *view) ask() {
	select {
	case v.need <- struct{}{}:
	default:
	}
}

func (v *view) unsubscribe(s *sub) {
	v.mu.Lock()
	v.remove(s)
	v.mu.Unlock()
}

func (v *view) remove(s *sub) {
	if _, ok := v.subs[s]; ok {
		delete(v.subs, s)
		if s.waiter {
			v.waiting--
		}
	}
}

type telling struct {
	s *sub
	f finding
}

func deliver(told []telling) {
	for _, t := range told {
		t.s.tell(t.f)
	}
}

// judge finds the subs whose verdict is there, and removes them; v.mu must be
// held.
func (v *view) judge() (told []telling) {
	if !v.live {
		return nil
	}
	for s := range v.subs {
		if s.floor == 0 {
			continue
		}
		if f := s.judge(); f.verdict != 0 {
			told = append(told, telling{s, f})
		}
	}
	for _, t := range told {
		v.remove(t.s)
	}
	return told
}

// judge returns the verdict on a sub that has a snapshot, or none.
func (s *sub) judge() finding {
	switch {
	case s.dead:
		return finding{verdict: verdictDead}
	case !s.waiter:
		return finding{}
	case len(s.ahead) == 0:
		return finding{verdict: verdictHead}
	}
	for key, p := range s.ahead {
		if p.lease == 0 {
			return finding{verdict: verdictBlocked, key: key}
		}
	}
	return finding{}
}

// sleepy lets the view sleep, if its foremost sub has many ahead of it, and reports
// whether it does.
func (v *view) sleepy() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	var foremost *sub
	for s := range v.subs {
		if foremost == nil || s.rev < foremost.rev {
			foremost = s
		}
	}
	// A holder has none ahead. Of one without a snapshot it is not known yet.
	if foremost == nil || foremost.floor == 0 || len(foremost.ahead) <= viewDepth {
		return false
	}
	key := slices.SortedFunc(maps.Keys(foremost.ahead), func(a, b string) int {
		return cmp.Compare(foremost.ahead[b].rev, foremost.ahead[a].rev)
	})[sleepDepth-1]
	// With so many in the queue, a view that nobody needs costs every turn.
	v.asleep, v.brief = &target{key, foremost.ahead[key]}, true
	return true
}

// wake lets the view follow the queue.
func (v *view) wake() {
	v.mu.Lock()
	v.asleep = nil
	v.mu.Unlock()
}

// err returns what ended the view's last watch, for an error's text.
func (v *view) err() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.lastErr
}

var (
	errDeaf   = errors.New("the watch missed an event")
	errSwitch = errors.New("another watch is needed")
)

// run watches until ctx ends: one round is one life of the watch.
func (v *view) run(ctx context.Context) {
	patience := firstPatience
	pause := backoff{first: 20 * time.Millisecond, max: time.Second}
	for {
		began := clock.Now()
		wasLive, err := v.round(ctx, patience)
		if ctx.Err() != nil || v.l.clientClosed() {
			return // a closed client ends every watch at once, and every wait
		}
		v.mu.Lock()
		v.live = false
		if err != errSwitch {
			v.lastErr = err
		}
		for s := range v.subs {
			s.floor = 0
		}
		var told []telling
		// A stream that was opened before authentication was switched on has no
		// user. That says nothing of the client; the next one has, if that has.
		if denied(err) && !errors.Is(err, rpctypes.ErrUserEmpty) {
			for s := range v.subs {
				if s.waiter {
					told = append(told, telling{s, finding{verdict: verdictFailed, err: err}})
				}
			}
			for _, t := range told {
				v.remove(t.s)
			}
		}
		v.mu.Unlock()
		deliver(told)
		if err == errSwitch {
			continue
		}

		// All watches of a client with the same metadata share one stream, and
		// with it one connection and the auth token it was opened with. A watch
		// that is deaf or does not come up would come back on the same dead
		// connection, or be refused again for the same expired token, so the next
		// one asks for a stream of its own, for which the balancer picks another
		// endpoint and the client gets another token.
		if !wasLive || errors.Is(err, errDeaf) || errors.Is(err, errNoAnswer) {
			v.l.watchStream.Add(1)
		}
		// A round that took its time, waiting or being of use, is followed by the
		// next at once; one that failed at once could go on so for ever.
		if clock.Since(began) >= patience {
			pause.reset()
		} else if pause.wait(ctx) != nil {
			return
		}
		switch {
		case wasLive:
			patience = firstPatience
		case errors.Is(err, errNoAnswer):
			patience = v.morePatience(patience)
		}
	}
}

// firstPatience is how long a watch or a read may take to be answered before
// the next one tries another endpoint. It doubles while nothing is answered, so
// that a slow link is served too.
const firstPatience = 500 * time.Millisecond

func (v *view) morePatience(patience time.Duration) time.Duration {
	return min(2*patience, max(v.ttl/3, 5*time.Second))
}

func (v *view) round(ctx context.Context, patience time.Duration) (wasLive bool, err error) {
	wctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	if n := v.l.watchStream.Load(); n > 0 {
		wctx = metadata.AppendToOutgoingContext(wctx, "fencelock-stream", strconv.FormatInt(n, 10))
	}
	v.mu.Lock()
	on := v.asleep
	v.mu.Unlock()
	key, opts := v.key, []clientv3.OpOption{clientv3.WithCreatedNotify(), clientv3.WithFilterPut()}
	switch {
	case on != nil:
		key = on.key
	case v.prefix:
		opts = append(opts, clientv3.WithPrefix())
	}

	// Watch itself blocks until etcd has confirmed, on a dead connection for
	// ever.
	impatient := time.AfterFunc(patience, cancel)
	wch := v.l.client.Watch(wctx, key, opts...)
	select {
	case r, ok := <-wch:
		switch {
		case ok && r.Err() != nil:
			return false, watchRefusal(r.Err())
		case !ok || !r.Created:
			return false, errNoAnswer
		}
	case <-wctx.Done():
		return false, errNoAnswer
	}
	if !impatient.Stop() {
		return false, errNoAnswer
	}

	// The first read follows the confirmation, and whatever is deleted after it
	// comes as an event.
	first := v.prepareLook(false)
	if err := first.read(ctx, patience); err != nil {
		return false, err
	}
	v.mu.Lock()
	v.live, v.since, v.recent, v.lastErr = on == nil, first.rev, nil, nil
	v.mu.Unlock()
	if v.install(first) {
		return true, errSwitch
	}

	deaf := time.NewTimer(v.deafAfter())
	defer deaf.Stop()
	var looking *look
	looked := make(chan error, 1)
	start := func(deafness bool) {
		if looking != nil {
			return // what it does not answer is asked for when it has
		}
		next, limit := v.prepareLook(deafness), patience
		if v.l.spawn(func() { looked <- next.read(wctx, limit) }) {
			looking = next
		}
	}
	for {
		select {
		case r, ok := <-wch:
			if !ok {
				return true, errNoAnswer
			}
			if err := r.Err(); err != nil {
				return true, watchRefusal(err)
			}
			if v.apply(r.Events, on) {
				return true, errSwitch
			}
			deaf.Reset(v.deafAfter())
		case <-v.need:
			if on != nil {
				v.wake()
				return true, errSwitch
			}
			start(false)
		case <-deaf.C:
			switch {
			case looking != nil && looking.deafness: // its answer sets the timer again
			case looking != nil:
				deaf.Reset(firstPatience)
			case v.watched():
				start(true)
			default:
				deaf.Reset(v.deafAfter())
			}
		case err := <-looked:
			done := looking
			looking = nil
			switch {
			case errors.Is(err, errNoAnswer):
				patience = v.morePatience(patience)
				start(done.deafness) // the next read can reach another endpoint
				continue
			case err != nil:
				return true, err
			case v.missed(done):
				return true, errDeaf
			}
			if v.install(done) {
				return true, errSwitch
			}
			if done.deafness {
				deaf.Reset(v.deafAfter())
			}
		case <-ctx.Done():
			return true, ctx.Err()
		}
	}
}

// deafAfter is how long a view trusts silence.
func (v *view) deafAfter() time.Duration { return v.ttl / 3 }

// watched reports whether anybody waits on the view. A holder needs no check
// of its watch: its key is looked at with every renewal.
func (v *view) watched() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.waiting > 0
}

// look is one read of the queue: a snapshot for the subs that have none, and, if
// it looks for deafness, what those that have one must agree with.
type look struct {
	v        *view
	on       *target // what the view sleeps on
	asked    []*sub
	deafness bool
	before   map[*sub]map[string]place // what they believe when the read is sent
	applied  uint64
	least    int64 // the revision that was known when it was sent

	upTo   int64    // the youngest key that concerns anybody
	keys   []string // beside the one it sleeps on
	places map[string]place
	rev    int64
}

func (v *view) prepareLook(deafness bool) *look {
	v.mu.Lock()
	defer v.mu.Unlock()
	k := &look{
		v: v, on: v.asleep, deafness: deafness, applied: v.applied, least: v.since, upTo: 1,
		before: map[*sub]map[string]place{},
	}
	for s := range v.subs {
		switch {
		case k.on != nil:
			k.asked = append(k.asked, s)
			k.keys = append(k.keys, s.key)
			continue
		case s.floor == 0 || !v.live:
			k.asked = append(k.asked, s)
		case deafness && s.waiter:
			k.before[s], k.least = maps.Clone(s.ahead), max(k.least, s.floor)
		default:
			continue
		}
		k.upTo = max(k.upTo, s.rev)
	}
	return k
}

// read reads the queue, linearizable: what is not younger than the youngest
// that asks.
func (k *look) read(ctx context.Context, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	kvs, rev, err := k.get(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return errNoAnswer
		}
		return err
	}
	k.rev, k.places = rev, make(map[string]place, len(kvs))
	for _, kv := range kvs {
		k.places[string(kv.Key)] = place{rev: kv.CreateRevision, lease: kv.Lease}
	}
	return nil
}

// get does not ask for keys alone: etcd 3.7.3 answers that from its index, which
// does not know a key's lease.
func (k *look) get(ctx context.Context) (kvs []*mvccpb.KeyValue, rev int64, err error) {
	client := k.v.l.client
	if k.on == nil {
		var opts []clientv3.OpOption
		if k.v.prefix {
			opts = append(opts, clientv3.WithPrefix(), clientv3.WithMaxCreateRev(k.upTo))
		}
		resp, err := client.Get(ctx, k.v.key, opts...)
		if err != nil {
			return nil, 0, err
		}
		return resp.Kvs, resp.Header.Revision, nil
	}
	for keys := range slices.Chunk(append([]string{k.on.key}, k.keys...), maxTxnOps) {
		var ops []clientv3.Op
		for _, key := range keys {
			ops = append(ops, clientv3.OpGet(key))
		}
		resp, err := client.Txn(ctx).Then(ops...).Commit()
		if err != nil {
			return nil, 0, err
		}
		for _, r := range resp.Responses {
			kvs = append(kvs, r.GetResponseRange().Kvs...)
		}
		// What was deleted after the first is found missing in a later one, or
		// comes as an event after the first's revision. Both say so.
		if rev == 0 {
			rev = resp.Header.Revision
		}
	}
	return kvs, rev, nil
}

// install gives its snapshot to everybody who asked for one. What came as an event
// meanwhile is applied on top. Of a view that sleeps everybody only learns whether
// its own key is still there. It reports whether another watch is needed.
func (v *view) install(k *look) bool {
	v.mu.Lock()
	if k.on != nil {
		var told []telling
		for _, s := range k.asked {
			if _, ok := v.subs[s]; ok && k.places[s.key].rev != s.rev {
				told = append(told, telling{s, finding{verdict: verdictDead}})
				v.remove(s)
			}
		}
		// Who came while the view was falling asleep was not looked at then.
		serves := k.places[k.on.key] == k.on.place
		for s := range v.subs {
			serves = serves && k.on.aheadOf(s)
		}
		v.mu.Unlock()
		deliver(told)
		if !serves {
			v.wake()
		}
		return !serves
	}
	for _, s := range k.asked {
		s.settle(k.places, k.rev)
		v.catchUp(s)
	}
	for s := range v.subs {
		if s.floor < v.since {
			v.catchUp(s) // it came when the read was on its way
		}
	}
	told := v.judge()
	v.mu.Unlock()
	deliver(told)
	return v.sleepy()
}

// apply applies a whole watch response before anybody looks: a revoke deletes
// several keys in one revision, and half of it would show a head that is not. It
// reports whether another watch is needed.
func (v *view) apply(events []*clientv3.Event, on *target) bool {
	v.mu.Lock()
	for _, ev := range events {
		if ev.Type != mvccpb.Event_DELETE {
			continue
		}
		d := deletion{key: string(ev.Kv.Key), rev: ev.Kv.ModRevision}
		if on != nil && d.rev > v.since {
			v.asleep = nil
		}
		for s := range v.subs {
			s.hear(d)
		}
		if len(v.recent) == maxRecent {
			v.since = max(v.since, v.recent[maxRecent/2-1].rev)
			v.recent = append(v.recent[:0], v.recent[maxRecent/2:]...)
		}
		v.recent = append(v.recent, d)
	}
	v.applied++
	told := v.judge()
	woken := on != nil && v.asleep == nil
	v.mu.Unlock()
	deliver(told)
	return woken || v.sleepy()
}

// missed reports whether the watch has missed something, because a watch can be
// deaf without an error: its connection black-holed, or the store restored to a
// smaller revision. The read is compared with what was believed when it was sent,
// and not installed over that, since events may have overtaken it.
func (v *view) missed(k *look) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if k.rev < k.least {
		return true // reads do not go back, but over a restore
	}
	if !k.deafness || v.applied != k.applied {
		return false // it heard something meanwhile
	}
	if k.on != nil && k.places[k.on.key] != k.on.place {
		v.asleep = nil
		return true
	}
	for s, ahead := range k.before {
		if _, ok := v.subs[s]; !ok {
			continue // it has left the queue by itself
		}
		if k.places[s.key].rev != s.rev || !maps.Equal(s.aheadIn(k.places), ahead) {
			return true
		}
	}
	return false
}

// backoff is a growing pause with jitter.
type backoff struct {
	first, max, next time.Duration
}

func (b *backoff) reset() { b.next = 0 }

// wait pauses, and returns ctx's error if it ends first.
func (b *backoff) wait(ctx context.Context) error {
	t := time.NewTimer(b.step())
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// step returns the next pause: between half and all of a doubling figure.
func (b *backoff) step() time.Duration {
	b.next = min(max(2*b.next, b.first), b.max)
	return b.next/2 + rand.N(b.next/2+1)
}
