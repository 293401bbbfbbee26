package resource

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/integration/harness"
)

// soon bounds what has no bound of its own and should not take long.
const soon = 20 * time.Second

// stores runs a test against a server of each kind, in this process.
func stores(t *testing.T, test func(t *testing.T, addr string)) {
	for _, kind := range []string{"memory", "sqlite"} {
		t.Run(kind, func(t *testing.T) {
			harness.NoLeaks(t)
			path := ""
			if kind == "sqlite" {
				path = filepath.Join(t.TempDir(), "registers.db")
			}
			test(t, serve(t, path))
		})
	}
}

// serve serves until the end of the test, and returns the address.
func serve(t *testing.T, path string) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- Serve(ctx, listener, path) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-served)
	})
	return listener.Addr().String()
}

func newTestClient(t *testing.T, addr string) *Client {
	t.Helper()
	c := NewClient(addr)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

func token(t testing.TB, revision int, holder string) fencelock.Token {
	t.Helper()
	token, err := fencelock.ParseToken("the lock", fmt.Sprintf("%d.%s", revision, holder))
	require.NoError(t, err)
	return token
}

// history returns the history without its times, which it checks to rise.
func history(t *testing.T, c *Client, register string) []Entry {
	t.Helper()
	entries, err := c.History(t.Context(), register)
	require.NoError(t, err)
	for i := range entries {
		require.WithinRange(t, entries[i].At, time.Now().Add(-time.Minute), time.Now())
		entries[i].At = time.Time{}
	}
	return entries
}

func TestRegister(t *testing.T) {
	stores(t, func(t *testing.T, addr string) {
		c, ctx := newTestClient(t, addr), t.Context()
		first, second, twin := token(t, 9, "a"), token(t, 10, "b"), token(t, 10, "c")

		value, err := c.Claim(ctx, "x", first)
		require.NoError(t, err)
		require.Empty(t, value)
		require.NoError(t, c.Write(ctx, "x", first, "one"))
		require.NoError(t, c.Write(ctx, "x", first, "two"))
		value, err = c.Claim(ctx, "x", second)
		require.NoError(t, err)
		require.Equal(t, "two", value)

		// A claim is enough to keep the old holder out, and it keeps out a second
		// owner of the same number.
		for _, old := range []fencelock.Token{first, twin} {
			var stale *fencelock.StaleError
			require.ErrorAs(t, c.Write(ctx, "x", old, "late"), &stale)
			require.Equal(t, "x", stale.Scope)
			require.True(t, stale.Presented.Equal(old))
			require.True(t, stale.Highest.Equal(second))
			_, err = c.Claim(ctx, "x", old)
			require.ErrorAs(t, err, &stale)
			require.True(t, stale.Presented.Equal(old))
		}
		value, err = c.Read(ctx, "x")
		require.NoError(t, err)
		require.Equal(t, "two", value)

		require.NoError(t, c.Overwrite(ctx, "x", first, "late"))
		value, err = c.Read(ctx, "x")
		require.NoError(t, err)
		require.Equal(t, "late", value)

		late := Entry{Op: OpOverwrite, Revision: 9, Holder: "a", Value: "late"}
		entries := history(t, c, "x")
		require.Equal(t, []Entry{
			{Op: OpClaim, Revision: 9, Holder: "a"},
			{Op: OpWrite, Revision: 9, Holder: "a", Value: "one"},
			{Op: OpWrite, Revision: 9, Holder: "a", Value: "two"},
			{Op: OpClaim, Revision: 10, Holder: "b"},
			{Op: OpWrite, Revision: 9, Holder: "a", Value: "late", Refused: true},
			{Op: OpClaim, Revision: 9, Holder: "a", Refused: true},
			{Op: OpWrite, Revision: 10, Holder: "c", Value: "late", Refused: true},
			{Op: OpClaim, Revision: 10, Holder: "c", Refused: true},
			late,
		}, entries)
		require.Equal(t, []Entry{late}, Stale(entries))
	})
}

func TestRegistersAreIndependent(t *testing.T) {
	stores(t, func(t *testing.T, addr string) {
		c, ctx := newTestClient(t, addr), t.Context()
		require.NoError(t, c.Write(ctx, "x", token(t, 2, "b"), "new"))
		require.NoError(t, c.Write(ctx, "y", token(t, 1, "a"), "old"))
		value, err := c.Read(ctx, "x")
		require.NoError(t, err)
		require.Equal(t, "new", value)
		require.Len(t, history(t, c, "x"), 1)
		require.Len(t, history(t, c, "y"), 1)
		require.Empty(t, history(t, c, "z"))
	})
}

// The history is the order in which values were set, also where holders who
// know nothing of each other write at once.
func TestHistoryOfManyWriters(t *testing.T) {
	stores(t, func(t *testing.T, addr string) {
		const writers, writes = 6, 30
		var running sync.WaitGroup
		for w := range writers {
			c := newTestClient(t, addr)
			running.Go(func() {
				for i := range writes {
					revision := 1 + i*writers + (w*i)%writers // some at once with another's, or late
					token, err := fencelock.ParseToken("the lock", fmt.Sprintf("%d.h%d", revision, w))
					if err == nil {
						err = c.Write(t.Context(), "x", token, fmt.Sprintf("%d/%d", w, i))
					}
					if err != nil && !errors.Is(err, fencelock.ErrStale) {
						t.Errorf("writer %d: %v", w, err)
					}
				}
			})
		}
		running.Wait()
		c := newTestClient(t, addr)
		entries := history(t, c, "x")
		require.Len(t, entries, writers*writes)
		require.Empty(t, Stale(entries))
		var last Entry
		for _, e := range entries {
			if !e.Refused {
				last = e
			}
		}
		value, err := c.Read(t.Context(), "x")
		require.NoError(t, err)
		require.Equal(t, last.Value, value)
	})
}

func TestStale(t *testing.T) {
	claim := func(revision int64, holder string) Entry {
		return Entry{Op: OpClaim, Revision: revision, Holder: holder}
	}
	write := func(revision int64, holder string) Entry {
		return Entry{Op: OpWrite, Revision: revision, Holder: holder}
	}
	over := func(revision int64, holder string) Entry {
		return Entry{Op: OpOverwrite, Revision: revision, Holder: holder}
	}
	refused := func(e Entry) Entry {
		e.Refused = true
		return e
	}
	for name, c := range map[string]struct {
		history, stale []Entry
	}{
		"nothing":  {},
		"in order": {history: []Entry{claim(1, "a"), write(1, "a"), write(1, "a"), write(3, "b")}},
		"a write after a claim": {
			history: []Entry{write(1, "a"), claim(2, "b"), write(1, "a"), write(2, "b")},
			stale:   []Entry{write(1, "a")},
		},
		"writes after writes": {
			history: []Entry{write(3, "c"), write(2, "b"), over(1, "a"), write(3, "c")},
			stale:   []Entry{write(2, "b"), over(1, "a")},
		},
		"two owners of a number": {
			history: []Entry{write(3, "c"), write(3, "d"), write(3, "c")},
			stale:   []Entry{write(3, "d")},
		},
		"what was refused changed nothing": {
			history: []Entry{write(2, "b"), refused(write(1, "a")), refused(claim(9, "z")), write(2, "b")},
		},
		"an old claim changed nothing": {history: []Entry{write(2, "b"), claim(1, "a"), write(2, "b")}},
		"an old claim does not lower the mark": {
			history: []Entry{write(2, "b"), claim(1, "a"), write(1, "a")},
			stale:   []Entry{write(1, "a")},
		},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.stale, Stale(c.history)) })
	}
}

// A request that is on its way arrives, whatever has become of who sent it.
func TestRequestOutlivesItsSender(t *testing.T) {
	stores(t, func(t *testing.T, addr string) {
		road := harness.NewProxy(t, addr)
		c, direct := newTestClient(t, road.Addr()), newTestClient(t, addr)
		require.NoError(t, c.Write(t.Context(), "x", token(t, 1, "a"), "one"))

		road.ToServer.Stall()
		ctx, cancel := context.WithCancelCause(t.Context())
		before := road.ToServer.Received()
		result := make(chan error, 1)
		go func() { result <- c.Write(ctx, "x", token(t, 1, "a"), "two") }()
		require.Eventually(t, func() bool { return road.ToServer.Received() > before }, soon, time.Millisecond)
		gone := errors.New("the lock was lost")
		cancel(gone)
		err := harness.Receive(t, result, soon, "end of a write")
		require.ErrorIs(t, err, ErrUnanswered)
		require.ErrorIs(t, err, gone)

		value, err := direct.Read(t.Context(), "x")
		require.NoError(t, err)
		require.Equal(t, "one", value)
		road.ToServer.Resume()
		require.Eventually(t, func() bool {
			value, err := direct.Read(t.Context(), "x")
			return err == nil && value == "two"
		}, soon, time.Millisecond)
		require.Len(t, history(t, c, "x"), 2, "the client asks again, and sends nothing twice")
	})
}

func TestClientWithoutAServer(t *testing.T) {
	harness.NoLeaks(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	c := newTestClient(t, listener.Addr().String())
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = c.Read(ended, "x")
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, ErrUnanswered, "nothing was sent")

	require.NoError(t, listener.Close())
	_, err = c.Read(t.Context(), "x")
	require.ErrorContains(t, err, "refused")
	require.NotErrorIs(t, err, ErrUnanswered, "nothing was sent")
}

func TestBadRequests(t *testing.T) {
	harness.NoLeaks(t)
	addr := serve(t, "")
	c := newTestClient(t, addr)
	require.ErrorIs(t, c.Write(t.Context(), "x", fencelock.Token{}, "v"), fencelock.ErrNoToken)

	for _, q := range []request{
		{Op: OpWrite, Register: "x"},
		{Op: OpOverwrite, Register: "x", Token: "seven"},
		{Op: OpClaim, Token: "7.a"},
		{Op: "erase", Register: "x", Token: "7.a"},
		{},
	} {
		_, err := c.ask(t.Context(), q)
		require.Error(t, err, q)
		require.NotErrorIs(t, err, ErrUnanswered, q)
	}
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	_, err = conn.Write([]byte("nonsense\n"))
	require.NoError(t, err)
	require.NoError(t, conn.SetDeadline(time.Now().Add(soon)))
	n, err := conn.Read(make([]byte, 1))
	require.Zero(t, n, "nonsense is answered")
	require.Error(t, err)
	require.NoError(t, conn.Close())
	require.Empty(t, history(t, c, "x"))
}

func TestServeCannotOpenItsFile(t *testing.T) {
	harness.NoLeaks(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	err = Serve(t.Context(), listener, filepath.Join(t.TempDir(), "no such folder", "registers.db"))
	require.Error(t, err)
	_, err = net.Dial("tcp", listener.Addr().String())
	require.Error(t, err, "the listener is open")
}

// What the file keeps is not the process's to forget.
func TestProcessIsKilled(t *testing.T) {
	harness.NoLeaks(t)
	path := filepath.Join(t.TempDir(), "registers.db")
	p := Start(t, path)
	require.NoError(t, p.Client(t).Write(t.Context(), "x", token(t, 2, "b"), "kept"))
	p.Kill()

	p = Start(t, path)
	c := p.Client(t)
	require.ErrorIs(t, c.Write(t.Context(), "x", token(t, 1, "a"), "late"), fencelock.ErrStale)
	value, err := c.Claim(t.Context(), "x", token(t, 2, "b"))
	require.NoError(t, err)
	require.Equal(t, "kept", value)
	require.Len(t, history(t, c, "x"), 3)
	require.NoError(t, p.Shutdown(soon))
}

func TestProcessInMemory(t *testing.T) {
	harness.NoLeaks(t)
	p := Start(t, "")
	c := p.Client(t)
	require.NoError(t, c.Write(t.Context(), "x", token(t, 2, "b"), "v"))
	require.NoError(t, p.Shutdown(soon))
	_, err := c.Read(t.Context(), "x")
	require.ErrorIs(t, err, ErrUnanswered)
}
