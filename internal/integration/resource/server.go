package resource

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/fencelock/fencelock"
)

// request is one line to the server.
type request struct {
	Op       Op     `json:"op"`
	Register string `json:"register"`
	Token    string `json:"token,omitempty"` // its text; the register names it
	Value    string `json:"value,omitempty"`
}

// reply is one line from the server.
type reply struct {
	Value   string  `json:"value,omitempty"`
	History []Entry `json:"history,omitempty"`
	Highest string  `json:"highest,omitempty"` // the mark that the token was refused for
	Error   string  `json:"error,omitempty"`
}

// Serve answers requests until ctx ends or listener fails, and returns when the
// last answer is over and listener is closed. The registers are in the SQLite
// file at path, which is made if it is not there, or in memory if path is empty.
func Serve(ctx context.Context, listener net.Listener, path string) (err error) {
	ended := ctx
	ctx, cancel := context.WithCancel(ctx)
	defer context.AfterFunc(ctx, func() { _ = listener.Close() })()
	var s store = newMemory()
	if path != "" {
		if s, err = openSQLite(ctx, path); err != nil {
			cancel()
			return errors.Join(err, listener.Close())
		}
	}
	var talks sync.WaitGroup
	defer func() {
		cancel()
		talks.Wait()
		err = errors.Join(err, s.close())
	}()
	for {
		conn, err := listener.Accept()
		switch {
		case ended.Err() != nil:
			if err == nil {
				_ = conn.Close()
			}
			return nil
		case err != nil:
			return fmt.Errorf("resource: accepting connections: %w", err)
		}
		talks.Go(func() {
			defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
			defer func() { _ = conn.Close() }()
			talk(ctx, conn, s)
		})
	}
}

// talk answers the requests of one connection, one after the other. One that
// arrived is carried out whether or not anybody still waits for the answer.
func talk(ctx context.Context, conn net.Conn, s store) {
	in, out := json.NewDecoder(conn), json.NewEncoder(conn)
	for {
		var q request
		if in.Decode(&q) != nil {
			return // the end, or no request at all
		}
		if out.Encode(answer(ctx, s, q)) != nil {
			return
		}
	}
}

func answer(ctx context.Context, s store, q request) (r reply) {
	err := func() (err error) {
		switch q.Op {
		case OpRead:
			r.Value, err = s.read(ctx, q.Register)
			return err
		case OpHistory:
			r.History, err = s.history(ctx, q.Register)
			return err
		}
		token, err := fencelock.ParseToken(q.Register, q.Token)
		if err != nil {
			return err
		}
		switch q.Op {
		case OpClaim:
			r.Value, err = s.claim(ctx, q.Register, token)
			return err
		case OpWrite:
			return s.write(ctx, q.Register, token, q.Value)
		case OpOverwrite:
			return s.overwrite(ctx, q.Register, token, q.Value)
		default:
			return fmt.Errorf("resource: no operation %q", q.Op)
		}
	}()
	if err == nil {
		return r
	}
	r = reply{Error: err.Error()}
	var stale *fencelock.StaleError
	if errors.As(err, &stale) {
		r.Highest = stale.Highest.String()
	}
	return r
}
