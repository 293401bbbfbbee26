package fencelock

import (
	"cmp"
	"context"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"
)

// fakeEtcd is an etcd of one member in memory: revisions, transactions, leases
// that expire, watches. It exists because timing rules are tested in
// testing/synctest bubbles, where no real I/O may happen; what etcd itself does
// is tested on real clusters, in internal/integration.
//
// It answers the protobuf requests of etcd's own client, so that this client's
// code runs in these tests too; see fakeLink. Where it does less than etcd it
// says so with Unimplemented. Time is package time's, so a bubble's in a bubble.
type fakeEtcd struct {
	stop context.Context // ends with the test

	mu        sync.Mutex
	minTTL    int64 // least TTL granted, in seconds
	rev       int64
	compacted int64
	kvs       map[string]*mvccpb.KeyValue
	log       []fakeChange
	leases    map[int64]*fakeLease
	granted   int64
	watches   map[*fakeWatch]struct{}
}

// fakeChange is one key's change.
type fakeChange struct {
	at time.Time
	ev *mvccpb.Event // with PrevKv
}

type fakeLease struct {
	ttl     int64
	expires time.Time
	changed chan struct{} // closed when it ended or a new leader renewed it
}

const (
	// fakeExpiryTick is how often etcd looks for expired leases.
	fakeExpiryTick = 500 * time.Millisecond

	fakeMaxOps     = 128
	fakeMaxRequest = 1536 << 10
)

func newFakeEtcd(t testing.TB) *fakeEtcd {
	stop, cancel := context.WithCancel(context.Background())
	e := &fakeEtcd{
		stop:      stop,
		minTTL:    2, // 1.5 × etcd's default election timeout, rounded up
		rev:       1, // a new etcd's
		compacted: -1,
		kvs:       make(map[string]*mvccpb.KeyValue),
		leases:    make(map[int64]*fakeLease),
		watches:   make(map[*fakeWatch]struct{}),
	}
	var expiry sync.WaitGroup
	expiry.Go(e.expireLeases)
	t.Cleanup(func() {
		cancel()
		expiry.Wait()
	})
	return e
}

// keys returns the keys under prefix in order of creation.
func (e *fakeEtcd) keys(prefix string) []*mvccpb.KeyValue {
	e.mu.Lock()
	defer e.mu.Unlock()
	kvs := e.scan(e.kvs, []byte(prefix), []byte(clientv3.GetPrefixRangeEnd(prefix)))
	slices.SortFunc(kvs, func(a, b *mvccpb.KeyValue) int { return cmp.Compare(a.CreateRevision, b.CreateRevision) })
	return kvs
}

// changes returns everything that happened to keys under prefix, in order.
func (e *fakeEtcd) changes(prefix string) []fakeChange {
	e.mu.Lock()
	defer e.mu.Unlock()
	var out []fakeChange
	for _, c := range e.log {
		if strings.HasPrefix(string(c.ev.Kv.Key), prefix) {
			out = append(out, c)
		}
	}
	return out
}

// expiries returns when each lease can expire at the earliest.
func (e *fakeEtcd) expiries() map[clientv3.LeaseID]time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := make(map[clientv3.LeaseID]time.Time, len(e.leases))
	for id, l := range e.leases {
		out[clientv3.LeaseID(id)] = l.expires
	}
	return out
}

// elect makes a new leader: every lease starts anew, one election timeout from
// now.
func (e *fakeEtcd) elect(timeout time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, l := range e.leases {
		l.expires = time.Now().Add(timeout + time.Duration(l.ttl)*time.Second)
		close(l.changed)
		l.changed = make(chan struct{})
	}
}

// serve carries out one request. Only a keep-alive can block, for up to an
// expiry tick.
func (e *fakeEtcd) serve(req proto.Message) (proto.Message, error) {
	if r, ok := req.(*pb.LeaseKeepAliveRequest); ok {
		return e.keepAlive(r)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	switch r := req.(type) {
	case *pb.RangeRequest:
		if len(r.Key) == 0 {
			return nil, rpctypes.ErrGRPCEmptyKey
		}
		return e.rangeKeys(r)
	case *pb.PutRequest, *pb.DeleteRangeRequest:
		return e.single(r)
	case *pb.TxnRequest:
		return e.txn(r)
	case *pb.CompactionRequest:
		return e.compact(r)
	case *pb.LeaseGrantRequest:
		return e.grant(r)
	case *pb.LeaseRevokeRequest:
		return e.revoke(r)
	case *pb.LeaseTimeToLiveRequest:
		return e.timeToLive(r)
	case *pb.LeaseLeasesRequest:
		return e.listLeases()
	}
	return nil, errFakeUnimplemented
}

func (e *fakeEtcd) header() *pb.ResponseHeader {
	return &pb.ResponseHeader{ClusterId: 1, MemberId: 1, RaftTerm: 2, Revision: e.rev}
}

// single is a put or a delete outside of a Txn, which is a Txn of one operation.
func (e *fakeEtcd) single(req proto.Message) (proto.Message, error) {
	t := &pb.TxnRequest{Success: []*pb.RequestOp{fakeOp(req)}}
	resp, err := e.txn(t)
	if err != nil {
		return nil, err
	}
	op := resp.Responses[0]
	if put := op.GetResponsePut(); put != nil {
		put.Header = resp.Header
		return put, nil
	}
	del := op.GetResponseDeleteRange()
	del.Header = resp.Header
	return del, nil
}

func fakeOp(req proto.Message) *pb.RequestOp {
	if put, ok := req.(*pb.PutRequest); ok {
		return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: put}}
	}
	return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: req.(*pb.DeleteRangeRequest)}}
}

// txn evaluates the compares on the state as it is, then does one branch, all
// or nothing, in one revision.
func (e *fakeEtcd) txn(t *pb.TxnRequest) (*pb.TxnResponse, error) {
	if max(len(t.Compare), len(t.Success), len(t.Failure)) > fakeMaxOps {
		return nil, rpctypes.ErrGRPCTooManyOps
	}
	if proto.Size(t) > fakeMaxRequest {
		return nil, rpctypes.ErrGRPCRequestTooLarge
	}
	for _, c := range t.Compare {
		if len(c.Key) == 0 {
			return nil, rpctypes.ErrGRPCEmptyKey
		}
	}
	for _, check := range []func([]*pb.RequestOp) error{checkKeys, checkDuplicates} {
		for _, branch := range [][]*pb.RequestOp{t.Success, t.Failure} {
			if err := check(branch); err != nil {
				return nil, err
			}
		}
	}
	ok := !slices.ContainsFunc(t.Compare, func(c *pb.Compare) bool { return !e.compare(c) })
	ops := t.Success
	if !ok {
		ops = t.Failure
	}
	if err := e.checkLeases(ops); err != nil {
		return nil, err
	}
	w := fakeWrite{e: e, rev: e.rev + 1}
	resp := &pb.TxnResponse{Succeeded: ok}
	for _, op := range ops {
		out, err := w.do(op)
		if err != nil {
			return nil, err
		}
		resp.Responses = append(resp.Responses, out)
	}
	w.commit()
	resp.Header = e.header()
	return resp, nil
}

// checkKeys and checkDuplicates refuse what etcd refuses before it looks at its
// state.
func checkKeys(ops []*pb.RequestOp) error {
	for _, op := range ops {
		var key []byte
		switch r := op.Request.(type) {
		case *pb.RequestOp_RequestRange:
			key = r.RequestRange.Key
		case *pb.RequestOp_RequestPut:
			key = r.RequestPut.Key
			if r.RequestPut.IgnoreLease || r.RequestPut.IgnoreValue {
				return errFakeUnimplemented
			}
		case *pb.RequestOp_RequestDeleteRange:
			key = r.RequestDeleteRange.Key
		default:
			return errFakeUnimplemented
		}
		if len(key) == 0 {
			return rpctypes.ErrGRPCEmptyKey
		}
	}
	return nil
}

func checkDuplicates(ops []*pb.RequestOp) error {
	puts := make(map[string]bool)
	for _, op := range ops {
		put := op.GetRequestPut()
		if put == nil {
			continue
		}
		if puts[string(put.Key)] {
			return rpctypes.ErrGRPCDuplicateKey
		}
		puts[string(put.Key)] = true
	}
	for _, op := range ops {
		del := op.GetRequestDeleteRange()
		for key := range puts {
			// etcd overlooks a delete without an upper bound here.
			if del != nil && string(del.RangeEnd) != "\x00" && inRange([]byte(key), del.Key, del.RangeEnd) {
				return rpctypes.ErrGRPCDuplicateKey
			}
		}
	}
	return nil
}

// checkLeases refuses a branch that puts with a lease that is gone. One that
// expired but is not yet revoked will do, as it does for etcd.
func (e *fakeEtcd) checkLeases(ops []*pb.RequestOp) error {
	for _, op := range ops {
		if put := op.GetRequestPut(); put != nil && put.Lease != 0 && e.leases[put.Lease] == nil {
			return rpctypes.ErrGRPCLeaseNotFound
		}
	}
	return nil
}

// compare is true if it is for every key of its range. A range without keys
// compares as one key that does not exist, and such a key has no value that
// could equal any.
func (e *fakeEtcd) compare(c *pb.Compare) bool {
	kvs := e.scan(e.kvs, c.Key, c.RangeEnd)
	if len(kvs) == 0 {
		if c.Target == pb.Compare_VALUE {
			return false
		}
		kvs = []*mvccpb.KeyValue{{}}
	}
	return !slices.ContainsFunc(kvs, func(kv *mvccpb.KeyValue) bool { return !compareKey(c, kv) })
}

func compareKey(c *pb.Compare, kv *mvccpb.KeyValue) bool {
	var order int
	switch c.Target {
	case pb.Compare_VERSION:
		order = cmp.Compare(kv.Version, c.GetVersion())
	case pb.Compare_CREATE:
		order = cmp.Compare(kv.CreateRevision, c.GetCreateRevision())
	case pb.Compare_MOD:
		order = cmp.Compare(kv.ModRevision, c.GetModRevision())
	case pb.Compare_VALUE:
		order = cmp.Compare(string(kv.Value), string(c.GetValue()))
	case pb.Compare_LEASE:
		order = cmp.Compare(kv.Lease, c.GetLease())
	}
	switch c.Result {
	case pb.Compare_EQUAL:
		return order == 0
	case pb.Compare_NOT_EQUAL:
		return order != 0
	case pb.Compare_GREATER:
		return order > 0
	}
	return order < 0
}

// inRange is etcd's rule: no end is the one key, an end of NUL is all from key
// on, else the end is excluded.
func inRange(k, key, end []byte) bool {
	switch {
	case len(end) == 0:
		return string(k) == string(key)
	case string(end) == "\x00":
		return string(k) >= string(key)
	}
	return string(k) >= string(key) && string(k) < string(end)
}

func (e *fakeEtcd) scan(state map[string]*mvccpb.KeyValue, key, end []byte) []*mvccpb.KeyValue {
	var out []*mvccpb.KeyValue
	for k, kv := range state {
		if inRange([]byte(k), key, end) {
			out = append(out, kv)
		}
	}
	slices.SortFunc(out, func(a, b *mvccpb.KeyValue) int { return cmp.Compare(string(a.Key), string(b.Key)) })
	return out
}

// stateAt rebuilds the store as it was at a revision.
func (e *fakeEtcd) stateAt(rev int64) (map[string]*mvccpb.KeyValue, error) {
	switch {
	case rev <= 0 || rev == e.rev:
		return e.kvs, nil
	case rev > e.rev:
		return nil, rpctypes.ErrGRPCFutureRev
	case rev < e.compacted:
		return nil, rpctypes.ErrGRPCCompacted
	}
	state := make(map[string]*mvccpb.KeyValue)
	for _, c := range e.log {
		if c.ev.Kv.ModRevision > rev {
			break
		}
		if c.ev.Type == mvccpb.Event_DELETE {
			delete(state, string(c.ev.Kv.Key))
		} else {
			state[string(c.ev.Kv.Key)] = c.ev.Kv
		}
	}
	return state, nil
}

func (e *fakeEtcd) rangeKeys(r *pb.RangeRequest) (*pb.RangeResponse, error) {
	state, err := e.stateAt(r.Revision)
	if err != nil {
		return nil, err
	}
	kvs := e.scan(state, r.Key, r.RangeEnd)
	resp := &pb.RangeResponse{Header: e.header(), Count: int64(len(kvs))}
	if r.CountOnly {
		return resp, nil
	}
	filtered := max(r.MinModRevision, r.MaxModRevision, r.MinCreateRevision, r.MaxCreateRevision) != 0
	if r.SortOrder == pb.RangeRequest_NONE && !filtered && r.Limit > 0 {
		// Without an order etcd reads no more keys than it needs, whatever they
		// are to be sorted by.
		kvs = kvs[:min(int64(len(kvs)), r.Limit+1)]
	}
	kvs = slices.DeleteFunc(kvs, func(kv *mvccpb.KeyValue) bool {
		return outside(kv.ModRevision, r.MinModRevision, r.MaxModRevision) ||
			outside(kv.CreateRevision, r.MinCreateRevision, r.MaxCreateRevision)
	})
	sortKeys(kvs, r)
	if r.Limit > 0 && int64(len(kvs)) > r.Limit {
		kvs, resp.More = kvs[:r.Limit], true
	}
	if r.KeysOnly {
		for i, kv := range kvs {
			// etcd 3.7 answers these from its index, which knows no leases.
			kvs[i] = proto.CloneOf(kv)
			kvs[i].Value, kvs[i].Lease = nil, 0
		}
	}
	resp.Kvs = kvs
	return resp, nil
}

// outside is true if rev is not in [least, most], where 0 is no bound.
func outside(rev, least, most int64) bool {
	if most == 0 {
		most = math.MaxInt64
	}
	return rev < least || rev > most
}

func sortKeys(kvs []*mvccpb.KeyValue, r *pb.RangeRequest) {
	order := r.SortOrder
	if order == pb.RangeRequest_NONE && r.SortTarget != pb.RangeRequest_KEY {
		order = pb.RangeRequest_ASCEND
	}
	if order == pb.RangeRequest_NONE {
		return // by key, as they are
	}
	slices.SortStableFunc(kvs, func(a, b *mvccpb.KeyValue) int {
		if order == pb.RangeRequest_DESCEND {
			a, b = b, a
		}
		switch r.SortTarget {
		case pb.RangeRequest_VERSION:
			return cmp.Compare(a.Version, b.Version)
		case pb.RangeRequest_CREATE:
			return cmp.Compare(a.CreateRevision, b.CreateRevision)
		case pb.RangeRequest_MOD:
			return cmp.Compare(a.ModRevision, b.ModRevision)
		case pb.RangeRequest_VALUE:
			return cmp.Compare(string(a.Value), string(b.Value))
		}
		return cmp.Compare(string(a.Key), string(b.Key))
	})
}

// fakeWrite is the writes of one revision.
type fakeWrite struct {
	e    *fakeEtcd
	rev  int64
	evts []*mvccpb.Event
}

func (w *fakeWrite) do(op *pb.RequestOp) (*pb.ResponseOp, error) {
	switch r := op.Request.(type) {
	case *pb.RequestOp_RequestRange:
		resp, err := w.e.rangeKeys(r.RequestRange)
		return &pb.ResponseOp{Response: &pb.ResponseOp_ResponseRange{ResponseRange: resp}}, err
	case *pb.RequestOp_RequestPut:
		return &pb.ResponseOp{Response: &pb.ResponseOp_ResponsePut{ResponsePut: w.put(r.RequestPut)}}, nil
	case *pb.RequestOp_RequestDeleteRange:
		return &pb.ResponseOp{Response: &pb.ResponseOp_ResponseDeleteRange{ResponseDeleteRange: w.delete(r.RequestDeleteRange)}}, nil
	}
	return nil, errFakeUnimplemented
}

func (w *fakeWrite) put(r *pb.PutRequest) *pb.PutResponse {
	prev := w.e.kvs[string(r.Key)]
	kv := &mvccpb.KeyValue{Key: r.Key, Value: r.Value, Lease: r.Lease, CreateRevision: w.rev, ModRevision: w.rev, Version: 1}
	if prev != nil {
		kv.CreateRevision, kv.Version = prev.CreateRevision, prev.Version+1
	}
	w.e.kvs[string(r.Key)] = kv
	w.evts = append(w.evts, &mvccpb.Event{Type: mvccpb.Event_PUT, Kv: kv, PrevKv: prev})
	resp := &pb.PutResponse{}
	if r.PrevKv {
		resp.PrevKv = prev
	}
	return resp
}

func (w *fakeWrite) delete(r *pb.DeleteRangeRequest) *pb.DeleteRangeResponse {
	gone := w.e.scan(w.e.kvs, r.Key, r.RangeEnd)
	for _, kv := range gone {
		w.remove(kv)
	}
	resp := &pb.DeleteRangeResponse{Deleted: int64(len(gone))}
	if r.PrevKv {
		resp.PrevKvs = gone
	}
	return resp
}

func (w *fakeWrite) remove(kv *mvccpb.KeyValue) {
	delete(w.e.kvs, string(kv.Key))
	w.evts = append(w.evts, &mvccpb.Event{
		Type:   mvccpb.Event_DELETE,
		Kv:     &mvccpb.KeyValue{Key: kv.Key, ModRevision: w.rev},
		PrevKv: kv,
	})
}

// commit makes the revision, unless nothing was written, and tells the watches.
func (w *fakeWrite) commit() {
	if len(w.evts) == 0 {
		return
	}
	w.e.rev = w.rev
	now := time.Now()
	for _, ev := range w.evts {
		w.e.log = append(w.e.log, fakeChange{at: now, ev: ev})
	}
	for watch := range w.e.watches {
		watch.notify(w.rev, w.evts)
	}
}

func (e *fakeEtcd) compact(r *pb.CompactionRequest) (*pb.CompactionResponse, error) {
	switch {
	case r.Revision <= e.compacted:
		return nil, rpctypes.ErrGRPCCompacted
	case r.Revision > e.rev:
		return nil, rpctypes.ErrGRPCFutureRev
	}
	e.compacted = r.Revision
	return &pb.CompactionResponse{Header: e.header()}, nil
}

func (e *fakeEtcd) grant(r *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error) {
	if r.TTL > 9_000_000_000 {
		return nil, rpctypes.ErrGRPCLeaseTTLTooLarge
	}
	id := r.ID
	if id == 0 {
		e.granted++
		id = 0x7587_0000_0000_0000 + e.granted // as long in hex as a real one
	}
	if e.leases[id] != nil {
		return nil, rpctypes.ErrGRPCLeaseExist
	}
	l := &fakeLease{ttl: max(r.TTL, e.minTTL), changed: make(chan struct{})}
	l.renew()
	e.leases[id] = l
	return &pb.LeaseGrantResponse{Header: e.header(), ID: id, TTL: l.ttl}, nil
}

func (l *fakeLease) renew() { l.expires = time.Now().Add(time.Duration(l.ttl) * time.Second) }

// keepAlive renews a lease. One that expired and is not yet revoked cannot be
// renewed any more: etcd answers when it is gone, or when a new leader gave it
// new time.
func (e *fakeEtcd) keepAlive(r *pb.LeaseKeepAliveRequest) (*pb.LeaseKeepAliveResponse, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.leases[r.ID]
	if l != nil && !time.Now().Before(l.expires) {
		changed := l.changed
		e.mu.Unlock()
		select {
		case <-changed:
		case <-e.stop.Done():
		}
		e.mu.Lock()
		l = e.leases[r.ID]
	}
	resp := &pb.LeaseKeepAliveResponse{Header: e.header(), ID: r.ID}
	if l != nil {
		l.renew()
		resp.TTL = l.ttl
	}
	return resp, nil
}

func (e *fakeEtcd) revoke(r *pb.LeaseRevokeRequest) (*pb.LeaseRevokeResponse, error) {
	if e.leases[r.ID] == nil {
		return nil, rpctypes.ErrGRPCLeaseNotFound
	}
	e.end(r.ID)
	return &pb.LeaseRevokeResponse{Header: e.header()}, nil
}

// end removes a lease and its keys, all in one revision.
func (e *fakeEtcd) end(id int64) {
	w := fakeWrite{e: e, rev: e.rev + 1}
	for _, kv := range e.leaseKeys(id) {
		w.remove(kv)
	}
	w.commit()
	close(e.leases[id].changed)
	delete(e.leases, id)
}

func (e *fakeEtcd) leaseKeys(id int64) []*mvccpb.KeyValue {
	all := e.scan(e.kvs, []byte{0}, []byte{0})
	return slices.DeleteFunc(all, func(kv *mvccpb.KeyValue) bool { return kv.Lease != id })
}

func (e *fakeEtcd) timeToLive(r *pb.LeaseTimeToLiveRequest) (*pb.LeaseTimeToLiveResponse, error) {
	resp := &pb.LeaseTimeToLiveResponse{Header: e.header(), ID: r.ID, TTL: -1}
	l := e.leases[r.ID]
	if l == nil {
		return resp, nil
	}
	resp.TTL, resp.GrantedTTL = int64(time.Until(l.expires).Seconds()), l.ttl
	if r.Keys {
		for _, kv := range e.leaseKeys(r.ID) {
			resp.Keys = append(resp.Keys, kv.Key)
		}
	}
	return resp, nil
}

func (e *fakeEtcd) listLeases() (*pb.LeaseLeasesResponse, error) {
	resp := &pb.LeaseLeasesResponse{Header: e.header()}
	for id := range e.leases {
		resp.Leases = append(resp.Leases, &pb.LeaseStatus{ID: id})
	}
	slices.SortFunc(resp.Leases, func(a, b *pb.LeaseStatus) int { return cmp.Compare(a.ID, b.ID) })
	return resp, nil
}

func (e *fakeEtcd) expireLeases() {
	tick := time.NewTicker(fakeExpiryTick)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-e.stop.Done():
			return
		}
		e.mu.Lock()
		now := time.Now()
		for _, id := range slices.Sorted(maps.Keys(e.leases)) {
			if !now.Before(e.leases[id].expires) {
				e.end(id)
			}
		}
		e.mu.Unlock()
	}
}
