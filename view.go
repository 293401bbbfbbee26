package fencelock

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
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
	verdictHead    verdict = iota + 1 // it is the oldest: the holder of record
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

// view is a replica of one lock's queue in etcd, shared by all waiters of a
// Locker on that name; or of a single key, for a holder that watches its own.
//
// etcd serves a watch that starts at or below its current revision only on a
// 100 ms tick (etcd 3.7.3, mvcc/watchable_store.go, syncWatchersLoop), so a
// view watches from now, and when the watch is confirmed reads the queue once.
// What comes with a revision above that read's is applied on top. Nobody
// inserts an entry of its own: the view is what etcd said and nothing else.
type view struct {
	l      *Locker
	key    string // the queue's prefix, or the single key
	prefix bool
	ttl    time.Duration

	// guarded by l.mu
	refs   int
	linger *time.Timer
	cancel context.CancelFunc

	mu      sync.Mutex
	live    bool             // places is a complete queue
	rev     int64            // up to where
	places  map[string]place // by key
	applied uint64           // counts responses, for the deafness check
	subs    map[*sub]struct{}
	waiting int   // subs that wait for the head
	lastErr error // what ended the last watch
}

// place is one key in the queue.
type place struct {
	rev   int64 // creation revision
	lease int64
}

// sub is one key's interest in a view. Its tell is called once, from the
// view's goroutine or from watch's, without a lock held, and must not block.
type sub struct {
	key    string
	rev    int64 // the creation revision it is known by
	waiter bool  // wants to hear of heading the queue; else only of death
	tell   func(finding)

	due bool // a read sent after it subscribed was installed: absence is death
}

// openView returns the view of a queue or key with one more user; a nil view
// if the Locker is stopped. l.mu must be held.
func (l *Locker) openView(key string, prefix bool, ttl time.Duration) *view {
	v := l.views[key]
	if v == nil {
		ctx, cancel := context.WithCancel(l.ctx)
		v = &view{l: l, key: key, prefix: prefix, ttl: ttl, cancel: cancel, subs: map[*sub]struct{}{}}
		if !l.spawnLocked(func() { v.run(ctx) }) {
			cancel()
			return nil
		}
		l.views[key] = v
	}
	v.refs++
	if v.linger != nil {
		v.linger.Stop()
		v.linger = nil
	}
	return v
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
	if !v.prefix { // a single key's view has one life, its holder's
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
	v.subs[s] = struct{}{}
	if s.waiter {
		v.waiting++
	}
	told := v.judge()
	v.mu.Unlock()
	deliver(told)
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
	if !v.live || len(v.subs) == 0 {
		return nil
	}
	var head, block int64 // creation revisions of the oldest key and the oldest without a lease
	var blockKey string
	for key, p := range v.places {
		if head == 0 || p.rev < head {
			head = p.rev
		}
		if p.lease == 0 && (block == 0 || p.rev < block) {
			block, blockKey = p.rev, key
		}
	}
	for s := range v.subs {
		var f finding
		p, ok := v.places[s.key]
		switch {
		case !ok || p.rev != s.rev:
			// Absence means death only once the view has come to the revision
			// that made the key. A store restored to an earlier one never comes
			// there; a read that was sent after the key was known settles that.
			if v.rev < s.rev && !s.due {
				continue
			}
			f.verdict = verdictDead
		case !s.waiter:
			continue
		case p.rev == head:
			f.verdict = verdictHead
		case block != 0 && block < p.rev:
			f.verdict, f.key = verdictBlocked, blockKey
		default:
			continue
		}
		told = append(told, telling{s, f})
	}
	for _, t := range told {
		v.remove(t.s)
	}
	return told
}

// err returns what ended the view's last watch, for an error's text.
func (v *view) err() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.lastErr
}

var errDeaf = errors.New("the watch missed an event")

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
		v.live, v.lastErr = false, err
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
	opts := []clientv3.OpOption{clientv3.WithCreatedNotify()}
	if v.prefix {
		opts = append(opts, clientv3.WithPrefix())
	}

	// Watch itself blocks until etcd has confirmed, on a dead connection for
	// ever.
	impatient := time.AfterFunc(patience, cancel)
	wch := v.l.client.Watch(wctx, v.key, opts...)
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

	v.mu.Lock()
	asked := make([]*sub, 0, len(v.subs))
	for s := range v.subs {
		asked = append(asked, s)
	}
	v.mu.Unlock()
	places, rev, err := v.read(ctx, patience)
	if err != nil {
		return false, err
	}
	v.install(places, rev, asked)

	deaf := time.NewTimer(v.deafAfter())
	defer deaf.Stop()
	checking, checked := false, make(chan error, 1)
	for {
		select {
		case r, ok := <-wch:
			if !ok {
				return true, errNoAnswer
			}
			if err := r.Err(); err != nil {
				return true, watchRefusal(err)
			}
			v.apply(r.Events, rev)
			deaf.Reset(v.deafAfter())
		case <-deaf.C:
			if checking {
				continue // its answer sets the timer again
			}
			if !v.watched() {
				deaf.Reset(v.deafAfter())
				continue
			}
			limit := patience
			checking = v.l.spawn(func() { checked <- v.check(wctx, limit) })
		case err := <-checked:
			checking = false
			switch {
			case errors.Is(err, errNoAnswer):
				patience = v.morePatience(patience)
				deaf.Reset(0) // the next read can reach another endpoint
			case err != nil:
				return true, err
			default:
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

// read reads the queue, linearizable.
func (v *view) read(ctx context.Context, patience time.Duration) (map[string]place, int64, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	// Not WithKeysOnly: etcd 3.7.3 answers that from its index, which does not
	// know a key's lease.
	var opts []clientv3.OpOption
	if v.prefix {
		opts = append(opts, clientv3.WithPrefix())
	}
	resp, err := v.l.client.Get(ctx, v.key, opts...)
	if err != nil {
		if ctx.Err() != nil {
			return nil, 0, errNoAnswer
		}
		return nil, 0, err
	}
	places := make(map[string]place, len(resp.Kvs))
	for _, kv := range resp.Kvs {
		places[string(kv.Key)] = place{rev: kv.CreateRevision, lease: kv.Lease}
	}
	return places, resp.Header.Revision, nil
}

func (v *view) install(places map[string]place, rev int64, asked []*sub) {
	v.mu.Lock()
	v.places, v.rev, v.live, v.lastErr = places, rev, true, nil
	for _, s := range asked {
		s.due = true
	}
	told := v.judge()
	v.mu.Unlock()
	deliver(told)
}

// apply applies a whole watch response before anybody looks: a revoke deletes
// several keys in one revision, and half of it would show a head that is not.
// Slots are reused, so an event at or below the revision of the read is of an
// earlier life of its key and must not be applied.
func (v *view) apply(events []*clientv3.Event, floor int64) {
	v.mu.Lock()
	for _, ev := range events {
		if ev.Kv.ModRevision <= floor {
			continue
		}
		switch ev.Type {
		case mvccpb.Event_PUT:
			v.places[string(ev.Kv.Key)] = place{rev: ev.Kv.CreateRevision, lease: ev.Kv.Lease}
		case mvccpb.Event_DELETE:
			delete(v.places, string(ev.Kv.Key))
		}
		v.rev = max(v.rev, ev.Kv.ModRevision)
	}
	v.applied++
	told := v.judge()
	v.mu.Unlock()
	deliver(told)
}

// check reads the queue once because a watch can be deaf without an error: its
// connection black-holed, or the store restored to a smaller revision. The read
// is compared and never installed, since events may have overtaken it.
func (v *view) check(ctx context.Context, patience time.Duration) error {
	v.mu.Lock()
	before, rev, applied := maps.Clone(v.places), v.rev, v.applied
	v.mu.Unlock()
	places, readRev, err := v.read(ctx, patience)
	if err != nil {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.applied != applied {
		return nil // it heard something meanwhile
	}
	if readRev < rev || !maps.Equal(places, before) {
		return errDeaf
	}
	return nil
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
