package resource

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fencelock/fencelock/internal/integration/harness"
)

// RoleName is the name under which [Start] expects [Role] among the roles of a
// test binary.
const RoleName = "resource"

// servingEvent is what a server says once it listens: its address.
const servingEvent = "serving"

// Role is a server as a child process. Its one argument is the path that
// [Serve] takes.
func Role(c *harness.Child) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	c.Emit(servingEvent, listener.Addr())
	return Serve(c.Context(), listener, c.Args()[0])
}

// Process is a server in a child process.
type Process struct {
	*harness.Process
	Addr string // "host:port"
}

// Start starts a server of the registers at path, in memory if that is empty.
func Start(t testing.TB, path string) *Process {
	t.Helper()
	p := harness.Start(t, RoleName, path)
	return &Process{Process: p, Addr: p.Expect(servingEvent, 30*time.Second).Text}
}

// Client returns a client of the server, which is closed at the end of the test.
func (p *Process) Client(t testing.TB) *Client {
	t.Helper()
	c := NewClient(p.Addr)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}
