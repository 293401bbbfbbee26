package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// threeMembers has two contenders hand a lock to each other on a cluster of three,
// and counts what must not happen. It does not end the contest, as it does elsewhere:
// here the number is the figure. It fails afterwards.
func threeMembers(ctx context.Context, dir string, much amount, out *figures) (err error) {
	etcd, err := startEtcd(dir, 3)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, etcd.stop()) }()
	least, err := floor(ctx, etcd.endpoint, "members", amount{300, 5 * time.Second}, 0)
	if err != nil {
		return err
	}
	wrong := &violations{}
	came, err := handover(ctx, etcd.endpoint, "members", newFencelock, contest{waiters: 2, much: much, wrong: wrong})
	if err != nil {
		return err
	}
	out.add("members3_floor_mean_ms", milliseconds(least), "ms")
	out.add("members3_handover_w2_mean_ms", milliseconds(came.mean), "ms")
	out.add("members3_handover_w2_vs_floor", float64(came.mean)/float64(least), "ratio")
	out.add("members3_grants", float64(came.grants), "grants")
	out.add("members3_token_regressions", float64(wrong.regressions), "grants")
	out.add("members3_overlaps", float64(wrong.overlaps), "grants")
	out.add("members3_errors", float64(wrong.errors), "calls")
	return wrong.failure()
}

// violations counts what a lock must not do.
type violations struct{ overlaps, regressions, errors int }

// failure returns nil where there was none.
func (v violations) failure() error {
	if v == (violations{}) {
		return nil
	}
	return fmt.Errorf("bench: on three members: %d overlaps, %d tokens that did not rise, %d calls that failed",
		v.overlaps, v.regressions, v.errors)
}
