package main

import (
	"fmt"
	"io"
	"net"
	"sync"
)

// link is A's way to etcd, a proxy that passes everything on until it is cut.
// Then it holds everything back and closes nothing, so that neither end is
// told: that is what a broken network looks like.
type link struct {
	listener net.Listener
	target   string
	gate     sync.RWMutex // locked for writing while the link is cut
}

func newLink(target string) (*link, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for worker A: %w", err)
	}
	l := &link{listener: listener, target: target}
	go l.serve()
	return l, nil
}

func (l *link) addr() string { return l.listener.Addr().String() }

func (l *link) cut()     { l.gate.Lock() }
func (l *link) restore() { l.gate.Unlock() }
func (l *link) close()   { _ = l.listener.Close() }

func (l *link) serve() {
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

func (l *link) pass(from, to net.Conn) {
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
