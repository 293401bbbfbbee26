package resource

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/fencelock/fencelock"
)

// ErrUnanswered is returned for a request that was sent and not answered. Whether
// it was carried out is unknown, and whether it will be: it may still be on its
// way.
var ErrUnanswered = errors.New("resource: no answer to the request; it may have been carried out, or will be")

// Client asks a server. It has one connection, made for the first request and
// again after an error, and sends nothing twice. It is for one goroutine at a
// time.
type Client struct {
	addr string
	conn net.Conn
	in   *json.Decoder
}

// NewClient returns a client of the server at addr, "host:port", or of a proxy
// before it. Close it.
func NewClient(addr string) *Client { return &Client{addr: addr} }

// Close closes the connection, if there is one. The client can be used again.
func (c *Client) Close() error {
	if c.conn == nil {
		return nil
	}
	conn := c.conn
	c.conn = nil
	return conn.Close()
}

// Claim raises the register's mark to token, and then reads the value: nothing
// of an earlier holder can be written any more behind what was read.
//
// The error of a token that is refused is a [*fencelock.StaleError], here and
// in Write.
func (c *Client) Claim(ctx context.Context, register string, token fencelock.Token) (value string, err error) {
	r, err := c.present(ctx, OpClaim, register, token, "")
	return r.Value, err
}

// Read reads the value and asks no fence. Whoever reads like this and then
// writes loses what is written in between.
func (c *Client) Read(ctx context.Context, register string) (value string, err error) {
	r, err := c.ask(ctx, request{Op: OpRead, Register: register})
	return r.Value, err
}

// Write sets the value, if the fence lets token pass.
func (c *Client) Write(ctx context.Context, register string, token fencelock.Token, value string) error {
	_, err := c.present(ctx, OpWrite, register, token, value)
	return err
}

// Overwrite sets the value and asks no fence, as a resource without one does.
// The token is only put down in the history.
func (c *Client) Overwrite(ctx context.Context, register string, token fencelock.Token, value string) error {
	_, err := c.present(ctx, OpOverwrite, register, token, value)
	return err
}

// History returns all that was decided about the register so far, in order. It
// keeps every value, so a long test takes another register from time to time.
func (c *Client) History(ctx context.Context, register string) ([]Entry, error) {
	r, err := c.ask(ctx, request{Op: OpHistory, Register: register})
	return r.History, err
}

// present asks with a token.
func (c *Client) present(ctx context.Context, op Op, register string, token fencelock.Token, value string) (reply, error) {
	text, err := token.MarshalText()
	if err != nil {
		return reply{}, err
	}
	r, err := c.ask(ctx, request{Op: op, Register: register, Token: string(text), Value: value})
	if r.Highest == "" {
		return r, err
	}
	highest, err := fencelock.ParseToken(token.Name(), r.Highest)
	if err != nil {
		return reply{}, fmt.Errorf("resource: the server refused the token for %q: %w", r.Highest, err)
	}
	return reply{}, &fencelock.StaleError{Scope: register, Presented: token, Highest: highest}
}

// ask sends one request and waits for its answer until ctx ends.
func (c *Client) ask(ctx context.Context, q request) (reply, error) {
	if c.conn == nil {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", c.addr)
		if err != nil {
			return reply{}, fmt.Errorf("resource: nothing was sent: %w", err)
		}
		c.conn, c.in = conn, json.NewDecoder(conn)
	}
	conn := c.conn
	uninterrupted := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	r, err := c.exchange(q)
	if !uninterrupted() || err != nil {
		// An answer that comes later must not be taken for the next request's.
		_ = c.Close()
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return reply{}, fmt.Errorf("%w: %w", ErrUnanswered, context.Cause(ctx))
	case err != nil:
		return reply{}, fmt.Errorf("%w: %w", ErrUnanswered, err)
	case r.Error != "":
		return r, errors.New(r.Error)
	}
	return r, nil
}

func (c *Client) exchange(q request) (r reply, err error) {
	if err := json.NewEncoder(c.conn).Encode(q); err != nil {
		return reply{}, err
	}
	return r, c.in.Decode(&r)
}
