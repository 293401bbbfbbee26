// Package link is a way to etcd that an example can cut.
package link

import (
	"fmt"
	"io"
	"net"
	"sync"
)

// Link is a proxy that passes everything on until it is cut. Then it holds
// everything back and closes nothing, so that neither end is told: that is what a
// broken network looks like.
type Link struct {
	listener net.Listener
	target   string
	gate     sync.RWMutex // locked for writing while the link is cut
}

// New returns a Link to a server, on a port of this machine.
func New(target string) (*Link, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("link: listen: %w", err)
	}
	l := &Link{listener: listener, target: target}
	go l.serve()
	return l, nil
}

// Addr returns the address that leads to the server.
func (l *Link) Addr() string { return l.listener.Addr().String() }

// Cut holds back what is sent from now on, in both directions.
func (l *Link) Cut() { l.gate.Lock() }

// Restore passes on what was held back, and what comes.
func (l *Link) Restore() { l.gate.Unlock() }

// Close takes no more connections. Those that there are end with either side.
func (l *Link) Close() { _ = l.listener.Close() }

func (l *Link) serve() {
	for {
		near, err := l.listener.Accept()
		if err != nil {
			return // closed
		}
		far, err := net.Dial("tcp", l.target)
		if err != nil {
			_ = near.Close()
			continue
		}
		go l.pass(near, far)
		go l.pass(far, near)
	}
}

func (l *Link) pass(from, to net.Conn) {
	defer from.Close()
	defer to.Close()
	_, _ = io.Copy(gated{to, &l.gate}, from) // ends when either side closes
}

// gated is a connection whose writes wait at a gate.
type gated struct {
	io.Writer
	gate *sync.RWMutex
}

func (g gated) Write(p []byte) (int, error) {
	g.gate.RLock()
	defer g.gate.RUnlock()
	return g.Writer.Write(p)
}
