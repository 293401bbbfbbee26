package fencelock

import (
	"context"
	"errors"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// fakeWatcher is a link's clientv3.Watcher. etcd's own cannot be used over a
// fake stub: it selects on a channel made when its package was loaded, and a
// goroutine that waits for something from outside keeps a bubble's time from
// moving.
type fakeWatcher struct{ link *fakeLink }

// fakeSyncTick is how long a watch that starts in the past waits at most for
// etcd to look at it. The fake always lets it wait that long.
const fakeSyncTick = 100 * time.Millisecond

// fakeWatch is one watch at the server, and what is on its way to the client.
type fakeWatch struct {
	link     *fakeLink
	key, end []byte
	from     int64 // nothing below this revision
	noPut    bool
	out      chan clientv3.WatchResponse

	mu     sync.Mutex
	queue  []fakeDelivery
	queued chan struct{} // holds a token while something may be queued
	deaf   bool
}

type fakeDelivery struct {
	at   time.Time // when it left the server
	resp clientv3.WatchResponse
	last bool
}

// Watch returns when the server has answered that the watch stands, as etcd's
// client does.
func (w fakeWatcher) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	op := clientv3.OpWatch(key, opts...)
	if op.IsPrevKV() || op.IsFilterDelete() || op.IsProgressNotify() {
		panic("fake etcd: watch option not implemented")
	}
	watch, err := w.link.call(ctx, fakeWatchReq, op, func() (any, error) {
		return w.link.open(ctx, op), nil
	})
	switch {
	case err == nil:
		return watch.(*fakeWatch).out
	case ctx.Err() != nil:
		return closedWatch()
	}
	return closedWatch(clientv3.WatchResponse{Header: &pb.ResponseHeader{}, Canceled: true, CancelReason: rpctypes.ErrorDesc(err)})
}

func closedWatch(last ...clientv3.WatchResponse) clientv3.WatchChan {
	out := make(chan clientv3.WatchResponse, 1)
	for _, resp := range last {
		out <- resp
	}
	close(out)
	return out
}

func (w fakeWatcher) RequestProgress(context.Context) error {
	return errors.New("fake etcd: no progress notifications")
}

func (w fakeWatcher) Close() error { return nil } // the client's context has ended

// breakWatches ends all watches of the link with an error of etcd's, such as
// rpctypes.ErrNoLeader, or without one if err is nil.
func (l *fakeLink) breakWatches(err error) {
	d := fakeDelivery{at: time.Now(), last: true}
	if err != nil {
		d.resp = clientv3.WatchResponse{Header: &pb.ResponseHeader{}, Canceled: true, CancelReason: rpctypes.ErrorDesc(err)}
	}
	l.eachWatch(func(w *fakeWatch) { w.push(d) })
}

// deafen makes all watches the link has silent for ever, without an error.
func (l *fakeLink) deafen() {
	l.eachWatch(func(w *fakeWatch) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.deaf = true
	})
}

// watches returns how many watches of the link the server has.
func (l *fakeLink) watches() int {
	n := 0
	l.eachWatch(func(*fakeWatch) { n++ })
	return n
}

func (l *fakeLink) eachWatch(do func(*fakeWatch)) {
	l.etcd.mu.Lock()
	defer l.etcd.mu.Unlock()
	for w := range l.etcd.watches {
		if w.link == l {
			do(w)
		}
	}
}

// open registers a watch at the server.
func (l *fakeLink) open(ctx context.Context, op clientv3.Op) *fakeWatch {
	w := &fakeWatch{
		link:   l,
		key:    op.KeyBytes(),
		end:    op.RangeBytes(),
		from:   op.Rev(),
		noPut:  op.IsFilterPut(),
		out:    make(chan clientv3.WatchResponse, 1), // as etcd's client has it
		queued: make(chan struct{}, 1),
	}
	e := l.etcd
	e.mu.Lock()
	defer e.mu.Unlock()
	if op.IsCreatedNotify() {
		w.push(fakeDelivery{at: time.Now(), resp: clientv3.WatchResponse{Header: e.header(), Created: true}})
	}
	if w.from > 0 && w.from <= e.rev {
		w.replay()
	}
	e.watches[w] = struct{}{}
	go w.deliver(ctx)
	return w
}

// replay queues what happened since the revision the watch starts at; etcd
// serves that only on its next tick.
func (w *fakeWatch) replay() {
	at := time.Now().Add(fakeSyncTick)
	if compacted := w.link.etcd.compacted; w.from <= compacted {
		w.push(compactedAt(at, compacted))
		return
	}
	log := w.link.etcd.log
	var evts []*mvccpb.Event
	for i, c := range log {
		rev := c.ev.Kv.ModRevision
		if rev < w.from {
			continue
		}
		evts = append(evts, c.ev)
		if next := i + 1; next == len(log) || log[next].ev.Kv.ModRevision != rev {
			w.push(w.delivery(at, rev, evts))
			evts = nil
		}
	}
}

func compactedAt(at time.Time, rev int64) fakeDelivery {
	return fakeDelivery{at: at, last: true, resp: clientv3.WatchResponse{
		Header: &pb.ResponseHeader{}, Canceled: true, CompactRevision: rev,
	}}
}

// notify queues what the watch wants of one revision, whole.
func (w *fakeWatch) notify(rev int64, evts []*mvccpb.Event) {
	if rev >= w.from {
		w.push(w.delivery(time.Now(), rev, evts))
	}
}

func (w *fakeWatch) delivery(at time.Time, rev int64, evts []*mvccpb.Event) fakeDelivery {
	var wanted []*mvccpb.Event
	for _, ev := range evts {
		if inRange(ev.Kv.Key, w.key, w.end) && !(w.noPut && ev.Type == mvccpb.Event_PUT) {
			wanted = append(wanted, &mvccpb.Event{Type: ev.Type, Kv: ev.Kv})
		}
	}
	header := w.link.etcd.header()
	header.Revision = rev
	return fakeDelivery{at: at, resp: clientv3.WatchResponse{Header: header, Events: wanted}}
}

func (w *fakeWatch) push(d fakeDelivery) {
	if !d.last && !d.resp.Created && len(d.resp.Events) == 0 {
		return
	}
	w.mu.Lock()
	w.queue = append(w.queue, d)
	w.mu.Unlock()
	select {
	case w.queued <- struct{}{}:
	default:
	}
}

func (w *fakeWatch) pop() (d fakeDelivery, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.queue) == 0 {
		return d, false
	}
	d, w.queue = w.queue[0], w.queue[1:]
	return d, true
}

func (w *fakeWatch) isDeaf() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.deaf
}

// deliver takes queued responses to the client, in order, each with its own
// delay or loss.
func (w *fakeWatch) deliver(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(w.link.client.Ctx(), cancel)()
	defer close(w.out)
	defer func() {
		w.link.etcd.mu.Lock()
		defer w.link.etcd.mu.Unlock()
		delete(w.link.etcd.watches, w)
	}()
	for {
		d, ok := w.pop()
		if !ok {
			select {
			case <-w.queued:
				continue
			case <-ctx.Done():
				return
			}
		}
		if d, ok = w.arrive(ctx, d); ok {
			if d.resp.Header != nil {
				select {
				case w.out <- d.resp:
				case <-ctx.Done():
					return
				}
			}
			if d.last {
				return
			}
		}
		if ctx.Err() != nil {
			return
		}
	}
}

// arrive lets d travel; what arrives can be another answer.
func (w *fakeWatch) arrive(ctx context.Context, d fakeDelivery) (arrived fakeDelivery, ok bool) {
	f := w.link.fault(fakeEvent, d.resp)
	if wait := time.Until(d.at) + f.replyDelay; wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return d, false
		}
	}
	if f.loseReply || w.isDeaf() {
		return d, false
	}
	for hole := w.link.hole(); hole != nil; hole = w.link.hole() {
		select {
		case <-hole:
		case <-ctx.Done():
			return d, false
		}
		// The client resumes the watch where it stood, if etcd still has that.
		w.link.etcd.mu.Lock()
		compacted := w.link.etcd.compacted
		w.link.etcd.mu.Unlock()
		if rev := d.resp.Header.GetRevision(); rev != 0 && rev <= compacted {
			return compactedAt(d.at, compacted), true
		}
	}
	return d, true
}
