package harness

import (
	"bytes"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// soon is far more than loopback takes, and far less than a test may hang.
const soon = 10 * time.Second

// peers is a connection through a proxy, with both of its ends.
type peers struct {
	client, server *net.TCPConn
}

// target accepts connections and hands them to the test.
func target(t *testing.T) (addr string, accepted <-chan *net.TCPConn) {
	t.Helper()
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	conns := make(chan *net.TCPConn, 16)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			conns <- c.(*net.TCPConn)
		}
	}()
	t.Cleanup(func() {
		ln.Close()
		<-done
	})
	return ln.Addr().String(), conns
}

func connect(t *testing.T, p *Proxy) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp4", p.Addr())
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(soon)))
	return c.(*net.TCPConn)
}

func pair(t *testing.T, p *Proxy, accepted <-chan *net.TCPConn) peers {
	t.Helper()
	client := connect(t, p)
	server := Receive(t, accepted, soon, "connection at the target")
	t.Cleanup(func() { server.Close() })
	require.NoError(t, server.SetDeadline(time.Now().Add(soon)))
	return peers{client, server}
}

func send(t *testing.T, to net.Conn, text string) {
	t.Helper()
	_, err := io.WriteString(to, text)
	require.NoError(t, err)
}

func expect(t *testing.T, from net.Conn, text string) {
	t.Helper()
	b := make([]byte, len(text))
	_, err := io.ReadFull(from, b)
	require.NoError(t, err)
	require.Equal(t, text, string(b))
}

// expectNothing checks that a connection stays silent for a while, and is
// neither closed nor reset.
func expectNothing(t *testing.T, from net.Conn) {
	t.Helper()
	require.NoError(t, from.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
	n, err := from.Read(make([]byte, 1))
	require.Zero(t, n)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.NoError(t, from.SetReadDeadline(time.Now().Add(soon)))
}

func expectReset(t *testing.T, from net.Conn) {
	t.Helper()
	_, err := from.Read(make([]byte, 1))
	require.ErrorIs(t, err, syscall.ECONNRESET)
}

// received waits until the direction has taken so many bytes from the sender.
func received(t *testing.T, d *Direction, n int64) {
	t.Helper()
	require.Eventually(t, func() bool { return d.Received() >= n }, soon, time.Millisecond)
}

func TestProxyForwards(t *testing.T) {
	NoLeaks(t)
	addr, accepted := target(t)
	p := NewProxy(t, addr)
	c := pair(t, p, accepted)

	send(t, c.client, "question")
	expect(t, c.server, "question")
	send(t, c.server, "answer")
	expect(t, c.client, "answer")

	require.NoError(t, c.client.CloseWrite())
	require.Empty(t, readAll(t, c.server), "the end of one side arrives")
	send(t, c.server, "late")
	require.NoError(t, c.server.CloseWrite())
	require.Equal(t, "late", readAll(t, c.client), "and the other side goes on")

	require.Eventually(t, func() bool { return p.Open() == 0 }, soon, time.Millisecond)
	require.Equal(t, 1, p.Accepted())
	require.EqualValues(t, len("question"), p.ToServer.Received())
	require.EqualValues(t, len("question"), p.ToServer.Delivered())
	require.EqualValues(t, len("answerlate"), p.ToClient.Delivered())
	require.Zero(t, p.ToServer.Lost()+p.ToClient.Lost())
}

func TestProxyDelaysOneDirection(t *testing.T) {
	NoLeaks(t)
	addr, accepted := target(t)
	p := NewProxy(t, addr)
	c := pair(t, p, accepted)
	const delay = 200 * time.Millisecond
	p.ToServer.Delay(delay)

	begin := time.Now()
	send(t, c.server, "at once")
	expect(t, c.client, "at once")
	assert.Less(t, time.Since(begin), delay, "the other direction is not delayed")

	begin = time.Now()
	send(t, c.client, "late")
	expect(t, c.server, "late")
	require.GreaterOrEqual(t, time.Since(begin), delay)
}

func TestProxyDelayIsLatencyNotBandwidth(t *testing.T) {
	NoLeaks(t)
	addr, accepted := target(t)
	p := NewProxy(t, addr)
	c := pair(t, p, accepted)
	const delay = 100 * time.Millisecond
	p.ToServer.Delay(delay)

	// At one chunk per delay this would take over 25 s.
	sent := make([]byte, 8<<20)
	for i := range sent {
		sent[i] = byte(i ^ i>>8 ^ i>>16)
	}
	begin := time.Now()
	failed := make(chan error, 1)
	go func() {
		_, err := c.client.Write(sent)
		failed <- err
	}()
	got := make([]byte, len(sent))
	_, err := io.ReadFull(c.server, got)
	require.NoError(t, err)
	require.NoError(t, Receive(t, failed, soon, "end of the write"))
	require.True(t, bytes.Equal(sent, got), "bytes arrive in order")
	assert.Less(t, time.Since(begin), 5*time.Second)
}

func TestProxyDelayChangesForBytesUnderWay(t *testing.T) {
	NoLeaks(t)
	addr, accepted := target(t)
	p := NewProxy(t, addr)
	c := pair(t, p, accepted)
	p.ToServer.Delay(time.Hour)

	send(t, c.client, "held")
	received(t, p.ToServer, 4)
	p.ToServer.Delay(0)
	expect(t, c.server, "held")
}

func TestProxyStallHoldsAndLosesNothing(t *testing.T) {
	NoLeaks(t)
	addr, accepted := target(t)
	p := NewProxy(t, addr)
	c := pair(t, p, accepted)
	send(t, c.client, "before ")
	expect(t, c.server, "before ")

	p.ToServer.Stall()
	send(t, c.client, "during, ")
	send(t, c.client, "and the end")
	require.NoError(t, c.client.CloseWrite())
	expectNothing(t, c.server)
	send(t, c.server, "the other way flows")
	expect(t, c.client, "the other way flows")

	late := pair(t, p, accepted) // new connections are made, and stalled
	send(t, late.client, "new")
	expectNothing(t, late.server)

	p.ToServer.Resume()
	require.Equal(t, "during, and the end", readAll(t, c.server))
	expect(t, late.server, "new")
	require.Zero(t, p.ToServer.Lost())
}

func TestProxyStallKeepsABoundedAmount(t *testing.T) {
	NoLeaks(t)
	addr, accepted := target(t)
	p := NewProxy(t, addr)
	c := pair(t, p, accepted)
	p.ToServer.Stall()

	const total = 2 * maxHeld
	failed := make(chan error, 1)
	go func() {
		_, err := c.client.Write(make([]byte, total))
		failed <- err
	}()
	received(t, p.ToServer, maxHeld)
	p.ToServer.Resume()
	n, err := io.CopyN(io.Discard, c.server, total)
	require.NoError(t, err)
	require.EqualValues(t, total, n)
	require.NoError(t, Receive(t, failed, soon, "end of the write"))
}

func TestProxyBlackholeSwallows(t *testing.T) {
	NoLeaks(t)
	addr, accepted := target(t)
	p := NewProxy(t, addr)
	idle, busy, closing := pair(t, p, accepted), pair(t, p, accepted), pair(t, p, accepted)
	p.ToServer.Blackhole()

	send(t, busy.client, "gone")
	require.NoError(t, closing.client.CloseWrite())
	fresh := pair(t, p, accepted)
	send(t, fresh.client, "gone too")
	require.Eventually(t, func() bool { return p.ToServer.Lost() == 12 }, soon, time.Millisecond)
	expectNothing(t, busy.server)
	expectNothing(t, closing.server)
	expectNothing(t, fresh.server)
	send(t, busy.server, "the other way flows")
	expect(t, busy.client, "the other way flows")

	// What lost a part of its stream cannot go on; what lost nothing can.
	p.Heal()
	for _, c := range []peers{busy, closing, fresh} {
		expectReset(t, c.client)
		expectReset(t, c.server)
	}
	send(t, idle.client, "here")
	expect(t, idle.server, "here")
	c := pair(t, p, accepted)
	send(t, c.client, "here too")
	expect(t, c.server, "here too")
}

func TestProxyBlackholeSwallowsWhatWasHeld(t *testing.T) {
	NoLeaks(t)
	addr, accepted := target(t)
	p := NewProxy(t, addr)
	c := pair(t, p, accepted)
	p.Stall()
	send(t, c.client, "held")
	received(t, p.ToServer, 4)
	p.Blackhole()
	require.Eventually(t, func() bool { return p.ToServer.Lost() == 4 }, soon, time.Millisecond)
	p.Resume()
	expectReset(t, c.server)
}

func TestProxyCutsWhatThereIs(t *testing.T) {
	NoLeaks(t)
	addr, accepted := target(t)
	p := NewProxy(t, addr)
	c := pair(t, p, accepted)
	stuck := pair(t, p, accepted)
	p.ToServer.Stall()
	send(t, stuck.client, "held")

	p.Cut()
	require.Zero(t, p.Open())
	for _, c := range []peers{c, stuck} {
		expectReset(t, c.client)
		expectReset(t, c.server)
	}
	p.Heal()
	c = pair(t, p, accepted)
	send(t, c.client, "again")
	expect(t, c.server, "again")
}

func TestProxyRefusesNewConnections(t *testing.T) {
	NoLeaks(t)
	addr, accepted := target(t)
	p := NewProxy(t, addr)
	c := pair(t, p, accepted)
	for range 3 {
		p.Refuse()
		p.Refuse()
		_, err := net.Dial("tcp4", p.Addr())
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		send(t, c.client, "old")
		expect(t, c.server, "old")

		p.Heal()
		p.Heal()
		fresh := pair(t, p, accepted)
		send(t, fresh.client, "new")
		expect(t, fresh.server, "new")
	}
	require.Equal(t, 4, p.Accepted())
}

func TestProxyWithoutATarget(t *testing.T) {
	NoLeaks(t)
	free, err := reservePort()
	require.NoError(t, err)
	t.Cleanup(free.close)
	p := NewProxy(t, free.addr)
	// Stalled, or the reset can be there before the dial has returned.
	p.ToClient.Stall()
	c := connect(t, p)
	expectNothing(t, c)
	p.ToClient.Resume()
	expectReset(t, c)
}

func TestProxyPassesAResetOn(t *testing.T) {
	NoLeaks(t)
	addr, accepted := target(t)
	p := NewProxy(t, addr)
	c := pair(t, p, accepted)
	p.ToClient.Stall()
	require.NoError(t, c.server.SetLinger(0))
	require.NoError(t, c.server.Close())
	expectNothing(t, c.client)
	p.ToClient.Resume()
	expectReset(t, c.client)
}

func TestProxyCloses(t *testing.T) {
	NoLeaks(t)
	addr, accepted := target(t)
	p := NewProxy(t, addr)
	c := pair(t, p, accepted)
	p.Delay(time.Hour)
	send(t, c.client, "never")
	p.Close()
	expectReset(t, c.server)
	_, err := net.Dial("tcp4", p.Addr())
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	p.Heal() // does not come back
	_, err = net.Dial("tcp4", p.Addr())
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	p.Close()
}

// TestReservedPortIsKept opens a port again and again while others look for
// free ones.
func TestReservedPortIsKept(t *testing.T) {
	r, err := reservePort()
	require.NoError(t, err)
	defer r.close()
	for range 200 {
		ln, err := r.listen()
		require.NoError(t, err)
		require.NoError(t, ln.Close())
		other, err := net.Listen("tcp4", "127.0.0.1:0")
		require.NoError(t, err)
		require.NotEqual(t, r.addr, other.Addr().String())
		defer other.Close()
	}
}
