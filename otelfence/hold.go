package otelfence

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/fencelock/fencelock"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

const (
	outcomeReleased    = "released"
	outcomeUnconfirmed = "unconfirmed"
	outcomeLost        = "lost"
)

// hold is a lock whose work has not returned.
type hold struct {
	label   *label
	span    trace.Span
	granted time.Time
	ttl     time.Duration
	lost    bool // counted as lost and running, and no longer as held
}

// holds are by holder id, which is unique for each acquisition. The hooks of a lock
// that is lost come in any order, and what each of them moves is decided here under
// one lock, so that no gauge is ever off.
type holds struct {
	i  *instruments
	mu sync.Mutex
	m  map[string]*hold
}

// begin must have the context that ends with the hold: a loss that was announced
// before is seen as its cause, and is cancelled before it is announced.
func (h *holds) begin(ctx context.Context, token fencelock.Token, n *hold) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.m[token.Holder()] = n
	var loss *fencelock.LostError
	if errors.As(context.Cause(ctx), &loss) && loss.Token.Equal(token) {
		n.lost = true
		h.i.lostRunning.Add(ctx, 1, n.label.alone)
		return
	}
	h.i.held.Add(ctx, 1, n.label.alone)
}

// lose finds no hold if the work has returned, and nothing is left to count then.
func (h *holds) lose(ctx context.Context, token fencelock.Token) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := h.m[token.Holder()]
	if n == nil || n.lost {
		return
	}
	n.lost = true
	h.i.held.Add(ctx, -1, n.label.alone)
	h.i.lostRunning.Add(ctx, 1, n.label.alone)
}

func (h *holds) end(ctx context.Context, token fencelock.Token) *hold {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := h.m[token.Holder()]
	if n == nil {
		return nil
	}
	delete(h.m, token.Holder())
	if n.lost {
		h.i.lostRunning.Add(ctx, -1, n.label.alone)
	} else {
		h.i.held.Add(ctx, -1, n.label.alone)
	}
	return n
}

// worked records how long the work of a hold took, in all.
func (n *hold) worked(ctx context.Context, i *instruments, took time.Duration, outcome string) {
	o := n.label.outcome[outcome]
	i.hold.Record(ctx, took.Seconds(), o)
	if n.ttl > 0 {
		i.holdRatio.Record(ctx, took.Seconds()/n.ttl.Seconds(), o)
	}
}

// endLost ends the span of a hold that was lost. The loss has its own time: this can
// come before the hook that announces it.
func (n *hold) endLost(loss *fencelock.LostError) {
	n.span.AddEvent("lost", trace.WithTimestamp(loss.LostAt), trace.WithAttributes(keyReason.String(string(loss.Reason))))
	n.span.SetStatus(codes.Error, "lock lost: "+string(loss.Reason))
	n.span.End(trace.WithTimestamp(loss.Returned))
}
