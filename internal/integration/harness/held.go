package harness

import "sync"

// Held is where [Hold] and [HoldReply] keep calls until they are released. One
// that the test never releases is dropped at its end: a held request is not
// sent then.
type Held struct {
	arrived  chan Call
	answered chan error
	release  sync.Once
	released chan struct{}
}

// heldRoom is how many calls a Held tells about that nobody listens to.
const heldRoom = 1024

// NewHeld returns a Held that keeps what comes.
func NewHeld() *Held {
	return &Held{
		arrived:  make(chan Call, heldRoom),
		answered: make(chan error, heldRoom),
		released: make(chan struct{}),
	}
}

// Arrived delivers each call that comes, before anything is sent.
func (h *Held) Arrived() <-chan Call { return h.arrived }

// Answered delivers what etcd answered to each, nil or the error, whether or
// not a caller still waits for it.
func (h *Held) Answered() <-chan error { return h.answered }

// Release lets go of what is held, and of all that is still to come. It may be
// called again.
func (h *Held) Release() { h.release.Do(func() { close(h.released) }) }

func (h *Held) arrive(c Call) {
	select {
	case h.arrived <- c:
	default:
	}
}

func (h *Held) answer(err error) {
	select {
	case h.answered <- err:
	default:
	}
}
