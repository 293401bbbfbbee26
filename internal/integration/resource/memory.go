package resource

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/fencelock/fencelock"
)

// store keeps registers. A token it is given has the register's name.
type store interface {
	claim(ctx context.Context, register string, token fencelock.Token) (string, error)
	read(ctx context.Context, register string) (string, error)
	write(ctx context.Context, register string, token fencelock.Token, value string) error
	overwrite(ctx context.Context, register string, token fencelock.Token, value string) error
	history(ctx context.Context, register string) ([]Entry, error)
	close() error
}

func entry(op Op, token fencelock.Token, value string) Entry {
	return Entry{Op: op, Revision: token.Revision(), Holder: token.Holder(), Value: value, At: time.Now().UTC()}
}

// memory keeps registers behind a [fencelock.Fence] each.
type memory struct {
	mu        sync.Mutex
	registers map[string]*register
}

func newMemory() *memory { return &memory{registers: map[string]*register{}} }

// register has a mutex beside its fence, and does not hold it while the fence
// decides: one around both would make any fence look atomic.
type register struct {
	fence fencelock.Fence

	mu      sync.Mutex
	value   string
	entries []Entry
}

func (m *memory) register(name string) *register {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.registers[name]
	if r == nil {
		r = &register{}
		m.registers[name] = r
	}
	return r
}

func (m *memory) claim(_ context.Context, name string, token fencelock.Token) (string, error) {
	r := m.register(name)
	err := r.fence.Advance(token)
	// Put down after it was decided: a write of an older holder that stands
	// behind it in the history was applied behind it.
	return r.note(entry(OpClaim, token, ""), err), err
}

func (m *memory) read(_ context.Context, name string) (string, error) {
	r := m.register(name)
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.value, nil
}

func (m *memory) write(_ context.Context, name string, token fencelock.Token, value string) error {
	r := m.register(name)
	e := entry(OpWrite, token, value)
	err := r.fence.Do(token, func() error {
		r.apply(e)
		return nil
	})
	if err != nil {
		r.note(e, err)
	}
	return err
}

func (m *memory) overwrite(_ context.Context, name string, token fencelock.Token, value string) error {
	m.register(name).apply(entry(OpOverwrite, token, value))
	return nil
}

func (m *memory) history(_ context.Context, name string) ([]Entry, error) {
	r := m.register(name)
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.entries), nil
}

func (*memory) close() error { return nil }

// apply sets the value.
func (r *register) apply(e Entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.value = e.Value
	r.entries = append(r.entries, e)
}

// note puts down what the fence said where no value is set, and returns the
// value.
func (r *register) note(e Entry, err error) string {
	e.Refused = err != nil
	r.mu.Lock()
	defer r.mu.Unlock()
	r.entries = append(r.entries, e)
	return r.value
}
