package main

import (
	"context"
	"fmt"
	"time"
)

// warmupCycles come before anything is measured or counted: they open the
// connection and obtain the lease.
const warmupCycles = 20

// lane is one case of the uncontended measurement.
type lane struct {
	contender contender
	traffic   *traffic

	took            []time.Duration // acquire and release together
	unary, messages int64           // while measuring
}

// uncontended measures acquire plus release of a lock nobody else wants, for
// fencelock, for the peer on one session, for the bare requests, and a round trip
// that commits nothing. The cases
// take turns cycle by cycle, so that whatever else the machine does hits all
// of them, and the ratios are those of one run.
func uncontended(ctx context.Context, endpoint, name string, much amount, out *figures) error {
	var lanes [4]*lane
	for i, k := range []kind{newFencelock, newMutex, newRaw, newRead} {
		client, traffic, err := dial(endpoint)
		if err != nil {
			return err
		}
		defer client.Close()
		c, err := k(client, name)
		if err != nil {
			return err
		}
		lanes[i] = &lane{contender: c, traffic: traffic}
	}
	for range warmupCycles {
		for _, l := range lanes {
			if _, err := l.cycle(ctx); err != nil {
				return err
			}
		}
	}
	for _, l := range lanes {
		l.unary, l.messages = -l.traffic.unary.Load(), -l.traffic.messages.Load()
	}
	cycles := 0
	for start := time.Now(); cycles < much.count && time.Since(start) < much.within; cycles++ {
		for j := range lanes {
			l := lanes[(cycles+j)%len(lanes)] // nobody is always first
			took, err := l.cycle(ctx)
			if err != nil {
				return err
			}
			l.took = append(l.took, took)
		}
	}
	for _, l := range lanes {
		l.unary += l.traffic.unary.Load()
		l.messages += l.traffic.messages.Load()
	}
	for _, l := range lanes {
		if err := l.contender.close(); err != nil {
			return fmt.Errorf("bench: close after the uncontended cycles: %w", err)
		}
	}

	ours, mutex, raw := lanes[0], lanes[1], lanes[2]
	p50 := func(l *lane) float64 { return microseconds(median(l.took)) }
	perCycle := func(n int64) float64 { return float64(n) / float64(cycles) }
	out.add("uncontended_p50_vs_mutex", p50(ours)/p50(mutex), "ratio")
	out.add("uncontended_p50_vs_raw", p50(ours)/p50(raw), "ratio")
	out.add("uncontended_unary_requests", perCycle(ours.unary), "requests")
	out.add("uncontended_stream_messages", perCycle(ours.messages), "messages")
	out.add("uncontended_p50_us", p50(ours), "us")
	out.add("mutex_uncontended_p50_us", p50(mutex), "us")
	out.add("raw_uncontended_p50_us", p50(raw), "us")
	out.add("round_trip_p50_us", p50(lanes[3]), "us")
	out.add("mutex_uncontended_unary_requests", perCycle(mutex.unary), "requests")
	return nil
}

func (l *lane) cycle(ctx context.Context) (time.Duration, error) {
	start := time.Now()
	if _, err := l.contender.acquire(ctx); err != nil {
		return 0, fmt.Errorf("bench: uncontended acquire: %w", err)
	}
	if err := l.contender.release(ctx); err != nil {
		return 0, fmt.Errorf("bench: uncontended release: %w", err)
	}
	return time.Since(start), nil
}
