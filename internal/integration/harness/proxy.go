package harness

import (
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Proxy forwards TCP connections from a free loopback port to a target, and
// spoils them on request, each direction by itself. Every change applies at
// once to the connections that exist, and to bytes already on the way. All
// methods may be called from any goroutine.
//
// A connection to the proxy is always accepted, unless [Proxy.Refuse] was
// called, and always continued to the target, as the handshake of TCP carries
// nothing a test would want to spoil. If the target refuses, the client's
// connection is reset, by way of ToClient.
type Proxy struct {
	// ToServer is the direction from the client to the target.
	ToServer *Direction
	// ToClient is the direction from the target to the client.
	ToClient *Direction

	target   string
	port     *reservation
	accepted atomic.Int64
	work     sync.WaitGroup // one per link

	mu       sync.Mutex
	listener *net.TCPListener // nil while refusing
	accepts  chan struct{}    // closed when the listener's loop has ended
	links    map[*link]struct{}
	closed   bool
}

// NewProxy starts a proxy to target, "host:port", that is closed at the end of
// the test.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	p, err := StartProxy(target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// StartProxy starts a proxy to target, "host:port". It is [NewProxy] for a
// child process, which has no test; the caller closes it.
func StartProxy(target string) (*Proxy, error) {
	port, err := reservePort()
	if err != nil {
		return nil, err
	}
	p := &Proxy{
		ToServer: newDirection(),
		ToClient: newDirection(),
		target:   target,
		port:     port,
		links:    map[*link]struct{}{},
	}
	if err := p.listen(); err != nil {
		port.close()
		return nil, err
	}
	return p, nil
}

// Addr returns the proxy's own "host:port", which it keeps for its life.
func (p *Proxy) Addr() string { return p.port.addr }

// Accepted returns how many connections were accepted so far.
func (p *Proxy) Accepted() int { return int(p.accepted.Load()) }

// Open returns how many connections there are now.
func (p *Proxy) Open() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.links)
}

// Delay delays both directions; see [Direction.Delay].
func (p *Proxy) Delay(by time.Duration) {
	p.ToServer.Delay(by)
	p.ToClient.Delay(by)
}

// Stall stalls both directions; see [Direction.Stall].
func (p *Proxy) Stall() {
	p.ToServer.Stall()
	p.ToClient.Stall()
}

// Resume resumes both directions; see [Direction.Resume].
func (p *Proxy) Resume() {
	p.ToServer.Resume()
	p.ToClient.Resume()
}

// Blackhole swallows both directions; see [Direction.Blackhole]. New
// connections are accepted, and swallowed too.
func (p *Proxy) Blackhole() {
	p.ToServer.Blackhole()
	p.ToClient.Blackhole()
}

// Cut resets every accepted connection, at both ends, and returns when they are
// gone. What was on its way is lost. New connections are accepted; call
// [Proxy.Refuse] first to have none left after it.
func (p *Proxy) Cut() {
	p.mu.Lock()
	links := make([]*link, 0, len(p.links))
	for l := range p.links {
		links = append(links, l)
	}
	p.mu.Unlock()
	for _, l := range links {
		l.reset()
	}
	for _, l := range links {
		<-l.gone
	}
}

// Refuse makes new connections fail with "connection refused", until
// [Proxy.Heal]. Those that were accepted live on; one that had connected and
// was not accepted yet is reset.
func (p *Proxy) Refuse() {
	p.mu.Lock()
	ln, accepts := p.listener, p.accepts
	p.listener = nil
	p.mu.Unlock()
	if ln != nil {
		// The listener really closes: to accept and reset would look to the
		// client like a connection that was made and then lost, which is Cut.
		_ = ln.Close()
	}
	<-accepts
}

// Heal ends every disturbance in both directions and accepts connections again.
// It panics if the proxy cannot listen again, which its reserved port rules
// out.
func (p *Proxy) Heal() {
	if err := p.listen(); err != nil {
		panic(err)
	}
	p.ToServer.Heal()
	p.ToClient.Heal()
}

// Close refuses, cuts, and returns when every goroutine of the proxy has ended.
func (p *Proxy) Close() {
	p.mu.Lock()
	was := p.closed
	p.closed = true
	p.mu.Unlock()
	p.Refuse()
	p.Cut()
	p.work.Wait()
	if !was {
		p.port.close()
	}
}

// listen accepts connections, if it does not yet and the proxy is not closed.
func (p *Proxy) listen() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil || p.closed {
		return nil
	}
	ln, err := p.port.listen()
	if err != nil {
		return err
	}
	p.listener, p.accepts = ln, make(chan struct{})
	go p.accept(ln, p.accepts)
	return nil
}

func (p *Proxy) accept(ln *net.TCPListener, done chan<- struct{}) {
	defer close(done)
	for {
		client, err := ln.AcceptTCP()
		if err != nil {
			return
		}
		l := newLink(client, p.ToServer, p.ToClient)
		p.mu.Lock()
		p.links[l] = struct{}{}
		p.mu.Unlock()
		p.accepted.Add(1)
		p.work.Go(func() {
			defer close(l.gone)
			l.run(p.target)
			p.mu.Lock()
			delete(p.links, l)
			p.mu.Unlock()
		})
	}
}
