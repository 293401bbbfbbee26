// Package grpcfence takes a fencing token over gRPC, to a service that checks it
// where the effect lands. It is for gRPC what package httpfence is for HTTP, and
// what that package says of the rule holds here too: the interceptors are no fence,
// the server decides which lock it is, and a token is no credential. By default every
// well-formed one is taken, up to the largest int64, which locks everybody else out for
// ever; with [WithVerifier] and package etcdverify none that is above etcd's revision,
// so that a made-up one does harm until the next grant of the lock and no longer.
//
// The token travels as the metadata value [Key], in its text form. The client puts
// it there with [UnaryClientInterceptor] and [StreamClientInterceptor]:
//
//	conn, err := grpc.NewClient(target,
//		grpc.WithUnaryInterceptor(grpcfence.UnaryClientInterceptor()),
//		grpc.WithStreamInterceptor(grpcfence.StreamClientInterceptor()))
//	…
//	err = locker.Do(ctx, "orders/42", func(ctx context.Context, token fencelock.Token) error {
//		_, err := orders.Pay(grpcfence.WithToken(ctx, token), …)
//		return err // a *fencelock.StaleError if it was refused, and still a status
//	})
//
// The server requires it with [UnaryServerInterceptor] and
// [StreamServerInterceptor], and its handlers commit through a fence that lives
// where the data does, and return that fence's error:
//
//	scope := func(ctx context.Context, fullMethod string, req any) (string, error) {
//		switch req := req.(type) {
//		case *pb.PayRequest:
//			return "orders/" + req.GetId(), nil
//		case *pb.ListRequest:
//			return "", grpcfence.ErrUnfenced // it changes nothing
//		}
//		return "", errors.New("not known")
//	}
//	server := grpc.NewServer(
//		grpc.UnaryInterceptor(grpcfence.UnaryServerInterceptor(scope)),
//		grpc.StreamInterceptor(grpcfence.StreamServerInterceptor(scope)))
//	…
//	token, _ := grpcfence.TokenFrom(ctx)
//	err := fence.Tx(ctx, token, …) // a sqlfence.Fence
//	return nil, err
//
// # Statuses
//
//	FailedPrecondition  a newer token was seen (reason STALE_TOKEN); the effect was
//	                    not applied
//	FailedPrecondition  there is no token (TOKEN_REQUIRED)
//	InvalidArgument     more than one token, a malformed one, or one that was never
//	                    issued (INVALID_TOKEN)
//	InvalidArgument     no scope (NO_SCOPE)
//	Unavailable         the verifier came to no result (TOKEN_NOT_VERIFIED)
//
// Each has an ErrorInfo (google.rpc) with that reason and the domain [Domain]; that
// of a stale token has the metadata scope (a name that is not valid UTF-8 is shown
// with U+FFFD for what is not), presented and highest, the last two in the text form
// of a token. The client interceptors make of the first three an error that is
// [fencelock.ErrStale] (with a [*fencelock.StaleError]), [fencelock.ErrNoToken] or
// [fencelock.ErrInvalidToken], and still has the status, for
// google.golang.org/grpc/status.
//
// # Streams
//
// A stream has one token, sent with its headers and required before its handler
// runs. That it was there says nothing about later: a stream can outlive the hold
// many times over. So its handler gives the token to the fence with every effect,
// and after a refusal ends the stream by returning the error. A new holder makes a new
// stream.
//
// # What is not promised
//
// A fence orders holders, not the messages of one holder: a copy of its first call,
// sent again by a retry policy or late on its way, passes after its second. A call
// that got no answer may have been applied.
package grpcfence
