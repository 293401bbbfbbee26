//go:build unix

package main

import (
	"context"
	"fmt"

	"github.com/fencelock/fencelock"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// staleRounds counts, from etcd's history of what the job wrote, the rounds that
// were applied after one with a larger token.
func staleRounds(ctx context.Context, client *clientv3.Client) (stale int, err error) {
	last, err := client.Get(ctx, jobKey)
	if err != nil {
		return 0, fmt.Errorf("read what the job wrote: %w", err)
	}
	if len(last.Kvs) == 0 {
		return 0, fmt.Errorf("the job wrote nothing: key %q is missing", jobKey)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the watch
	var highest fencelock.Token
	for resp := range client.Watch(ctx, jobKey, clientv3.WithRev(1)) {
		if err := resp.Err(); err != nil {
			return 0, fmt.Errorf("read the history of the job: %w", err)
		}
		for _, event := range resp.Events {
			token, err := fencelock.ParseToken(lockName, string(event.Kv.Value))
			switch {
			case err != nil:
				return 0, fmt.Errorf("key %q holds no token: %w", jobKey, err)
			case token.Compare(highest) < 0:
				stale++
			default:
				highest = token
			}
			if event.Kv.ModRevision >= last.Kvs[0].ModRevision {
				return stale, nil
			}
		}
	}
	return 0, fmt.Errorf("the history of the job ended early: %w", context.Cause(ctx))
}
