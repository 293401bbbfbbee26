package main

import (
	"context"
	"flag"
	"fmt"

	"github.com/fencelock/fencelock"
)

var evictCommand = command{
	name: "evict", args: "NAME --token TOKEN",
	does: "take a lock away from its holder",
	more: `Takes the lock away from the holder that has this token, as show prints it, so that the next in
the queue is granted it. If another holds it by now, nobody is evicted. The evicted holder is
told within a second, but nothing can make it stop; what checks the token refuses it once the
next holder has been there.`,
	register: func(fs *flag.FlagSet) func(context.Context, *call) error {
		var f format
		f.register(fs)
		token := fs.String("token", "", "the token of the holder to be evicted: a `token` as show prints it; required")
		return func(ctx context.Context, c *call) error { return evict(ctx, c, f, *token) }
	},
}

// evictedForm is an eviction in JSON. One that was not made is an error, and no object.
type evictedForm struct {
	Name     string `json:"name"`
	Evicted  string `json:"evicted"` // the token
	Revision int64  `json:"revision"`
}

func evict(ctx context.Context, c *call, f format, text string) error {
	name, err := theName(c)
	if err != nil {
		return err
	}
	if text == "" {
		return usage("--token is missing: fencelock show %s prints the holder's", quoted(name))
	}
	token, err := fencelock.ParseToken(name, text)
	if err != nil {
		return err
	}
	locker, _, done, err := c.connection.open(ctx)
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := context.WithTimeout(ctx, c.connection.commandTimeout)
	defer cancel()
	if err := locker.Evict(ctx, name, token); err != nil {
		return c.connection.explain(err)
	}
	if f.json {
		return writeJSON(c.out, evictedForm{Name: name, Evicted: token.String(), Revision: token.Revision()})
	}
	fmt.Fprintf(c.out, "evicted the holder of lock %s with token %s\n", quoted(name), token)
	return nil
}
