package etcdfence_test

import (
	"context"
	"errors"
	"log"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/etcdfence"
)

// The locks are in one etcd, what they guard is in another.
func ExampleFence_Txn() {
	var (
		locker *fencelock.Locker // of the etcd of the locks
		client *clientv3.Client  // of the etcd of the configuration
	)
	fence, err := etcdfence.New(client, etcdfence.WithScope("rollout"))
	if err != nil {
		log.Fatal(err)
	}
	err = locker.Do(context.Background(), "rollout", func(ctx context.Context, token fencelock.Token) error {
		_, err := fence.Txn(ctx, token).
			Then(clientv3.OpPut("config/version", "42"), clientv3.OpDelete("config/canary")).
			Commit()
		return err
	})
	if err != nil {
		log.Print(err)
	}
}

// Compares of one's own decide between Then and Else; the fence decides whether
// either is applied.
func ExampleTxn_Commit() {
	var (
		ctx   context.Context
		token fencelock.Token
		fence *etcdfence.Fence
	)
	resp, err := fence.Txn(ctx, token).
		If(clientv3.Compare(clientv3.Value("order/42"), "=", "open")).
		Then(clientv3.OpPut("order/42", "paid")).
		Else(clientv3.OpGet("order/42")).
		Commit()
	switch {
	case errors.Is(err, fencelock.ErrStale):
		log.Print("another has the lock now; nothing was written")
	case errors.Is(err, etcdfence.ErrUnknownOutcome):
		log.Print("written or not; to write it twice does no harm, so try again")
	case err != nil:
		log.Print(err)
	case !resp.Succeeded:
		for _, kv := range resp.Responses[0].GetResponseRange().GetKvs() {
			log.Printf("the order was %s already", kv.Value)
		}
	}
}

// What is read after Advance is what no earlier holder will change any more.
func ExampleFence_Advance() {
	var (
		ctx    context.Context
		token  fencelock.Token
		client *clientv3.Client
		fence  *etcdfence.Fence
	)
	if err := fence.Advance(ctx, token); err != nil {
		log.Fatal(err)
	}
	orders, err := client.Get(ctx, "order/", clientv3.WithPrefix())
	if err != nil {
		log.Fatal(err)
	}
	log.Print(orders.Count)
}
