package fencelock

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// fakeLink is one client's connection to a fakeEtcd, and the place for faults.
// Locks that contend are each given a link of their own.
//
// Faults happen to requests, not to the client's Go calls: a request whose
// caller has given up still travels on, and arrives.
type fakeLink struct {
	client *clientv3.Client // KV and Lease are etcd's own code, over this link
	etcd   *fakeEtcd

	mu     sync.Mutex
	decide func(kind string, req any) fault
	sent   []*fakeRequest
	healed chan struct{} // not nil while the link is cut; closed when it is whole
}

// fault is what happens to one request on its way.
type fault struct {
	requestDelay time.Duration // before the server sees it
	replyDelay   time.Duration // from the server's answer to its arrival
	loseRequest  bool          // the server never sees it; the caller hears nothing
	loseReply    bool          // carried out; the caller hears nothing
	err          error         // the answer instead, not carried out
	errAfter     error         // the answer instead, carried out
}

// fakeRequest is one request as it was traced.
type fakeRequest struct {
	kind     string
	req      any
	sent     time.Time
	arrived  time.Time // at the server; zero if it did not
	answered time.Time // at the client; zero if it was not, or too late
	err      error     // of the answer
}

// Kinds of requests, and what they are traced and intercepted with.
const (
	fakeGet       = "get"       // *pb.RangeRequest
	fakePut       = "put"       // *pb.PutRequest
	fakeDelete    = "delete"    // *pb.DeleteRangeRequest
	fakeTxn       = "txn"       // *pb.TxnRequest
	fakeCompact   = "compact"   // *pb.CompactionRequest
	fakeGrant     = "grant"     // *pb.LeaseGrantRequest
	fakeRevoke    = "revoke"    // *pb.LeaseRevokeRequest
	fakeKeepAlive = "keepalive" // *pb.LeaseKeepAliveRequest
	fakeTTL       = "ttl"       // *pb.LeaseTimeToLiveRequest
	fakeLeases    = "leases"    // *pb.LeaseLeasesRequest
	fakeWatchReq  = "watch"     // clientv3.Op
	fakeEvent     = "event"     // clientv3.WatchResponse; not traced, only the reply's faults apply
)

var (
	errFakeUnimplemented = status.Error(codes.Unimplemented, "fake etcd: not implemented")
	errFakeClosing       = status.Error(codes.Canceled, "grpc: the client connection is closing")
)

// fakeRefusal is how long an answer of Unavailable takes at least. KeepAliveOnce
// repeats those without a pause, and fake time would never move on.
const fakeRefusal = time.Millisecond

// dial returns a new client, which is closed at the end of the test.
func (e *fakeEtcd) dial(t testing.TB) *fakeLink {
	l := &fakeLink{etcd: e, client: clientv3.NewCtxClient(context.Background())}
	l.client.KV = clientv3.NewKVFromKVClient(fakeKV{link: l}, l.client)
	l.client.Lease = clientv3.NewLeaseFromLeaseClient(fakeLeaseClient{link: l}, l.client, time.Second)
	l.client.Watcher = fakeWatcher{l}
	t.Cleanup(func() { _ = l.client.Close() }) // always the error of its ended context
	return l
}

// intercept sets what decides the fate of every request from now on, nil for
// no faults. It is called from the requests' goroutines with no lock held.
func (l *fakeLink) intercept(decide func(kind string, req any) fault) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.decide = decide
}

func (l *fakeLink) fault(kind string, req any) fault {
	l.mu.Lock()
	decide := l.decide
	l.mu.Unlock()
	if decide == nil {
		return fault{}
	}
	return decide(kind, req)
}

// cut makes a black hole of the link until heal is called: requests and replies
// under way are lost, without an error. Events of watches are held back, for
// etcd's client resumes a watch where it stood.
func (l *fakeLink) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.healed = make(chan struct{})
}

func (l *fakeLink) heal() {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.healed)
	l.healed = nil
}

// hole is not nil while the link is cut, and closed when it is whole again.
func (l *fakeLink) hole() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.healed
}

// requests returns the requests of some kinds in the order in which they were
// sent, of all kinds if none is given.
func (l *fakeLink) requests(kinds ...string) []fakeRequest {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []fakeRequest
	for _, r := range l.sent {
		if len(kinds) == 0 || slices.Contains(kinds, r.kind) {
			out = append(out, *r)
		}
	}
	return out
}

type fakeAnswer struct {
	resp any
	err  error
}

// call sends a request and waits for its answer as a gRPC client would. serve
// carries it out at the server.
func (l *fakeLink) call(ctx context.Context, kind string, req any, serve func() (any, error)) (any, error) {
	switch {
	case l.client.Ctx().Err() != nil:
		return nil, errFakeClosing
	case ctx.Err() != nil:
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	f := l.fault(kind, req)
	r := &fakeRequest{kind: kind, req: req, sent: time.Now()}
	l.mu.Lock()
	l.sent = append(l.sent, r)
	l.mu.Unlock()

	answer := make(chan fakeAnswer, 1)
	go func() {
		resp, err, ok := l.carry(f, r, serve)
		if ok {
			answer <- fakeAnswer{resp, err}
		}
	}()
	select {
	case a := <-answer:
		l.mu.Lock()
		r.answered, r.err = time.Now(), a.err
		l.mu.Unlock()
		return a.resp, a.err
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	case <-l.client.Ctx().Done():
		return nil, errFakeClosing
	}
}

// carry takes a request to the server and its answer back; ok is false if one of
// them was lost.
func (l *fakeLink) carry(f fault, r *fakeRequest, serve func() (any, error)) (resp any, err error, ok bool) {
	if status.Code(f.err) == codes.Unavailable || status.Code(f.errAfter) == codes.Unavailable {
		f.replyDelay = max(f.replyDelay, fakeRefusal)
	}
	if !l.travel(f.requestDelay) || f.loseRequest {
		return nil, nil, false
	}
	l.mu.Lock()
	r.arrived = time.Now()
	l.mu.Unlock()
	if f.err != nil {
		err = f.err
	} else {
		resp, err = serve()
	}
	if f.errAfter != nil {
		resp, err = nil, f.errAfter
	}
	return resp, err, l.travel(f.replyDelay) && !f.loseReply
}

// travel takes d, and reports whether what travelled arrived.
func (l *fakeLink) travel(d time.Duration) bool {
	if d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-l.etcd.stop.Done():
			return false
		}
	}
	return l.hole() == nil
}

// fakeCall is call for a protobuf request.
func fakeCall[Resp proto.Message](ctx context.Context, l *fakeLink, kind string, req proto.Message) (Resp, error) {
	resp, err := l.call(ctx, kind, req, func() (any, error) { return l.etcd.serve(req) })
	if err != nil {
		var none Resp
		return none, err
	}
	return resp.(Resp), nil
}

// fakeKV is the gRPC stub of etcd's KV service.
type fakeKV struct {
	pb.KVClient // RangeStream, which nobody calls
	link        *fakeLink
}

func (k fakeKV) Range(ctx context.Context, r *pb.RangeRequest, _ ...grpc.CallOption) (*pb.RangeResponse, error) {
	return fakeCall[*pb.RangeResponse](ctx, k.link, fakeGet, r)
}

func (k fakeKV) Put(ctx context.Context, r *pb.PutRequest, _ ...grpc.CallOption) (*pb.PutResponse, error) {
	return fakeCall[*pb.PutResponse](ctx, k.link, fakePut, r)
}

func (k fakeKV) DeleteRange(ctx context.Context, r *pb.DeleteRangeRequest, _ ...grpc.CallOption) (*pb.DeleteRangeResponse, error) {
	return fakeCall[*pb.DeleteRangeResponse](ctx, k.link, fakeDelete, r)
}

func (k fakeKV) Txn(ctx context.Context, r *pb.TxnRequest, _ ...grpc.CallOption) (*pb.TxnResponse, error) {
	return fakeCall[*pb.TxnResponse](ctx, k.link, fakeTxn, r)
}

func (k fakeKV) Compact(ctx context.Context, r *pb.CompactionRequest, _ ...grpc.CallOption) (*pb.CompactionResponse, error) {
	return fakeCall[*pb.CompactionResponse](ctx, k.link, fakeCompact, r)
}

// fakeLeaseClient is the gRPC stub of etcd's Lease service.
type fakeLeaseClient struct{ link *fakeLink }

func (c fakeLeaseClient) LeaseGrant(ctx context.Context, r *pb.LeaseGrantRequest, _ ...grpc.CallOption) (*pb.LeaseGrantResponse, error) {
	return fakeCall[*pb.LeaseGrantResponse](ctx, c.link, fakeGrant, r)
}

func (c fakeLeaseClient) LeaseRevoke(ctx context.Context, r *pb.LeaseRevokeRequest, _ ...grpc.CallOption) (*pb.LeaseRevokeResponse, error) {
	return fakeCall[*pb.LeaseRevokeResponse](ctx, c.link, fakeRevoke, r)
}

func (c fakeLeaseClient) LeaseTimeToLive(ctx context.Context, r *pb.LeaseTimeToLiveRequest, _ ...grpc.CallOption) (*pb.LeaseTimeToLiveResponse, error) {
	return fakeCall[*pb.LeaseTimeToLiveResponse](ctx, c.link, fakeTTL, r)
}

func (c fakeLeaseClient) LeaseLeases(ctx context.Context, r *pb.LeaseLeasesRequest, _ ...grpc.CallOption) (*pb.LeaseLeasesResponse, error) {
	return fakeCall[*pb.LeaseLeasesResponse](ctx, c.link, fakeLeases, r)
}

func (c fakeLeaseClient) LeaseKeepAlive(ctx context.Context, _ ...grpc.CallOption) (pb.Lease_LeaseKeepAliveClient, error) {
	return &fakeKeepAliveStream{ctx: ctx, link: c.link, answers: make(chan fakeAnswer, 1)}, nil
}

// fakeKeepAliveStream is a stream on which every request is a call of its own,
// so that each can have its own fate.
type fakeKeepAliveStream struct {
	grpc.ClientStream // nobody calls the rest
	ctx               context.Context
	link              *fakeLink
	answers           chan fakeAnswer
}

func (s *fakeKeepAliveStream) Send(r *pb.LeaseKeepAliveRequest) error {
	go func() {
		resp, err := fakeCall[*pb.LeaseKeepAliveResponse](s.ctx, s.link, fakeKeepAlive, r)
		select {
		case s.answers <- fakeAnswer{resp, err}:
		case <-s.ctx.Done():
		}
	}()
	return nil
}

func (s *fakeKeepAliveStream) Recv() (*pb.LeaseKeepAliveResponse, error) {
	select {
	case a := <-s.answers:
		if a.err != nil {
			return nil, a.err
		}
		return a.resp.(*pb.LeaseKeepAliveResponse), nil
	case <-s.ctx.Done():
		return nil, status.FromContextError(s.ctx.Err()).Err()
	}
}

func (s *fakeKeepAliveStream) CloseSend() error         { return nil }
func (s *fakeKeepAliveStream) Context() context.Context { return s.ctx }
