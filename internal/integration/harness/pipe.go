package harness

import (
	"bytes"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// maxHeld bounds what a pipe holds, so that a test that stalls a fast sender
// does not run out of memory. It is far above what a delayed etcd client has
// under way.
const maxHeld = 16 << 20

// pipe is one direction of one [link]: a queue between a goroutine that reads
// from one end, always, and one that writes to the other when its [Direction]
// lets it.
type pipe struct {
	link *link
	dir  *Direction

	mu    sync.Mutex
	queue []parcel
	held  int // bytes

	filled  chan struct{} // something came into the queue
	drained chan struct{} // something left it
}

// parcel is what one read returned: bytes, or how the stream ended.
type parcel struct {
	at    time.Time
	bytes []byte
	end   end
}

type end int

const (
	goesOn  end = iota
	ends        // the sender closed its side
	isReset     // the connection broke
)

// broken is the parcel that says that the connection broke.
func broken() parcel { return parcel{at: time.Now(), end: isReset} }

func newPipe(l *link, d *Direction) *pipe {
	return &pipe{link: l, dir: d, filled: make(chan struct{}, 1), drained: make(chan struct{}, 1)}
}

// fill reads from src into the queue, until src or the link ends.
func (p *pipe) fill(src *net.TCPConn) {
	buf := make([]byte, 32<<10)
	for {
		n, err := src.Read(buf)
		if n > 0 {
			p.dir.received.Add(int64(n))
			if !p.push(parcel{at: time.Now(), bytes: bytes.Clone(buf[:n])}) {
				return
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			p.push(parcel{at: time.Now(), end: ends})
			return
		case err != nil:
			p.push(broken())
			return
		}
	}
}

// drain delivers the queue to dst as the direction allows, until the stream or
// the link ends. A nil dst takes everything and delivers nothing, for a target
// that could not be reached.
func (p *pipe) drain(dst *net.TCPConn) {
	lost := false // something was swallowed: the rest cannot be delivered
	for {
		// In this order: bytes that were sent after Stall had returned must not
		// be delivered by what was set before.
		next, ok := p.peek()
		s := p.dir.setting()
		var due <-chan time.Time
		switch {
		case lost && s.flow != swallowing:
			p.link.reset()
			return
		case !ok, s.flow == stalled:
			// Nothing to do until something changes.
		case s.flow == swallowing:
			lost = true
			p.dir.lost.Add(int64(len(next.bytes)))
			p.pop()
			continue
		default:
			left := time.Until(next.at.Add(s.delay))
			if left <= 0 {
				p.pop()
				if next.end == goesOn {
					dst = p.deliver(dst, next.bytes)
					continue
				}
				p.finish(dst, next.end)
				return
			}
			due = time.After(left)
		}
		select {
		case <-p.filled:
		case <-s.changed:
		case <-due:
		case <-p.link.ctx.Done():
			return
		}
	}
}

// deliver writes b to dst, and returns where the rest goes: nowhere after a
// failed write. The sender is not told here. It learns of it as in a real
// network, from what comes the other way, where the broken dst is being read.
func (p *pipe) deliver(dst *net.TCPConn, b []byte) *net.TCPConn {
	if dst == nil {
		return nil
	}
	n, err := dst.Write(b)
	p.dir.delivered.Add(int64(n))
	if err != nil {
		return nil
	}
	return dst
}

func (p *pipe) finish(dst *net.TCPConn, e end) {
	if e == isReset {
		p.link.reset()
		return
	}
	if dst != nil {
		_ = dst.CloseWrite()
	}
	p.link.ended()
}

// push queues a parcel, waiting for room, and reports whether the link still
// lives.
func (p *pipe) push(c parcel) bool {
	for {
		p.mu.Lock()
		if p.held < maxHeld {
			p.queue = append(p.queue, c)
			p.held += len(c.bytes)
			p.mu.Unlock()
			wake(p.filled)
			return true
		}
		p.mu.Unlock()
		select {
		case <-p.drained:
		case <-p.link.ctx.Done():
			return false
		}
	}
}

func (p *pipe) peek() (parcel, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.queue) == 0 {
		return parcel{}, false
	}
	return p.queue[0], true
}

func (p *pipe) pop() {
	p.mu.Lock()
	p.held -= len(p.queue[0].bytes)
	p.queue[0] = parcel{}
	p.queue = p.queue[1:]
	p.mu.Unlock()
	wake(p.drained)
}

// wake wakes the one waiter of c, now or when it next looks.
func wake(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
