package fencelock

import (
	"context"
	"strconv"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock/internal/clock"
)

// entry is one acquisition's place in a lock's queue: a key that may be in
// etcd, on a slot of its lease. The slot is taken from before the key is sent
// until etcd answered that the key is gone.
type entry struct {
	lease  *lease
	name   string
	queue  string // prefix of the queue's keys
	key    string
	rawKey []byte // the same, as requests take it; nobody writes to it
	slot   int
	holder string

	// value is the key's, and nil once rev is known, which identifies it from then
	// on. rev is the key's creation revision, 0 while etcd has not told it. They are
	// written, with l.mu held, by the one goroutine that has the entry, before it
	// passes it on. Whoever has not got it from there, as the revoking of a lease with
	// all its keys, reads them with l.mu held.
	value []byte
	rev   int64

	cleaning bool // a clean-up runs; guarded by l.mu
	// answered says that the acquiring Txn is not under way any more, although its
	// answer did not tell what became of it; guarded by l.mu.
	answered bool
}

// newEntry takes a slot on the lease; l.mu must be held.
func (le *lease) newEntry(name string) *entry {
	l := le.l
	l.counter++
	e := &entry{
		lease:  le,
		name:   name,
		slot:   le.slots.take(name),
		holder: holderID(le.id, l.random, l.counter),
	}
	queue := queuePrefix(l.cfg.prefix, name)
	e.rawKey = slotKey(queue, le.id, e.slot)
	e.key = string(e.rawKey)
	e.queue = e.key[:len(queue)] // one string for both, for as long as the lock is held
	le.used++
	le.entries[e] = struct{}{}
	le.startKeeper()
	return e
}

func holderID(lease clientv3.LeaseID, random string, n uint64) string {
	id := strconv.AppendInt(make([]byte, 0, 64), int64(lease), 16)
	id = append(append(append(id, '-'), random...), '-')
	return string(strconv.AppendUint(id, n, 10))
}

// write builds the key's value, once per acquisition, outside any lock.
func (e *entry) write(l *Locker) {
	value := l.about.record(e.holder, time.Now())
	l.mu.Lock()
	e.value = value
	l.mu.Unlock()
}

// free gives the slot back: etcd has answered that the key is not there.
func (e *entry) free() {
	l := e.lease.l
	l.mu.Lock()
	defer l.mu.Unlock()
	e.freeLocked()
}

func (e *entry) freeLocked() {
	le := e.lease
	if _, ok := le.entries[e]; !ok {
		return
	}
	delete(le.entries, e)
	le.used--
	le.slots.giveBack(e.name, e.slot)
	le.l.changed()
}

// viewDepth is how many are ahead of a waiter at most for it to follow them all. Each
// deletion goes to everybody who follows the queue, so beyond that it costs more
// than it saves (measured: the two ways cross between 16 and 24 processes).
const viewDepth = 16

// sleepDepth is how many places ahead of a deeper waiter the key is that its view
// sleeps on. When that is gone, this many turns are left to follow the queue in time.
const sleepDepth = 4

// Operations but for their keys. The options of an operation are a closure each, and
// these are the same for every acquisition.
var (
	deleteKey   = clientv3.OpDelete("")
	readHead    = clientv3.OpGet("", clientv3.WithFirstCreate()...)
	readNearest = clientv3.OpGet("", clientv3.WithPrefix(),
		clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortDescend), clientv3.WithLimit(viewDepth+2))
)

// ofQueue makes a read one of the entry's queue, which ends where end begins.
func (e *entry) ofQueue(read clientv3.Op, end []byte) clientv3.Op {
	read.WithKeyBytes(e.rawKey[:len(e.queue):len(e.queue)])
	read.WithRangeBytes(end)
	return read
}

func (e *entry) queueEnd() []byte { return []byte(clientv3.GetPrefixRangeEnd(e.queue)) }

func (e *entry) deletion() clientv3.Op {
	op := deleteKey
	op.WithKeyBytes(e.rawKey)
	return op
}

// createdAt is the compare that is true while the key has this creation revision, 0
// for none. [clientv3.Compare] makes the same and copies it by reflection; the Txn
// that takes it does so once more.
func createdAt(key []byte, rev int64) clientv3.Cmp {
	var c clientv3.Cmp
	p := c.GetCompare()
	p.Key, p.Target = key, etcdserverpb.Compare_CREATE
	p.TargetUnion = &etcdserverpb.Compare_CreateRevision{CreateRevision: rev}
	return c
}

// join puts the key into the queue, if the slot is free, and reads the keys ahead
// of it, youngest first: as many as are worth following, and one more to tell
// that there are more. The first is the key itself, for no key of the queue is
// younger. If the slot is not free it reads the head. With alone it puts the key
// only if the queue is empty.
func (e *entry) join(ctx context.Context, alone bool) (*clientv3.TxnResponse, error) {
	client := e.lease.l.client
	put, end := e.lease.put, e.queueEnd()
	put.WithKeyBytes(e.rawKey)
	put.WithValueBytes(e.value)
	near, head := e.ofQueue(readNearest, end), e.ofQueue(readHead, end)
	free := createdAt(e.rawKey, 0)
	if alone {
		// Over a range the compare holds for every key in it, so it is true only
		// where there is none.
		free = clientv3.Compare(clientv3.CreateRevision(e.queue).WithPrefix(), "=", 0)
	}
	return client.Txn(ctx).If(free).Then(put, near).Else(head).Commit()
}

// ours is the compare that is true only while the key is this acquisition's:
// by creation revision, and by value while that is unknown.
func (e *entry) ours() clientv3.Cmp {
	l := e.lease.l
	l.mu.Lock()
	rev, value := e.rev, e.value
	l.mu.Unlock()
	if rev != 0 {
		return createdAt(e.rawKey, rev)
	}
	return clientv3.Compare(clientv3.Value(e.key), "=", string(value))
}

// delete deletes the key if it is still this acquisition's, and reports
// whether it was. There is no Put in it, so it works under a NOSPACE alarm.
func (e *entry) delete(ctx context.Context) (found bool, err error) {
	resp, err := e.lease.l.client.Txn(ctx).If(e.ours()).Then(e.deletion()).Commit()
	if err != nil {
		return false, err
	}
	return resp.Succeeded, nil
}

// leave is delete, and reads who headed the queue before.
func (e *entry) leave(ctx context.Context) (*clientv3.TxnResponse, error) {
	head := e.ofQueue(readHead, e.queueEnd())
	return e.lease.l.client.Txn(ctx).If(e.ours()).Then(head, e.deletion()).Else(head).Commit()
}

// discard gives the entry to the lease's keeper: the key is deleted in the
// background until etcd has answered, however long that takes, and the slot
// stays taken up to then.
func (e *entry) discard() {
	l := e.lease.l
	l.mu.Lock()
	defer l.mu.Unlock()
	e.discardLocked()
}

func (e *entry) discardLocked() {
	l := e.lease.l
	if _, ok := e.lease.entries[e]; ok && !e.cleaning {
		e.cleaning = l.spawnLocked(e.clean)
	}
}

// clean deletes the key of an ended acquisition until that is settled.
//
// With a creation revision every answer settles it, and so it does if the acquiring
// Txn was answered. Without that answer finding the key settles it, but not finding
// it proves nothing, because the Txn can arrive late. Then the lease is retired, and
// the attempts go on as long as its holders keep it alive.
func (e *entry) clean() {
	le := e.lease
	l := le.l
	pause := backoff{first: 50 * time.Millisecond, max: min(le.asked/3, 5*time.Second)}
	began := clock.Now()
	l.mu.Lock()
	settled := e.rev != 0 || e.answered
	l.mu.Unlock()
	for !l.clientClosed() { // that ends with its lease
		ctx, cancel := context.WithTimeout(l.ctx, attemptBound)
		found, err := e.delete(ctx)
		cancel()
		switch {
		case err == nil && (found || settled):
			e.free()
			return
		case err == nil, refused(err), !settled && clock.Since(began) > le.asked:
			// Refused for good, it would be kept alive by what it shares the
			// lease with, just as one that cannot be found; and so would one of
			// which nothing is heard while renewals are answered.
			l.retire(le)
		}
		l.mu.Lock()
		ending := le.state == leaseEnding
		l.mu.Unlock()
		if ending {
			e.free() // it goes with the lease
			return
		}
		if pause.wait(l.ctx) != nil {
			return
		}
	}
}
