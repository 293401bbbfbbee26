package main

import (
	"context"
	"flag"
	"fmt"
	"time"

	"github.com/fencelock/fencelock"
)

var showCommand = command{
	name: "show", args: "NAME",
	does: "show who holds a lock, and who waits for it",
	more: `Shows who holds the lock, since when and with which token, how long its lease lives if it is
not renewed, and who waits for it, in order. Exit code 1: nobody holds it.`,
	register: func(fs *flag.FlagSet) func(context.Context, *call) error {
		var f format
		f.register(fs)
		return func(ctx context.Context, c *call) error { return show(ctx, c, f) }
	},
}

func show(ctx context.Context, c *call, f format) error {
	name, err := theName(c)
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
	q, err := locker.Inspect(ctx, name)
	if err != nil {
		return c.connection.explain(err)
	}
	free := &exit{code: codeNo}
	if f.json {
		if err := writeJSON(c.out, formOf(c.connection.prefix, q)); err != nil {
			return err
		}
	} else if q.Holder == nil {
		free.err = fmt.Errorf("lock %s is held by nobody; fencelock ls lists those that are", quoted(name))
	} else {
		showText(c, q, time.Now())
	}
	if q.Holder == nil {
		return free
	}
	return nil
}

func showText(c *call, q fencelock.Queue, now time.Time) {
	fmt.Fprintf(c.out, "lock %s\n\n", quoted(q.Name))
	fmt.Fprintf(c.out, "held by  %s\n", label(*q.Holder))
	showClaim(c, *q.Holder, now)
	if len(q.Waiters) == 0 {
		fmt.Fprintf(c.out, "\nnobody waits\n")
		return
	}
	fmt.Fprintf(c.out, "\n%d waiting, in this order\n", len(q.Waiters))
	for i, w := range q.Waiters {
		fmt.Fprintf(c.out, "\n%7d  %s\n", i+1, label(w))
		showClaim(c, w, now)
	}
}

func showClaim(c *call, claim fencelock.Claim, now time.Time) {
	fmt.Fprintf(c.out, "  token  %s\n", claim.Token)
	if claim.Host != "" || claim.PID != 0 {
		fmt.Fprintf(c.out, "     at  host %s, process %d\n", quoted(claim.Host), claim.PID)
	}
	if !claim.Since.IsZero() {
		fmt.Fprintf(c.out, " queued  %s, %s ago\n", claim.Since.Local().Format(time.RFC3339), ago(claim, now))
	}
	if claim.Remaining > 0 {
		fmt.Fprintf(c.out, "  lease  lives for %s if it is not renewed\n", claim.Remaining)
	} else {
		fmt.Fprintf(c.out, "  lease  none, or it was not to be read\n")
	}
}
