package harness

import (
	"context"
	"fmt"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// reservation keeps a loopback port for one user, who listens on it, stops and
// listens again. It is a socket that is bound and does not listen: the kernel
// hands its port to nobody who asks for a free one, and refuses connections to
// it while the user does not listen.
//
// The usual way, to listen on port 0, close and use that port, loses it now and
// then to somebody's outgoing connection: at once, or while a killed server is
// down. Trying other ports then is no answer for a server that has to come back
// where its cluster looks for it. The price is that the user has to set
// SO_REUSEPORT.
type reservation struct {
	fd   int
	addr string
}

func reservePort() (*reservation, error) {
	fd, err := socket()
	if err != nil {
		return nil, fmt.Errorf("harness: reserving a port: %w", err)
	}
	r := &reservation{fd: fd}
	if err := r.bind(); err != nil {
		r.close()
		return nil, fmt.Errorf("harness: reserving a port: %w", err)
	}
	return r, nil
}

// socket returns a TCP socket that no child inherits. Not SOCK_CLOEXEC, which
// macOS lacks.
func socket() (int, error) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err == nil {
		unix.CloseOnExec(fd)
	}
	return fd, err
}

func (r *reservation) bind() error {
	if err := unix.SetsockoptInt(r.fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return err
	}
	if err := unix.SetsockoptInt(r.fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
		return err
	}
	if err := unix.Bind(r.fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return err
	}
	bound, err := unix.Getsockname(r.fd)
	if err != nil {
		return err
	}
	r.addr = fmt.Sprintf("127.0.0.1:%d", bound.(*unix.SockaddrInet4).Port)
	return nil
}

// listen opens a listener on the reserved port.
func (r *reservation) listen() (*net.TCPListener, error) {
	lc := net.ListenConfig{Control: func(_, _ string, conn syscall.RawConn) error {
		var err error
		if cerr := conn.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
		}); cerr != nil {
			return cerr
		}
		return err
	}}
	// A multipath socket would be bound beside the reservation, not with it.
	lc.SetMultipathTCP(false)
	ln, err := lc.Listen(context.Background(), "tcp4", r.addr)
	if err != nil {
		return nil, fmt.Errorf("harness: listening on a reserved port: %w", err)
	}
	return ln.(*net.TCPListener), nil
}

func (r *reservation) close() { _ = unix.Close(r.fd) }
