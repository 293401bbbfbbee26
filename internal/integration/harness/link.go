package harness

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// link is one connection through a [Proxy]: the client's, and the one made for
// it to the target.
type link struct {
	client   *net.TCPConn
	toServer *pipe
	toClient *pipe
	ending   atomic.Int32 // directions that delivered their end
	gone     chan struct{}

	ctx    context.Context // ends with the link
	cancel context.CancelFunc

	mu     sync.Mutex
	server *net.TCPConn // nil until connected
}

func newLink(client *net.TCPConn, toServer, toClient *Direction) *link {
	l := &link{client: client, gone: make(chan struct{})}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.toServer = newPipe(l, toServer)
	l.toClient = newPipe(l, toClient)
	return l
}

// run serves the link until it has ended.
func (l *link) run(target string) {
	defer l.close()
	var pumps sync.WaitGroup
	defer pumps.Wait()

	server, err := l.dial(target)
	pumps.Go(func() { l.toServer.fill(l.client) })
	pumps.Go(func() { l.toClient.drain(l.client) })
	if err != nil {
		// That there is nobody is news like any other: it takes the way to the
		// client and can be late or lost on it.
		l.toClient.push(broken())
		pumps.Go(func() { l.toServer.drain(nil) })
		return
	}
	pumps.Go(func() { l.toServer.drain(server) })
	pumps.Go(func() { l.toClient.fill(server) })
}

// dial connects to the target. Until the connection is the link's, to close it
// is to reset it: a link that ends so early was cut, and the target may know
// the connection already.
func (l *link) dial(target string) (*net.TCPConn, error) {
	d := net.Dialer{Control: func(_, _ string, conn syscall.RawConn) error {
		var err error
		if cerr := conn.Control(func(fd uintptr) {
			err = unix.SetsockoptLinger(int(fd), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
		}); cerr != nil {
			return cerr
		}
		return err
	}}
	conn, err := d.DialContext(l.ctx, "tcp", target)
	if err != nil {
		return nil, err
	}
	server := conn.(*net.TCPConn)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.ctx.Err(); err != nil {
		_ = server.Close()
		return nil, err
	}
	_ = server.SetLinger(-1)
	l.server = server
	return server, nil
}

// ended is called when a direction has delivered its end; after both the link
// is over.
func (l *link) ended() {
	if l.ending.Add(1) == 2 {
		l.close()
	}
}

// reset ends the link with a reset at both ends, and loses what is on its way.
func (l *link) reset() { l.end(true) }

// close ends the link; what was delivered still arrives.
func (l *link) close() { l.end(false) }

func (l *link) end(hard bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx.Err() != nil {
		return
	}
	l.cancel()
	for _, conn := range []*net.TCPConn{l.client, l.server} {
		if conn == nil {
			continue
		}
		if hard {
			_ = conn.SetLinger(0)
		}
		_ = conn.Close()
	}
}
