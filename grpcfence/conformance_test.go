package grpcfence_test

import (
	"context"
	"encoding/hex"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/fencetest"
	"github.com/fencelock/fencelock/grpcfence"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const shelfPath = "/test.Shelf/"

// TestConformance runs the kit against a server: what holds at a fence in one process
// holds for its clients, though tokens and refusals travel.
func TestConformance(t *testing.T) {
	fencetest.Run(t, func(t *testing.T) fencetest.Resource {
		c := &caller{lossy: new(atomic.Bool)}
		conn, err := grpc.NewClient(serveShelf(t),
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithChainUnaryInterceptor(grpcfence.UnaryClientInterceptor(), c.lose))
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		c.conn = conn
		return fencetest.Resource{
			Write: c.write, Read: c.read, Advance: c.advance, Delete: c.delete,
			Update: func(ctx context.Context, token fencelock.Token, key string, f func(string, bool) (string, error)) error {
				// What a client does that reads: first it raises the mark, so that
				// nothing of an earlier holder comes between read and write.
				if err := c.advance(ctx, token); err != nil {
					return err
				}
				old, found, err := c.read(ctx, token.Name(), key)
				if err != nil {
					return err
				}
				value, err := f(old, found)
				if err != nil {
					return err
				}
				return c.write(ctx, token, key, value)
			},
			LoseAnswer: func() { c.lossy.Store(true) },
		}
	})
}

// shelf is a server with a fence for each lock. A lock's name is in the request, in
// hexadecimal, for it can be any bytes; a real server makes the name of what it finds
// there.
type shelf struct {
	mu    sync.Mutex
	shelf map[string]*compartment
}

type compartment struct {
	fence fencelock.Fence

	mu     sync.Mutex // for reads, which are not fenced
	values map[string]string
}

func (s *shelf) of(name string) *compartment {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shelf[name] == nil {
		s.shelf[name] = &compartment{values: map[string]string{}}
	}
	return s.shelf[name]
}

func field(req any, name string) string {
	return req.(*structpb.Struct).GetFields()[name].GetStringValue()
}

func lockOf(_ context.Context, fullMethod string, req any) (string, error) {
	if fullMethod == shelfPath+"Read" {
		return "", grpcfence.ErrUnfenced
	}
	name, err := hex.DecodeString(field(req, "lock"))
	return string(name), err
}

// fenced is a method whose effect the fence admits.
func (s *shelf) fenced(effect func(values map[string]string, key, value string)) grpc.UnaryHandler {
	return func(ctx context.Context, req any) (any, error) {
		token, _ := grpcfence.TokenFrom(ctx)
		c := s.of(token.Name())
		return new(emptypb.Empty), c.fence.Do(token, func() error {
			c.mu.Lock()
			defer c.mu.Unlock()
			effect(c.values, field(req, "key"), field(req, "value"))
			return nil
		})
	}
}

func (s *shelf) read(_ context.Context, req any) (any, error) {
	name, err := hex.DecodeString(field(req, "lock"))
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	c := s.of(string(name))
	c.mu.Lock()
	defer c.mu.Unlock()
	value, found := c.values[field(req, "key")]
	if !found {
		return nil, status.Error(codes.NotFound, "nothing there")
	}
	return wrapperspb.String(value), nil
}

func serveShelf(t *testing.T) string {
	t.Helper()
	s := &shelf{shelf: map[string]*compartment{}}
	desc := grpc.ServiceDesc{ServiceName: "test.Shelf", HandlerType: (*any)(nil)}
	for name, handler := range map[string]grpc.UnaryHandler{
		"Write":   s.fenced(func(values map[string]string, key, value string) { values[key] = value }),
		"Delete":  s.fenced(func(values map[string]string, key, _ string) { delete(values, key) }),
		"Advance": s.fenced(func(map[string]string, string, string) {}),
		"Read":    s.read,
	} {
		desc.Methods = append(desc.Methods, grpc.MethodDesc{MethodName: name, Handler: func(
			_ any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor,
		) (any, error) {
			in := new(structpb.Struct)
			if err := decode(in); err != nil {
				return nil, err
			}
			return interceptor(ctx, in, &grpc.UnaryServerInfo{FullMethod: shelfPath + name}, handler)
		}})
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(grpcfence.UnaryServerInterceptor(lockOf)))
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

// caller is a client of the server.
type caller struct {
	conn  *grpc.ClientConn
	lossy *atomic.Bool // lose the next answer
}

// lose stands below the interceptor of grpcfence, where the wire is.
func (c *caller) lose(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	err := invoker(ctx, method, req, reply, cc, opts...)
	if err == nil && c.lossy.Swap(false) {
		return status.Error(codes.Unavailable, "the connection broke before the answer")
	}
	return err
}

func (c *caller) call(ctx context.Context, method, lock, key, value string, out any) error {
	in, err := structpb.NewStruct(map[string]any{"lock": hex.EncodeToString([]byte(lock)), "key": key, "value": value})
	if err != nil {
		return err
	}
	return c.conn.Invoke(ctx, shelfPath+method, in, out)
}

func (c *caller) write(ctx context.Context, token fencelock.Token, key, value string) error {
	return c.call(grpcfence.WithToken(ctx, token), "Write", token.Name(), key, value, new(emptypb.Empty))
}

func (c *caller) delete(ctx context.Context, token fencelock.Token, key string) error {
	return c.call(grpcfence.WithToken(ctx, token), "Delete", token.Name(), key, "", new(emptypb.Empty))
}

func (c *caller) advance(ctx context.Context, token fencelock.Token) error {
	return c.call(grpcfence.WithToken(ctx, token), "Advance", token.Name(), "", "", new(emptypb.Empty))
}

func (c *caller) read(ctx context.Context, lock, key string) (string, bool, error) {
	out := new(wrapperspb.StringValue)
	err := c.call(grpcfence.WithoutToken(ctx), "Read", lock, key, "", out)
	switch {
	case status.Code(err) == codes.NotFound:
		return "", false, nil
	case err != nil:
		return "", false, err
	}
	return out.GetValue(), true, nil
}
