package fencetest_test

import (
	"context"
	"sync"
	"testing"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/fencetest"
)

// prices is the resource under test: a table in memory, each shop behind a fence of
// its own.
type prices struct {
	mu    sync.Mutex
	shops map[string]*shop
}

type shop struct {
	fence fencelock.Fence
	mu    sync.Mutex // for those that read without a token
	price map[string]string
}

func (p *prices) shop(name string) *shop {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shops[name] == nil {
		p.shops[name] = &shop{price: make(map[string]string)}
	}
	return p.shops[name]
}

func (p *prices) set(_ context.Context, token fencelock.Token, item, price string) error {
	s := p.shop(token.Name())
	return s.fence.Do(token, func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.price[item] = price
		return nil
	})
}

func (p *prices) get(_ context.Context, name, item string) (string, bool, error) {
	s := p.shop(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	price, found := s.price[item]
	return price, found, nil
}

// testPrices stands for the resource's own TestPrices.
func testPrices(t *testing.T) {
	fencetest.Run(t, func(*testing.T) fencetest.Resource {
		p := &prices{shops: make(map[string]*shop)}
		return fencetest.Resource{
			Write: p.set,
			Read:  p.get,
			Advance: func(_ context.Context, token fencelock.Token) error {
				return p.shop(token.Name()).fence.Advance(token)
			},
			// In memory only, so there is no Reopen. Nothing deletes a price.
		}
	})
}

func ExampleRun() {
	var t *testing.T // of the test
	testPrices(t)
}
