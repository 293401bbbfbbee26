package fencelock_test

import (
	"errors"
	"fmt"

	"github.com/fencelock/fencelock"
)

// counter is a resource in one process's memory, reached by several workers
// that hold the lock "counter" in turn. Each passes the token it was granted.
type counter struct {
	fence fencelock.Fence // the zero value is ready
	n     int
}

// Add is an effect under the fence: the check and the addition are one step.
func (c *counter) Add(token fencelock.Token, d int) error {
	return c.fence.Do(token, func() error {
		c.n += d
		return nil
	})
}

// The whole life of a stale write: a worker is paused, another is granted the
// lock with a larger token and writes, and what the first still sends is
// refused. Here the tokens come as text, as they do over a network.
func Example_fence() {
	var c counter
	paused, err := fencelock.ParseToken("counter", "18.worker-a")
	if err != nil {
		fmt.Println(err)
		return
	}
	successor, err := fencelock.ParseToken("counter", "23.worker-b")
	if err != nil {
		fmt.Println(err)
		return
	}

	fmt.Println("a:", c.Add(paused, 1))
	fmt.Println("b:", c.Add(successor, 10))
	err = c.Add(paused, 100) // late
	fmt.Println("a, late, is stale:", errors.Is(err, fencelock.ErrStale))
	fmt.Println("counter:", c.n)

	// Output:
	// a: <nil>
	// b: <nil>
	// a, late, is stale: true
	// counter: 11
}
