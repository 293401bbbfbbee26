package main

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

// traffic counts what one etcd client sends and receives.
type traffic struct {
	unary    atomic.Int64 // requests
	messages atomic.Int64 // on streams (watches, renewals), in both directions
	events   atomic.Int64 // in what watches delivered
	renewals atomic.Int64 // of leases
}

// dial returns a client of the members in endpoint, with commas between them, with
// connections of its own, as a process would have, and what counts its traffic. Every case pays for the counting alike.
func dial(endpoint string) (*clientv3.Client, *traffic, error) {
	t := new(traffic)
	client, err := clientv3.New(clientv3.Config{
		Endpoints: strings.Split(endpoint, ","),
		Logger:    zap.NewNop(),
		// Chained ones run inside the client's own, which retries: every
		// attempt is counted.
		DialOptions: []grpc.DialOption{
			grpc.WithChainUnaryInterceptor(t.countUnary),
			grpc.WithChainStreamInterceptor(t.countStream),
		},
	})
	if err != nil {
		return nil, nil, fmt.Errorf("bench: etcd client: %w", err)
	}
	return client, t, nil
}

func (t *traffic) countUnary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
	invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
) error {
	t.unary.Add(1)
	return invoke(ctx, method, req, reply, cc, opts...)
}

func (t *traffic) countStream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string,
	open grpc.Streamer, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	stream, err := open(ctx, desc, cc, method, opts...)
	if err != nil {
		return nil, err
	}
	return &countedStream{ClientStream: stream, traffic: t, renews: strings.HasSuffix(method, "/LeaseKeepAlive")}, nil
}

type countedStream struct {
	grpc.ClientStream
	traffic *traffic
	renews  bool
}

func (s *countedStream) SendMsg(m any) error {
	err := s.ClientStream.SendMsg(m)
	if err == nil {
		s.traffic.messages.Add(1)
		if s.renews {
			s.traffic.renewals.Add(1)
		}
	}
	return err
}

func (s *countedStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err == nil {
		s.traffic.messages.Add(1)
		if watched, ok := m.(*pb.WatchResponse); ok {
			s.traffic.events.Add(int64(len(watched.Events)))
		}
	}
	return err
}
