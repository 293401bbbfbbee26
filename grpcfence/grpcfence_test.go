package grpcfence_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/grpcfence"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// info returns the ErrorInfo of a status.
func info(t *testing.T, err error) *errdetails.ErrorInfo {
	t.Helper()
	s, ok := status.FromError(err)
	require.True(t, ok, "%v", err)
	require.Len(t, s.Details(), 1, "%v", err)
	info, ok := s.Details()[0].(*errdetails.ErrorInfo)
	require.True(t, ok)
	require.Equal(t, grpcfence.Domain, info.GetDomain())
	return info
}

func requireStale(t *testing.T, err error, presented, highest fencelock.Token) {
	t.Helper()
	require.ErrorIs(t, err, fencelock.ErrStale)
	stale, ok := errors.AsType[*fencelock.StaleError](err)
	require.True(t, ok)
	require.Equal(t, "store", stale.Scope)
	require.True(t, stale.Presented.Equal(presented), "%s", stale.Presented)
	require.True(t, stale.Highest.Equal(highest), "%s", stale.Highest)
	require.Equal(t, codes.FailedPrecondition, status.Code(err), "it is still a status")
	require.Equal(t, "STALE_TOKEN", info(t, err).GetReason())
}

func TestStaleCaller(t *testing.T) {
	s := new(store)
	addr := s.serve(t)
	conn := dial(t, addr, true)
	a, b := token(t, "store", "7.a"), token(t, "store", "9.b")
	require.NoError(t, put(grpcfence.WithToken(t.Context(), a), conn, "A"))
	require.NoError(t, put(grpcfence.WithToken(t.Context(), b), conn, "B"))
	requireStale(t, put(grpcfence.WithToken(t.Context(), a), conn, "A, late"), a, b)
	require.NoError(t, put(grpcfence.WithToken(t.Context(), b), conn, "B again"))
	require.Equal(t, []string{"A", "B", "B again"}, s.applied())
	require.Empty(t, s.rejected, "those are the fence's to report")

	// What a client in another language sees.
	ctx := metadata.AppendToOutgoingContext(t.Context(), grpcfence.Key, "7.a")
	err := put(ctx, dial(t, addr, false), "A, late")
	require.Equal(t, codes.FailedPrecondition, status.Code(err))
	require.Equal(t, map[string]string{"scope": "store", "presented": "7.a", "highest": "9.b"}, info(t, err).GetMetadata())
}

// TestStream: a stream that was opened in time is refused when it has become too
// late, at the first write after that.
func TestStream(t *testing.T) {
	s := &store{gate: make(chan struct{})}
	conn := dial(t, s.serve(t), true)
	a, b := token(t, "store", "7.a"), token(t, "store", "9.b")
	stream, err := putAll(grpcfence.WithToken(t.Context(), a), conn)
	require.NoError(t, err)
	require.NoError(t, stream.SendMsg(wrapperspb.String("A1")))
	s.gate <- struct{}{}
	require.NoError(t, stream.SendMsg(wrapperspb.String("A2")))
	s.gate <- struct{}{}
	require.NoError(t, stream.SendMsg(wrapperspb.String("A3")))
	// The handler has received A3, or will: it cannot write it before B wrote.
	require.NoError(t, put(grpcfence.WithToken(t.Context(), b), conn, "B"))
	s.gate <- struct{}{}
	requireStale(t, stream.RecvMsg(new(emptypb.Empty)), a, b)
	require.Equal(t, []string{"A1", "A2", "B"}, s.applied())

	stream, err = putAll(grpcfence.WithToken(t.Context(), b), conn)
	require.NoError(t, err)
	require.NoError(t, stream.SendMsg(wrapperspb.String("B2")))
	s.gate <- struct{}{}
	require.NoError(t, end(stream))
	require.Equal(t, []string{"A1", "A2", "B", "B2"}, s.applied())
}

func TestWhatIsNotOneToken(t *testing.T) {
	s := new(store)
	addr := s.serve(t)
	conn := dial(t, addr, false)
	type want struct {
		code   codes.Code
		reason string
		err    error
	}
	none := want{codes.FailedPrecondition, "TOKEN_REQUIRED", fencelock.ErrNoToken}
	odd := want{codes.InvalidArgument, "INVALID_TOKEN", fencelock.ErrInvalidToken}
	for name, c := range map[string]struct {
		values []string
		want   want
	}{
		"none":           {nil, none},
		"empty":          {[]string{""}, none},
		"white space":    {[]string{"  "}, odd},
		"two":            {[]string{"7.a", "8.b"}, odd},
		"the same twice": {[]string{"7.a", "7.a"}, odd},
		"one and none":   {[]string{"7.a", ""}, odd},
		"list":           {[]string{"7.a, 8.b"}, odd},
		"plus":           {[]string{"+7.a"}, odd},
		"leading zeros":  {[]string{"007.a"}, odd},
		"negative":       {[]string{"-1.a"}, odd},
		"zero":           {[]string{"0.a"}, odd},
		"2^63":           {[]string{"9223372036854775808.a"}, odd},
		"no dot":         {[]string{"7"}, odd},
		"1 MiB":          {[]string{strings.Repeat("7", 1<<20)}, odd},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			for _, v := range c.values {
				ctx = metadata.AppendToOutgoingContext(ctx, grpcfence.Key, v)
			}
			check := func(err error) {
				t.Helper()
				assert.Equal(t, c.want.code, status.Code(err), "%v", err)
				assert.Equal(t, c.want.reason, info(t, err).GetReason())
				assert.Less(t, len(err.Error()), 1024)
				s.mu.Lock()
				defer s.mu.Unlock()
				if assert.Len(t, s.rejected, 1) {
					assert.ErrorIs(t, s.rejected[0], c.want.err)
				}
				s.rejected = nil
			}
			check(put(ctx, conn, "x"))
			stream, err := putAll(ctx, conn)
			require.NoError(t, err)
			check(stream.RecvMsg(new(emptypb.Empty)))
		})
	}
	require.Zero(t, s.ran)
	require.NoError(t, put(grpcfence.WithToken(t.Context(), token(t, "store", "1.a")), dial(t, addr, true), "fine"))
}

// TestValuesThatGoDoesNotSend come from other clients.
func TestValuesThatGoDoesNotSend(t *testing.T) {
	intercept := grpcfence.UnaryServerInterceptor(scope)
	for _, value := range []string{"٧.a", "\uff17.a", "7.\xff", "7.a\n", "7.\x00"} {
		ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs(grpcfence.Key, value))
		_, err := intercept(ctx, wrapperspb.String("x"), &grpc.UnaryServerInfo{FullMethod: putMethod}, func(context.Context, any) (any, error) {
			t.Error("the handler ran")
			return nil, nil
		})
		require.Equal(t, codes.InvalidArgument, status.Code(err), "%q", value)
		require.Equal(t, "INVALID_TOKEN", info(t, err).GetReason())
	}
}

func TestScope(t *testing.T) {
	s := new(store)
	addr := s.serve(t)
	conn := dial(t, addr, true)
	ctx := grpcfence.WithToken(t.Context(), token(t, "store", "7.a"))
	for _, value := range []string{"no scope", "no name"} {
		err := put(ctx, conn, value)
		require.Equal(t, codes.InvalidArgument, status.Code(err))
		require.Equal(t, "NO_SCOPE", info(t, err).GetReason())
		require.NotContains(t, err.Error(), "private")
		require.NotErrorIs(t, err, fencelock.ErrInvalidToken, "nothing is wrong with the token")
	}
	require.Empty(t, s.rejected)

	// A method that is not fenced needs no token, and takes one.
	require.NoError(t, put(ctx, conn, "A"))
	for _, ctx := range []context.Context{ctx, grpcfence.WithoutToken(t.Context())} {
		var out wrapperspb.StringValue
		require.NoError(t, conn.Invoke(ctx, readMethod, new(wrapperspb.StringValue), &out))
		require.Equal(t, "A", out.GetValue())
	}
}

func TestClientWithoutToken(t *testing.T) {
	// Nobody listens there, so what is not refused here fails otherwise.
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := listener.Addr().String()
	require.NoError(t, listener.Close())
	conn := dial(t, addr, true)

	a, b := token(t, "store", "7.a"), token(t, "store", "9.b")
	carrying := func(ctx context.Context, values ...string) context.Context {
		for _, v := range values {
			ctx = metadata.AppendToOutgoingContext(ctx, grpcfence.Key, v)
		}
		return ctx
	}
	for name, c := range map[string]struct {
		ctx  context.Context
		want error
	}{
		"none":               {t.Context(), fencelock.ErrNoToken},
		"zero":               {grpcfence.WithToken(t.Context(), fencelock.Token{}), fencelock.ErrNoToken},
		"zero, and metadata": {carrying(grpcfence.WithToken(t.Context(), fencelock.Token{}), "7.a"), fencelock.ErrNoToken},
		"other":              {carrying(grpcfence.WithToken(t.Context(), b), "7.a"), grpcfence.ErrOtherToken},
		"twice":              {carrying(grpcfence.WithToken(t.Context(), a), "7.a", "7.a"), grpcfence.ErrOtherToken},
		"without, but with":  {carrying(grpcfence.WithoutToken(t.Context()), "7.a"), grpcfence.ErrOtherToken},
	} {
		t.Run(name, func(t *testing.T) {
			require.ErrorIs(t, put(c.ctx, conn, "x"), c.want)
			_, err := putAll(c.ctx, conn)
			require.ErrorIs(t, err, c.want)
		})
	}
	require.Equal(t, codes.Unavailable, status.Code(put(grpcfence.WithToken(t.Context(), a), conn, "x")), "it was sent")
}

// TestTokenIsThereOnce: metadata that has the same token is left as it is.
func TestTokenIsThereOnce(t *testing.T) {
	s := new(store)
	ctx := metadata.AppendToOutgoingContext(grpcfence.WithToken(t.Context(), token(t, "store", "7.a")), grpcfence.Key, "7.a")
	require.NoError(t, put(ctx, dial(t, s.serve(t), true), "A"))
}

// TestRefusalsComeBack: errors.Is says the same at both ends.
func TestRefusalsComeBack(t *testing.T) {
	s := new(store)
	addr := s.serve(t, grpcfence.WithVerifier(func(_ context.Context, token fencelock.Token) error {
		switch token.Holder() {
		case "forged":
			return fmt.Errorf("%w: etcd is at 12345", fencelock.ErrInvalidToken)
		case "old":
			return fmt.Errorf("not the holder any more: %w", fencelock.ErrStale)
		case "outage":
			return errors.New("etcd at 10.1.2.3 is silent")
		}
		return nil
	}))
	conn := dial(t, addr, true)
	call := func(text string) error {
		return put(grpcfence.WithToken(t.Context(), token(t, "store", text)), conn, "x")
	}
	err := call("7.forged")
	require.ErrorIs(t, err, fencelock.ErrInvalidToken)
	require.Equal(t, codes.InvalidArgument, status.Code(err))
	require.NotContains(t, err.Error(), "12345")
	err = call("7.old")
	require.ErrorIs(t, err, fencelock.ErrStale)
	require.Equal(t, codes.FailedPrecondition, status.Code(err))
	err = call("7.outage")
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.Equal(t, "TOKEN_NOT_VERIFIED", info(t, err).GetReason())
	require.NotContains(t, err.Error(), "10.1.2.3")
	require.Len(t, s.rejected, 3)

	err = put(grpcfence.WithoutToken(t.Context()), conn, "x")
	require.ErrorIs(t, err, fencelock.ErrNoToken)
	require.Equal(t, codes.FailedPrecondition, status.Code(err))
	stream, err := putAll(grpcfence.WithoutToken(t.Context()), conn)
	require.NoError(t, err)
	require.ErrorIs(t, stream.RecvMsg(new(emptypb.Empty)), fencelock.ErrNoToken)
	require.Zero(t, s.ran)
	require.NoError(t, call("7.honest"))
}

// TestForgedHugeToken: without a verifier one such token locks the resource for
// good, which the documentation says; with one it is refused.
func TestForgedHugeToken(t *testing.T) {
	forged := token(t, "store", fmt.Sprintf("%d.evil", math.MaxInt64))
	honest := token(t, "store", "8.b")
	open := dial(t, new(store).serve(t), true)
	require.NoError(t, put(grpcfence.WithToken(t.Context(), forged), open, "evil"))
	require.ErrorIs(t, put(grpcfence.WithToken(t.Context(), honest), open, "honest"), fencelock.ErrStale)

	s := new(store)
	conn := dial(t, s.serve(t, grpcfence.WithVerifier(func(_ context.Context, token fencelock.Token) error {
		if token.Revision() > 1000 {
			return fencelock.ErrInvalidToken
		}
		return nil
	})), true)
	require.ErrorIs(t, put(grpcfence.WithToken(t.Context(), forged), conn, "evil"), fencelock.ErrInvalidToken)
	require.NoError(t, put(grpcfence.WithToken(t.Context(), honest), conn, "honest"))
	require.Equal(t, []string{"honest"}, s.applied())
}

// TestErrorsOfHandlers: only a refusal of this call's token becomes one.
func TestErrorsOfHandlers(t *testing.T) {
	s := new(store)
	conn := dial(t, s.serve(t), true)
	sent := token(t, "store", "7.a")
	mark := token(t, "store", "9.b")
	mine := &fencelock.StaleError{Scope: "store", Presented: sent, Highest: mark}
	other := &fencelock.StaleError{Scope: "store", Presented: token(t, "store", "8.c"), Highest: mark}
	ofOther, err := status.New(codes.FailedPrecondition, "of a server behind").WithDetails(&errdetails.ErrorInfo{
		Reason: "STALE_TOKEN", Domain: grpcfence.Domain,
		Metadata: map[string]string{"scope": "store", "presented": "8.c", "highest": "9.b"},
	})
	require.NoError(t, err)
	ofAnother, err := status.New(codes.FailedPrecondition, "not fenced").WithDetails(&errdetails.ErrorInfo{
		Reason: "STALE_TOKEN", Domain: "example.test",
	})
	require.NoError(t, err)
	for name, c := range map[string]struct {
		err   error
		stale bool
		code  codes.Code
	}{
		"mine":                    {mine, true, codes.FailedPrecondition},
		"wrapped":                 {fmt.Errorf("commit: %w", errors.Join(errors.New("x"), mine)), true, codes.FailedPrecondition},
		"bare":                    {fmt.Errorf("a fence of ours: %w", fencelock.ErrStale), true, codes.FailedPrecondition},
		"other's":                 {other, false, codes.Unknown},
		"other's, as a status":    {ofOther.Err(), false, codes.FailedPrecondition},
		"of another domain":       {ofAnother.Err(), false, codes.FailedPrecondition},
		"a status":                {status.Error(codes.FailedPrecondition, "not empty"), false, codes.FailedPrecondition},
		"any":                     {errors.New("disk full"), false, codes.Unknown},
		"a token that is missing": {fencelock.ErrNoToken, false, codes.Unknown},
	} {
		t.Run(name, func(t *testing.T) {
			s.mu.Lock()
			s.fail = func(fencelock.Token) error { return c.err }
			s.mu.Unlock()
			ctx := grpcfence.WithToken(t.Context(), sent)
			stream, err := putAll(ctx, conn)
			require.NoError(t, err)
			require.NoError(t, stream.SendMsg(wrapperspb.String("x")))
			for _, err := range []error{put(ctx, conn, "x"), stream.RecvMsg(new(emptypb.Empty))} {
				assert.Equal(t, c.code, status.Code(err), "%v", err)
				assert.Equal(t, c.stale, errors.Is(err, fencelock.ErrStale), "%v", err)
				assert.NotErrorIs(t, err, fencelock.ErrNoToken)
				if stale, ok := errors.AsType[*fencelock.StaleError](err); ok {
					assert.True(t, stale.Presented.Equal(sent))
				}
			}
		})
	}
}

// TestNameThatIsNotUTF8: protobuf refuses it, and the client knows it better.
func TestNameThatIsNotUTF8(t *testing.T) {
	const name = "store\xff"
	sent, mark := token(t, name, "7.a"), token(t, name, "9.b")
	s := &store{fail: func(token fencelock.Token) error {
		return &fencelock.StaleError{Scope: name, Presented: token, Highest: mark}
	}}
	err := put(grpcfence.WithToken(t.Context(), sent), dial(t, s.serve(t), true), "x")
	stale, ok := errors.AsType[*fencelock.StaleError](err)
	require.True(t, ok, "%v", err)
	require.True(t, stale.Presented.Equal(sent))
	require.True(t, stale.Highest.Equal(mark))
	require.Equal(t, "store\uFFFD", stale.Scope)
}

// TestReceivedTokenIsNotPassedOn: a handler that calls another server with its
// call's context does not hand its client's token to it.
func TestReceivedTokenIsNotPassedOn(t *testing.T) {
	behind := new(store)
	conn := dial(t, behind.serve(t), true)
	var err error
	_, e := grpcfence.UnaryServerInterceptor(scope)(
		metadata.NewIncomingContext(t.Context(), metadata.Pairs(grpcfence.Key, "7.a")),
		wrapperspb.String("x"), &grpc.UnaryServerInfo{FullMethod: putMethod},
		func(ctx context.Context, _ any) (any, error) {
			_, ok := grpcfence.TokenFrom(ctx)
			require.True(t, ok)
			err = put(ctx, conn, "x")
			return nil, nil
		})
	require.NoError(t, e)
	require.ErrorIs(t, err, fencelock.ErrNoToken)
	require.Zero(t, behind.ran)
}

// TestCallersAtOnce: whatever order they come in, what is applied is in order of
// tokens.
func TestCallersAtOnce(t *testing.T) {
	s := new(store)
	conn := dial(t, s.serve(t), true)
	var wg sync.WaitGroup
	for n := range 40 {
		tok := token(t, "store", fmt.Sprintf("%d.h", n/2+1))
		wg.Go(func() {
			err := put(grpcfence.WithToken(t.Context(), tok), conn, fmt.Sprintf("%02d", n/2+1))
			if err != nil {
				assert.ErrorIs(t, err, fencelock.ErrStale)
			}
		})
	}
	wg.Wait()
	values := s.applied()
	require.True(t, slices.IsSorted(values), "%v", values)
	require.Equal(t, "20", values[len(values)-1])
}

func TestMistakesInTheProgram(t *testing.T) {
	for name, f := range map[string]func(){
		"nil scope":        func() { grpcfence.UnaryServerInterceptor(nil) },
		"nil stream scope": func() { grpcfence.StreamServerInterceptor(nil) },
		"nil option":       func() { grpcfence.UnaryServerInterceptor(scope, nil) },
		"nil verifier":     func() { grpcfence.StreamServerInterceptor(scope, grpcfence.WithVerifier(nil)) },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				err, _ := recover().(error)
				require.ErrorIs(t, err, fencelock.ErrInvalidOption)
			}()
			f()
		})
	}
}
