package grpcfence_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime"
	"sync"
	"testing"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/grpcfence"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const chatMethod = "/test.Chat/Talk"

// chat starts a server that has one method for all, with streams both ways, and
// returns a connection with the client interceptors.
func chat(t *testing.T, scope grpcfence.Scope, handler grpc.StreamHandler, opts ...grpcfence.Option) *grpc.ClientConn {
	t.Helper()
	server := grpc.NewServer(
		grpc.UnknownServiceHandler(handler),
		grpc.StreamInterceptor(grpcfence.StreamServerInterceptor(scope, opts...)))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var wg sync.WaitGroup
	wg.Go(func() { _ = server.Serve(listener) })
	t.Cleanup(func() {
		server.Stop()
		wg.Wait()
	})
	return dial(t, listener.Addr().String(), true)
}

func talk(ctx context.Context, conn *grpc.ClientConn) (grpc.ClientStream, error) {
	return conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, chatMethod)
}

func always(name string, err error) grpcfence.Scope {
	return func(context.Context, string, any) (string, error) { return name, err }
}

// late is a refusal of the token that sending sends.
func late(t *testing.T) *fencelock.StaleError {
	return &fencelock.StaleError{Scope: "store", Presented: token(t, "store", "7.a"), Highest: token(t, "store", "9.b")}
}

func sending(t *testing.T) context.Context {
	return grpcfence.WithToken(t.Context(), token(t, "store", "7.a"))
}

// TestRefusalAfterAnswers: unlike HTTP, gRPC has its status at the end, so answers
// that were sent before do not hide it.
func TestRefusalAfterAnswers(t *testing.T) {
	conn := chat(t, always("store", nil), func(_ any, stream grpc.ServerStream) error {
		for range 2 {
			if err := stream.SendMsg(wrapperspb.String("working on it")); err != nil {
				return err
			}
		}
		return late(t)
	})
	stream, err := talk(sending(t), conn)
	require.NoError(t, err)
	require.NoError(t, stream.CloseSend(), "half closed before anything was refused")
	for range 2 {
		require.NoError(t, stream.RecvMsg(new(wrapperspb.StringValue)))
	}
	for range 2 {
		requireStale(t, stream.RecvMsg(new(wrapperspb.StringValue)), token(t, "store", "7.a"), token(t, "store", "9.b"))
	}
}

// TestSendAfterRefusal: what a client still sends is answered with io.EOF, as gRPC
// does, and the refusal is to be had from RecvMsg.
func TestSendAfterRefusal(t *testing.T) {
	conn := chat(t, always("store", nil), func(any, grpc.ServerStream) error { return late(t) })
	stream, err := talk(sending(t), conn)
	require.NoError(t, err)
	for err == nil {
		err = stream.SendMsg(wrapperspb.String("x"))
	}
	require.Equal(t, io.EOF, err, "as it is: callers compare with ==")
	requireStale(t, stream.RecvMsg(new(wrapperspb.StringValue)), token(t, "store", "7.a"), token(t, "store", "9.b"))
}

// TestEndOfStream is no error that is touched.
func TestEndOfStream(t *testing.T) {
	conn := chat(t, always("store", nil), func(_ any, stream grpc.ServerStream) error {
		if err := stream.RecvMsg(new(wrapperspb.StringValue)); err != io.EOF {
			return fmt.Errorf("the client's half is not closed: %w", err)
		}
		return nil
	})
	stream, err := talk(sending(t), conn)
	require.NoError(t, err)
	require.NoError(t, stream.CloseSend())
	require.Equal(t, io.EOF, stream.RecvMsg(new(wrapperspb.StringValue)))
}

// TestUnfencedCallIsNotRefused: it has no token that could be stale, so a refusal is
// of one that the server uses on its own account, and none of the client's.
func TestUnfencedCallIsNotRefused(t *testing.T) {
	_, err := grpcfence.UnaryServerInterceptor(scope)(t.Context(), new(emptypb.Empty), &grpc.UnaryServerInfo{FullMethod: readMethod},
		func(context.Context, any) (any, error) { return nil, late(t) })
	require.Equal(t, codes.Unknown, status.Code(err), "as the handler returned it")

	// One that comes from further away, through a server that passes it on.
	passed, e := status.New(codes.FailedPrecondition, "of a server behind").WithDetails(&errdetails.ErrorInfo{
		Reason: "STALE_TOKEN", Domain: grpcfence.Domain,
		Metadata: map[string]string{"scope": "store", "presented": "7.a", "highest": "9.b"},
	})
	require.NoError(t, e)
	silent, e := status.New(codes.FailedPrecondition, "it does not say of what").WithDetails(&errdetails.ErrorInfo{
		Reason: "STALE_TOKEN", Domain: grpcfence.Domain,
	})
	require.NoError(t, e)
	for _, e := range []error{late(t), passed.Err(), silent.Err()} {
		conn := chat(t, always("", grpcfence.ErrUnfenced), func(any, grpc.ServerStream) error { return e })
		stream, err := talk(grpcfence.WithoutToken(t.Context()), conn)
		require.NoError(t, err)
		err = stream.RecvMsg(new(emptypb.Empty))
		require.Error(t, err)
		require.NotErrorIs(t, err, fencelock.ErrStale)
	}
}

// TestOtherKeys: a token is one value of one key.
func TestOtherKeys(t *testing.T) {
	intercept := grpcfence.UnaryServerInterceptor(always("store", nil))
	for name, c := range map[string]struct {
		pairs  []string
		reason string
	}{
		"binary":       {[]string{grpcfence.Key + "-bin", "7.a"}, "TOKEN_REQUIRED"},
		"HTTP gateway": {[]string{"grpcgateway-fencing-token", "7.a"}, "TOKEN_REQUIRED"},
		"underscore":   {[]string{"fencing_token", "7.a"}, "TOKEN_REQUIRED"},
		"both":         {[]string{grpcfence.Key, "7.a", grpcfence.Key + "-bin", "8.b"}, ""},
		"capitals":     {[]string{"Fencing-Token", "7.a"}, ""},
		"twice":        {[]string{"Fencing-Token", "7.a", "fencing-token", "8.b"}, "INVALID_TOKEN"},
	} {
		t.Run(name, func(t *testing.T) {
			ran := false
			_, err := intercept(metadata.NewIncomingContext(t.Context(), metadata.Pairs(c.pairs...)), nil, &grpc.UnaryServerInfo{FullMethod: putMethod},
				func(ctx context.Context, _ any) (any, error) {
					token, _ := grpcfence.TokenFrom(ctx)
					ran = token.String() == "7.a"
					return nil, nil
				})
			if c.reason == "" {
				require.NoError(t, err)
				require.True(t, ran)
				return
			}
			require.Equal(t, c.reason, info(t, err).GetReason())
			require.False(t, ran)
		})
	}
}

// TestBinaryOnTheWire: a client that sends the token as bytes has sent none.
func TestBinaryOnTheWire(t *testing.T) {
	s := new(store)
	ctx := metadata.AppendToOutgoingContext(t.Context(), grpcfence.Key+"-bin", "7.a")
	err := put(ctx, dial(t, s.serve(t), false), "x")
	require.Equal(t, "TOKEN_REQUIRED", info(t, err).GetReason())
	require.Zero(t, s.ran)
}

// TestWhereAnErrorComesFrom decides what it is answered with: what a verifier or a
// scope happens to wrap says nothing about the call's token.
func TestWhereAnErrorComesFrom(t *testing.T) {
	other := &fencelock.StaleError{Scope: "store", Presented: token(t, "store", "8.c"), Highest: token(t, "store", "9.b")}
	for _, c := range []struct {
		name   string
		scope  error
		verify error
		code   codes.Code
		reason string
	}{
		{name: "verifier without a token of its own", verify: fmt.Errorf("ask: %w", fencelock.ErrNoToken), code: codes.Unavailable, reason: "TOKEN_NOT_VERIFIED"},
		{name: "verifier for another lock", verify: fencelock.ErrInvalidName, code: codes.Unavailable, reason: "TOKEN_NOT_VERIFIED"},
		{name: "verifier with a status", verify: status.Error(codes.NotFound, "x"), code: codes.Unavailable, reason: "TOKEN_NOT_VERIFIED"},
		{name: "verifier that refused", verify: other, code: codes.FailedPrecondition, reason: "STALE_TOKEN"},
		{name: "scope without a token", scope: fencelock.ErrNoToken, code: codes.InvalidArgument, reason: "NO_SCOPE"},
		{name: "scope with an odd token", scope: fencelock.ErrInvalidToken, code: codes.InvalidArgument, reason: "NO_SCOPE"},
		{name: "scope that is stale", scope: other, code: codes.InvalidArgument, reason: "NO_SCOPE"},
		{name: "scope with a status", scope: status.Error(codes.NotFound, "private"), code: codes.InvalidArgument, reason: "NO_SCOPE"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs(grpcfence.Key, "7.a"))
			_, err := grpcfence.UnaryServerInterceptor(always("store", c.scope),
				grpcfence.WithVerifier(func(context.Context, fencelock.Token) error { return c.verify }),
			)(ctx, nil, &grpc.UnaryServerInfo{FullMethod: putMethod}, func(context.Context, any) (any, error) { return nil, nil })
			require.Equal(t, c.code, status.Code(err))
			info := info(t, err)
			require.Equal(t, c.reason, info.GetReason())
			if c.reason == "STALE_TOKEN" {
				require.Equal(t, "7.a", info.GetMetadata()["presented"], "whatever it compared, this token is the refused one")
			}
		})
	}
}

// TestTwoRefusalsInOne: the error of a handler that was refused in several places
// is the client's if one of them was for its token.
func TestTwoRefusalsInOne(t *testing.T) {
	other := &fencelock.StaleError{Scope: "o", Presented: token(t, "o", "8.c"), Highest: token(t, "o", "9.d")}
	s := &store{fail: func(fencelock.Token) error { return errors.Join(other, late(t)) }}
	requireStale(t, put(sending(t), dial(t, s.serve(t), true), "x"), token(t, "store", "7.a"), token(t, "store", "9.b"))
}

// TestRetriesCarryOneToken: gRPC's own repetitions are below the interceptor.
func TestRetriesCarryOneToken(t *testing.T) {
	const failures = 2
	s := new(store)
	s.fail = func(fencelock.Token) error { // s.mu is not held
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.ran <= failures {
			return status.Error(codes.Unavailable, "try again")
		}
		s.values = append(s.values, "applied")
		return nil
	}
	conn, err := grpc.NewClient(s.serve(t),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUnaryInterceptor(grpcfence.UnaryClientInterceptor()),
		grpc.WithDefaultServiceConfig(`{"methodConfig": [{"name": [{}], "retryPolicy": {
			"maxAttempts": 4, "initialBackoff": "0.001s", "maxBackoff": "0.001s", "backoffMultiplier": 1,
			"retryableStatusCodes": ["UNAVAILABLE"]}}]}`))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, put(sending(t), conn, "x"))
	require.Equal(t, failures+1, s.ran, "each of them had one token, or it would not have run")
	require.Equal(t, []string{"applied"}, s.applied())
}

// TestVerifierThatBlocks ends with the call: a client that goes away does not leave
// it behind, and nothing is applied.
func TestVerifierThatBlocks(t *testing.T) {
	asked, ended := make(chan struct{}, 1), make(chan error, 1)
	s := new(store)
	conn := dial(t, s.serve(t, grpcfence.WithVerifier(func(ctx context.Context, _ fencelock.Token) error {
		asked <- struct{}{}
		<-ctx.Done()
		ended <- ctx.Err()
		return ctx.Err()
	})), true)
	ctx, cancel := context.WithCancel(sending(t))
	defer cancel()
	result := make(chan error, 1)
	go func() { result <- put(ctx, conn, "x") }()
	<-asked
	cancel()
	require.Equal(t, codes.Canceled, status.Code(<-result))
	require.ErrorIs(t, <-ended, context.Canceled)
	require.Zero(t, s.ran)
}

// TestPanickingHandler: the interceptor passes a panic on to whoever contains it.
func TestPanickingHandler(t *testing.T) {
	intercept := grpcfence.UnaryServerInterceptor(always("store", nil))
	ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs(grpcfence.Key, "7.a"))
	require.PanicsWithValue(t, "oh", func() {
		_, _ = intercept(ctx, nil, &grpc.UnaryServerInfo{FullMethod: putMethod}, func(context.Context, any) (any, error) { panic("oh") })
	})
}

// TestHookThatEndsItsGoroutine is no reason to leave the client without an answer.
func TestHookThatEndsItsGoroutine(t *testing.T) {
	old := slog.Default()
	t.Cleanup(func() { slog.SetDefault(old) })
	slog.SetDefault(slog.New(slog.DiscardHandler))
	conn := chat(t, always("store", nil), func(any, grpc.ServerStream) error { return nil },
		grpcfence.WithHooks(fencelock.Hooks{TokenRejected: func(fencelock.TokenRejectedInfo) { runtime.Goexit() }}))
	stream, err := talk(grpcfence.WithoutToken(t.Context()), conn)
	require.NoError(t, err)
	require.ErrorIs(t, stream.RecvMsg(new(emptypb.Empty)), fencelock.ErrNoToken)
}
