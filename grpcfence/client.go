package grpcfence

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/fencelock/fencelock"
	"google.golang.org/grpc"
)

// UnaryClientInterceptor returns an interceptor that puts the token of a call's
// context, see [WithToken], into its metadata, and makes errors of the refusals
// that come back. Before anything is sent a call fails with [fencelock.ErrNoToken] if
// its context has no token and was not made by [WithoutToken], and with
// [ErrOtherToken] if its metadata has another.
//
// A refusal is an error that is, by errors.Is:
//
//   - [fencelock.ErrStale], with a [*fencelock.StaleError]: the effect was not applied.
//     Scope is the lock's name as the server has it; the tokens have the name of the
//     token that was sent. Highest is zero if the server did not say;
//   - [fencelock.ErrNoToken] or [fencelock.ErrInvalidToken]: the handler did not run.
//
// It still carries its status. All other errors are passed as they are, and so is a
// refusal as stale that comes back to a call made by [WithoutToken]: it is of no token
// of this client.
func UnaryClientInterceptor() grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		ctx, token, err := send(ctx)
		if err != nil {
			return notSent(method, err)
		}
		return received(invoker(ctx, method, req, reply, cc, opts...), token)
	}
}

// StreamClientInterceptor returns an interceptor that does for streams what
// [UnaryClientInterceptor] does for calls. The refusal is what RecvMsg returns; a
// SendMsg that the server does not want any more returns [io.EOF], as always.
func StreamClientInterceptor() grpc.StreamClientInterceptor {
	return func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		ctx, token, err := send(ctx)
		if err != nil {
			return nil, notSent(method, err)
		}
		stream, err := streamer(ctx, desc, cc, method, opts...)
		if err != nil {
			return nil, received(err, token)
		}
		return &clientStream{ClientStream: stream, token: token}, nil
	}
}

func notSent(method string, err error) error {
	if errors.Is(err, fencelock.ErrNoToken) {
		return fmt.Errorf("grpcfence: %s was not called: %w, with WithToken, or say WithoutToken", method, err)
	}
	return fmt.Errorf("grpcfence: %s was not called: %w", method, err)
}

// clientStream understands the errors of a stream.
type clientStream struct {
	grpc.ClientStream
	token fencelock.Token
}

func (s *clientStream) RecvMsg(m any) error { return s.received(s.ClientStream.RecvMsg(m)) }

func (s *clientStream) SendMsg(m any) error { return s.received(s.ClientStream.SendMsg(m)) }

func (s *clientStream) received(err error) error {
	if err == io.EOF {
		return err // the end, and no status
	}
	return received(err, s.token)
}
