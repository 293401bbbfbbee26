package grpcfence_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/grpcfence"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const (
	putMethod    = "/test.Store/Put"
	putAllMethod = "/test.Store/PutAll"
	readMethod   = "/test.Store/Read"
)

// store keeps one value, guarded by the lock "store" and a fence.
type store struct {
	fence fencelock.Fence
	gate  chan struct{} // if not nil, a stream waits here before each write

	mu       sync.Mutex
	values   []string // in the order in which they were applied
	ran      int
	rejected []error
	fail     func(fencelock.Token) error // if not nil, what Put returns
}

func (s *store) put(ctx context.Context, value string) error {
	s.mu.Lock()
	s.ran++
	fail := s.fail
	s.mu.Unlock()
	token, ok := grpcfence.TokenFrom(ctx)
	if !ok {
		return errors.New("no interceptor before the handler")
	}
	if fail != nil {
		return fail(token)
	}
	return s.fence.Do(token, func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.values = append(s.values, value)
		return nil
	})
}

func (s *store) applied() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.values...)
}

// desc is what protoc would make of
//
//	service Store {
//	  rpc Put(StringValue) returns (Empty);
//	  rpc PutAll(stream StringValue) returns (Empty);
//	  rpc Read(Empty) returns (StringValue);
//	}
var desc = grpc.ServiceDesc{
	ServiceName: "test.Store",
	HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{
		{MethodName: "Put", Handler: unary(func(s *store, ctx context.Context, in *wrapperspb.StringValue) (any, error) {
			return new(emptypb.Empty), s.put(ctx, in.GetValue())
		})},
		{MethodName: "Read", Handler: unary(func(s *store, _ context.Context, _ *wrapperspb.StringValue) (any, error) {
			return wrapperspb.String(strings.Join(s.applied(), ",")), nil
		})},
	},
	Streams: []grpc.StreamDesc{{StreamName: "PutAll", ClientStreams: true, Handler: func(srv any, stream grpc.ServerStream) error {
		s := srv.(*store)
		for {
			var in wrapperspb.StringValue
			switch err := stream.RecvMsg(&in); err {
			case nil:
			case io.EOF:
				return stream.SendMsg(new(emptypb.Empty))
			default:
				return err
			}
			if s.gate != nil {
				<-s.gate
			}
			if err := s.put(stream.Context(), in.GetValue()); err != nil {
				return err
			}
		}
	}}},
}

func unary(f func(*store, context.Context, *wrapperspb.StringValue) (any, error)) grpc.MethodHandler {
	return func(srv any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
		in := new(wrapperspb.StringValue)
		if err := decode(in); err != nil {
			return nil, err
		}
		handler := func(ctx context.Context, in any) (any, error) {
			return f(srv.(*store), ctx, in.(*wrapperspb.StringValue))
		}
		if interceptor == nil {
			return handler(ctx, in)
		}
		return interceptor(ctx, in, &grpc.UnaryServerInfo{Server: srv, FullMethod: "/test.Store/" + methodOf(ctx)}, handler)
	}
}

func methodOf(ctx context.Context) string {
	method, _ := grpc.Method(ctx)
	return method[strings.LastIndexByte(method, '/')+1:]
}

func scope(_ context.Context, fullMethod string, req any) (string, error) {
	if fullMethod == readMethod {
		return "", grpcfence.ErrUnfenced
	}
	in, ok := req.(*wrapperspb.StringValue)
	switch {
	case !ok && fullMethod == putAllMethod, ok && fullMethod == putMethod:
	default:
		return "", errors.New("scope was given something else")
	}
	switch in.GetValue() {
	case "no scope":
		return "", errors.New("something private")
	case "no name":
		return strings.Repeat("x", 1025), nil
	}
	return "store", nil
}

// serve starts a server, and returns its address.
func (s *store) serve(t *testing.T, opts ...grpcfence.Option) string {
	t.Helper()
	opts = append(opts, grpcfence.WithHooks(fencelock.Hooks{TokenRejected: func(info fencelock.TokenRejectedInfo) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.rejected = append(s.rejected, info.Err)
	}}))
	server := grpc.NewServer(
		grpc.UnaryInterceptor(grpcfence.UnaryServerInterceptor(scope, opts...)),
		grpc.StreamInterceptor(grpcfence.StreamServerInterceptor(scope, opts...)))
	server.RegisterService(&desc, s)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var wg sync.WaitGroup
	wg.Go(func() { _ = server.Serve(listener) })
	t.Cleanup(func() {
		server.Stop()
		wg.Wait()
	})
	return listener.Addr().String()
}

// dial returns a connection, with the client interceptors or without.
func dial(t *testing.T, addr string, fenced bool) *grpc.ClientConn {
	t.Helper()
	opts := []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}
	if fenced {
		opts = append(opts,
			grpc.WithUnaryInterceptor(grpcfence.UnaryClientInterceptor()),
			grpc.WithStreamInterceptor(grpcfence.StreamClientInterceptor()))
	}
	conn, err := grpc.NewClient(addr, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func put(ctx context.Context, conn *grpc.ClientConn, value string) error {
	return conn.Invoke(ctx, putMethod, wrapperspb.String(value), new(emptypb.Empty))
}

// putAll opens a stream.
func putAll(ctx context.Context, conn *grpc.ClientConn) (grpc.ClientStream, error) {
	return conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true}, putAllMethod)
}

// end ends a stream and returns what became of it.
func end(stream grpc.ClientStream) error {
	if err := stream.CloseSend(); err != nil {
		return err
	}
	return stream.RecvMsg(new(emptypb.Empty))
}

func token(t *testing.T, name, text string) fencelock.Token {
	t.Helper()
	token, err := fencelock.ParseToken(name, text)
	require.NoError(t, err)
	return token
}
