package harness

import (
	"context"
	"sync"
	"testing"
)

// Wire is what [LossyKV] and [LossyLease] have in common: the hook, and the
// counters. Without a hook everything passes.
type Wire struct {
	ctx  context.Context // ends with the test
	sent sync.WaitGroup  // requests that do not depend on their caller

	mu       sync.Mutex
	hook     Hook
	numbers  map[Op]int // calls since the hook was set
	calls    map[Op]int
	answered map[Op]int
}

func newWire(t testing.TB) *Wire {
	ctx, cancel := context.WithCancel(context.Background())
	w := &Wire{ctx: ctx, numbers: map[Op]int{}, calls: map[Op]int{}, answered: map[Op]int{}}
	t.Cleanup(func() {
		cancel()
		w.sent.Wait()
	})
	return w
}

// SetHook replaces the hook, for calls from now on, and counts [Call.N] from 1
// again; nil lets everything pass.
func (w *Wire) SetHook(hook Hook) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hook = hook
	clear(w.numbers)
}

// Calls returns how many calls of that Op were made.
func (w *Wire) Calls(op Op) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.calls[op]
}

// Answered returns how many calls of that Op etcd executed without an error,
// whether or not the caller was told.
func (w *Wire) Answered(op Op) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.answered[op]
}

func (w *Wire) fate(c Call) (Call, Fate) {
	w.mu.Lock()
	w.calls[c.Op]++
	w.numbers[c.Op]++
	c.N = w.numbers[c.Op]
	hook := w.hook
	w.mu.Unlock()
	if hook == nil {
		return c, Pass()
	}
	return c, hook(c)
}

func (w *Wire) count(op Op, err error) {
	if err != nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answered[op]++
}

// do makes a call, as the hook decides. It is a function because a method
// cannot have type parameters of its own.
func do[R any](ctx context.Context, w *Wire, c Call, send func(context.Context) (R, error)) (R, error) {
	var none R
	c, f := w.fate(c)
	switch f.kind {
	case pass:
		r, err := send(ctx)
		w.count(c.Op, err)
		return r, err
	case loseRequest:
		return none, w.silence(ctx, f)
	}

	type answer struct {
		r   R
		err error
	}
	answers := make(chan answer, 1)
	if f.held != nil {
		f.held.arrive(c)
	}
	w.sent.Go(func() {
		own, cancel := context.WithCancel(context.WithoutCancel(ctx))
		defer cancel()
		defer context.AfterFunc(w.ctx, cancel)()
		if f.kind == hold && !w.released(f.held) {
			return
		}
		r, err := send(own)
		w.count(c.Op, err)
		if f.held != nil {
			f.held.answer(err)
		}
		if f.kind == holdReply && !w.released(f.held) {
			return
		}
		answers <- answer{r, err}
	})
	select {
	case a := <-answers:
		if f.kind == loseReply {
			return none, w.silence(ctx, f)
		}
		return a.r, a.err
	case <-ctx.Done():
		return none, ctx.Err()
	case <-w.ctx.Done():
		return none, w.ctx.Err()
	}
}

// released waits until h is released, and reports false if the test ended
// first.
func (w *Wire) released(h *Held) bool {
	select {
	case <-h.released:
		return true
	case <-w.ctx.Done():
		return false
	}
}

// silence is what a caller gets who is to hear nothing of etcd. The end of the
// test frees one whose context never ends.
func (w *Wire) silence(ctx context.Context, f Fate) error {
	if f.err != nil {
		return f.err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-w.ctx.Done():
		return w.ctx.Err()
	}
}
