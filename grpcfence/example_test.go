package grpcfence_test

import (
	"context"
	"database/sql"
	"errors"
	"log"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/etcdverify"
	"github.com/fencelock/fencelock/grpcfence"
	"github.com/fencelock/fencelock/sqlfence"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// A server that requires a token for all but its reads. The message stands for one
// that protoc made.
func ExampleUnaryServerInterceptor() {
	var (
		fence *sqlfence.Fence  // from sqlfence.New
		etcd  *clientv3.Client // the one the locks are in
	)
	verifier, err := etcdverify.New(etcd)
	if err != nil {
		log.Fatal(err)
	}
	// Which lock guards an order is the server's own knowledge.
	scope := func(_ context.Context, fullMethod string, req any) (string, error) {
		switch fullMethod {
		case "/shop.Orders/Get":
			return "", grpcfence.ErrUnfenced
		case "/shop.Orders/Pay":
			return "orders/" + req.(*wrapperspb.StringValue).GetValue(), nil
		}
		return "", errors.New("not a method of this server")
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(
		grpcfence.UnaryServerInterceptor(scope, grpcfence.WithVerifier(verifier.Verify))))

	// A handler of it.
	pay := func(ctx context.Context, req *wrapperspb.StringValue) (*emptypb.Empty, error) {
		token, _ := grpcfence.TokenFrom(ctx)
		err := fence.Tx(ctx, token, func(tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "UPDATE orders SET paid = true WHERE id = $1", req.GetValue())
			return err
		})
		if err != nil {
			return nil, err // the interceptor makes a status of a refusal
		}
		return new(emptypb.Empty), nil
	}
	_, _ = server, pay
}

// A holder that writes through such a server.
func ExampleUnaryClientInterceptor() {
	var locker *fencelock.Locker // from fencelock.New
	conn, err := grpc.NewClient("localhost:8080",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUnaryInterceptor(grpcfence.UnaryClientInterceptor()))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()

	err = locker.Do(context.Background(), "orders/42", func(ctx context.Context, token fencelock.Token) error {
		return conn.Invoke(grpcfence.WithToken(ctx, token), "/shop.Orders/Pay", wrapperspb.String("42"), new(emptypb.Empty))
	})
	if errors.Is(err, fencelock.ErrStale) {
		log.Print("another holder has taken over; nothing was written: ", err)
	}
}
