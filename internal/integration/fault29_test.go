package integration

import (
	"bufio"
	"context"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/integration/resource"
)

// TestFault29WriteSentTwice sends a holder's write a second time, as a proxy or
// a client that retries does, when the holder has been answered, has given the
// lock back in good order, and the next one has it. Nobody in the whole story
// has lost a lock or was late, so nothing on the side of the lock can see it, and
// a resource without a fence applies the copy.
func TestFault29WriteSentTwice(t *testing.T) {
	b := newBench(t)
	for kind, server := range fencedResources(t) {
		t.Run("after the next holder's write, "+kind, func(t *testing.T) {
			b := b.corner(t)
			direct, first, second := server.Client(t), newRepeater(t, server.Addr), newRepeater(t, server.Addr)
			err := b.locker(b.client()).Do(t.Context(), t.Name(), func(ctx context.Context, token fencelock.Token) error {
				if err := first.Write(ctx, t.Name(), token, lateValue); err != nil {
					return err
				}
				return second.Overwrite(ctx, unfenced(t.Name()), token, lateValue)
			})
			require.NoError(t, err)

			err = b.locker(b.client()).Do(t.Context(), t.Name(), func(_ context.Context, token fencelock.Token) error {
				nextHolderWrites(t, direct, token, "next")
				require.Contains(t, first.repeat(t), fencelock.ErrStale.Error())
				require.NotContains(t, second.repeat(t), "error")
				return nil
			})
			require.NoError(t, err)
			requireOnlyFenceKept(t, direct, t.Name(), "next")
		})

		// A claim is enough, and what the next holder read stays true.
		t.Run("after the next holder's claim, "+kind, func(t *testing.T) {
			b := b.corner(t)
			direct, first := server.Client(t), newRepeater(t, server.Addr)
			err := b.locker(b.client()).Do(t.Context(), t.Name(), func(ctx context.Context, token fencelock.Token) error {
				return first.Write(ctx, t.Name(), token, lateValue)
			})
			require.NoError(t, err)
			err = b.locker(b.client()).Do(t.Context(), t.Name(), func(ctx context.Context, token fencelock.Token) error {
				value, err := direct.Claim(ctx, t.Name(), token)
				require.NoError(t, err)
				require.Equal(t, lateValue, value)
				require.Contains(t, first.repeat(t), fencelock.ErrStale.Error())
				return direct.Write(ctx, t.Name(), token, value+" next")
			})
			require.NoError(t, err)
			value, err := direct.Read(t.Context(), t.Name())
			require.NoError(t, err)
			require.Equal(t, lateValue+" next", value)
		})

		// The limit that the documentation names: a fence orders holders, not one
		// holder's own messages.
		t.Run("after the same holder's next write, "+kind, func(t *testing.T) {
			b := b.corner(t)
			direct, first := server.Client(t), newRepeater(t, server.Addr)
			err := b.locker(b.client()).Do(t.Context(), t.Name(), func(ctx context.Context, token fencelock.Token) error {
				require.NoError(t, first.Write(ctx, t.Name(), token, "one"))
				require.NoError(t, direct.Write(ctx, t.Name(), token, "two"))
				require.NotContains(t, first.repeat(t), "error")
				return nil
			})
			require.NoError(t, err)
			value, err := direct.Read(t.Context(), t.Name())
			require.NoError(t, err)
			require.Equal(t, "one", value)
		})
	}
}

// repeater is a client behind a proxy that can send its last request again, on
// another connection.
type repeater struct {
	*resource.Client
	target string

	mu   sync.Mutex
	last string // line
}

func newRepeater(t *testing.T, target string) *repeater {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	r := &repeater{Client: resource.NewClient(listener.Addr().String()), target: target}
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn, err := listener.Accept() // the client has one
		if !assert.NoError(t, err) {
			return
		}
		defer func() { _ = conn.Close() }()
		r.forward(t, conn)
	}()
	t.Cleanup(func() {
		assert.NoError(t, r.Close())
		assert.NoError(t, listener.Close())
		<-done
	})
	return r
}

// forward forwards one connection, up to its end.
func (r *repeater) forward(t *testing.T, client net.Conn) {
	server, err := net.Dial("tcp", r.target)
	if !assert.NoError(t, err) {
		return
	}
	replies := make(chan struct{})
	go func() {
		defer close(replies)
		_, _ = io.Copy(client, server)
	}()
	for in := bufio.NewReader(client); ; {
		line, err := in.ReadString('\n')
		if err != nil {
			break
		}
		r.mu.Lock()
		r.last = line
		r.mu.Unlock()
		_, err = io.WriteString(server, line)
		assert.NoError(t, err)
	}
	_ = server.Close()
	<-replies
}

// repeat sends the last request again, and returns the reply.
func (r *repeater) repeat(t *testing.T) string {
	t.Helper()
	conn, err := net.Dial("tcp", r.target)
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	require.NoError(t, conn.SetDeadline(time.Now().Add(soon)))
	r.mu.Lock()
	line := r.last
	r.mu.Unlock()
	require.NotEmpty(t, line, "there is nothing to repeat")
	_, err = io.WriteString(conn, line)
	require.NoError(t, err)
	reply, err := bufio.NewReader(conn).ReadString('\n')
	require.NoError(t, err)
	return reply
}
