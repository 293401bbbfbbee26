package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock"
)

var watchCommand = command{
	name: "watch", args: "[PREFIX]",
	does: "show the locks as they change, until interrupted",
	more: `Shows the locks whose names begin with PREFIX, all without one, until it is interrupted. On a
terminal it is the list of ls, drawn again in place. Elsewhere, and with -o json, it is a line
for what there is and then for each change:

  held    who holds the lock now
  queued  who waits for it now
  ended   who held the lock and is gone, released or not
  left    who waited for it and is gone

What changes faster than it can be read is shown as one step from before to after. Where etcd
does not answer for a while it says so on the standard error and goes on.`,
	register: func(fs *flag.FlagSet) func(context.Context, *call) error {
		var f format
		f.register(fs)
		return func(ctx context.Context, c *call) error { return watch(ctx, c, f) }
	},
}

// redrawEvery is how often the screen is drawn again without a change: times go on.
const redrawEvery = time.Second

// rewatchAfter is the pause before a watch that ended is opened again.
const rewatchAfter = time.Second

func watch(ctx context.Context, c *call, f format) error {
	prefix, err := thePrefix(c)
	if err != nil {
		return err
	}
	locker, client, done, err := c.connection.open(ctx)
	if err != nil {
		return err
	}
	defer done()
	w := &watching{call: c, json: f.json, prefix: prefix, locker: locker, client: client, known: map[string]fencelock.Queue{}}
	if _, _, terminal := terminalSize(); terminal && !f.json {
		w.show = w.draw
	} else {
		w.show = w.tell
	}
	for first := true; ; first = false {
		err := w.follow(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case first && !w.seen:
			return c.connection.explain(err)
		case isWriting(err):
			return err
		case !unreachable(err) && codeOf(err) == codeRefused && w.failures > 2:
			return c.connection.explain(err)
		}
		w.failures++
		fmt.Fprintln(os.Stderr, printable(messageOf(fmt.Errorf("watching again: %w", err))))
		select {
		case <-time.After(rewatchAfter):
		case <-ctx.Done():
			return nil
		}
	}
}

type watching struct {
	*call
	json     bool
	prefix   string
	locker   *fencelock.Locker
	client   *clientv3.Client
	show     func(ctx context.Context, touched map[string]bool) error // nil: all may have changed
	known    map[string]fencelock.Queue                               // what was told
	seen     bool                                                     // something was shown
	failures int                                                      // since then
}

// writeError is the error of a write to the standard output.
type writeError struct{ error }

func (e writeError) Unwrap() error { return e.error }

func isWriting(err error) bool {
	_, ok := err.(writeError)
	return ok
}

func (w *watching) flush() error {
	if err := w.out.Flush(); err != nil {
		return writeError{fmt.Errorf("writing to the standard output: %w", err)}
	}
	return nil
}

// follow opens a watch and shows what there is, and then what changes, until the
// watch ends. The watch is confirmed before the first look, so that nothing can come
// between the two and be seen by neither.
func (w *watching) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	// Opening a watch waits for a connection, however long that takes.
	unconfirmed := time.AfterFunc(w.connection.commandTimeout, cancel)
	events := w.client.Watch(ctx, w.connection.prefix, clientv3.WithPrefix(), clientv3.WithCreatedNotify())
	resp, ok := <-events
	switch {
	case !unconfirmed.Stop():
		return fmt.Errorf("watching: %w", context.DeadlineExceeded)
	case resp.Err() != nil || !ok:
		return fmt.Errorf("watching: %w", orClosed(resp.Err()))
	}
	if err := w.show(ctx, nil); err != nil {
		return err
	}
	w.seen, w.failures = true, 0
	tick := time.NewTicker(redrawEvery)
	defer tick.Stop()
	for {
		touched := map[string]bool{}
		select {
		case resp, ok := <-events:
			if err := resp.Err(); err != nil || !ok {
				return fmt.Errorf("watching: %w", orClosed(err))
			}
			for _, e := range resp.Events {
				if name, ok := nameOf(w.connection.prefix, string(e.Kv.Key)); ok && strings.HasPrefix(name, w.prefix) {
					touched[name] = true
				}
			}
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := w.show(ctx, touched); err != nil {
			return err
		}
	}
}

func orClosed(err error) error {
	if err == nil {
		return context.DeadlineExceeded // the stream ended without an answer
	}
	return err
}

// tell writes a line for each change since it was last called.
func (w *watching) tell(ctx context.Context, touched map[string]bool) error {
	if touched == nil {
		before := w.known
		w.known = map[string]fencelock.Queue{}
		for q, err := range listing(ctx, w.locker, w.connection, w.prefix) {
			if err != nil {
				for name, q := range before { // what was not seen may still be there
					if _, ok := w.known[name]; !ok {
						w.known[name] = q
					}
				}
				return err
			}
			w.compare(before[q.Name], q)
			w.known[q.Name] = q
		}
		for _, name := range slices.Sorted(maps.Keys(before)) {
			if _, ok := w.known[name]; !ok {
				w.compare(before[name], fencelock.Queue{Name: name})
			}
		}
		return w.flush()
	}
	for _, name := range slices.Sorted(maps.Keys(touched)) {
		bounded, cancel := context.WithTimeout(ctx, w.connection.commandTimeout)
		q, err := w.locker.Inspect(bounded, name)
		cancel()
		if err != nil {
			return err
		}
		w.compare(w.known[name], q)
		if w.known[name] = q; q.Holder == nil {
			delete(w.known, name)
		}
	}
	return w.flush()
}

// change is a line of a watch in JSON.
type change struct {
	Time    time.Time `json:"time"`
	Change  string    `json:"change"`
	Name    string    `json:"name"`
	Queue   string    `json:"queue"`
	Claim   claimForm `json:"claim"`
	Waiting int       `json:"waiting"`
}

// compare writes what is different between two states of a queue.
func (w *watching) compare(before, after fencelock.Queue) {
	was, is := claimsOf(before), claimsOf(after)
	line := func(what string, c fencelock.Claim) {
		now := time.Now()
		if w.json {
			_ = writeJSON(w.out, change{
				Time: now, Change: what, Name: after.Name, Queue: formOf(w.connection.prefix, after).Queue,
				Claim: formOfClaim(c), Waiting: len(after.Waiters),
			})
			return
		}
		fmt.Fprintf(w.out, "%s  %-6s  %s  %s  %s  (%d waiting)\n", now.Format("2006-01-02T15:04:05.000Z07:00"), what,
			quoted(after.Name), c.Token, label(c), len(after.Waiters))
	}
	for i, c := range was {
		if !slices.ContainsFunc(is, func(d fencelock.Claim) bool { return d.Token.Equal(c.Token) }) {
			line([]string{"ended", "left"}[min(i, 1)], c)
		}
	}
	for i, c := range is {
		at := slices.IndexFunc(was, func(d fencelock.Claim) bool { return d.Token.Equal(c.Token) })
		switch {
		case i == 0 && at != 0:
			line("held", c)
		case i > 0 && at < 0:
			line("queued", c)
		}
	}
}

func claimsOf(q fencelock.Queue) []fencelock.Claim {
	if q.Holder == nil {
		return nil
	}
	return append([]fencelock.Claim{*q.Holder}, q.Waiters...)
}

// draw draws the list in place, as much of it as the terminal has room for.
func (w *watching) draw(ctx context.Context, _ map[string]bool) error {
	columns, lines, _ := terminalSize()
	room := max(1, lines-3)
	now := time.Now()
	var rows bytes.Buffer
	table := tabwriter.NewWriter(&rows, 0, 0, 2, ' ', 0)
	fmt.Fprint(table, lsHeader)
	n := 0
	for q, err := range listing(ctx, w.locker, w.connection, w.prefix) {
		if err != nil {
			return err
		}
		if n++; n < room {
			fmt.Fprint(table, lsLine(q, now))
		}
	}
	_ = table.Flush() // a Buffer takes everything
	if !w.seen {
		fmt.Fprint(w.out, "\x1b[2J")
	}
	// From the top left, each line to its end, then all below: what is on the screen
	// is replaced without being blank in between.
	fmt.Fprintf(w.out, "\x1b[H%s\x1b[K\n", cut(fmt.Sprintf("%d locks at %s; Ctrl-C ends it", n, now.Format(time.TimeOnly)), columns))
	for line := range strings.Lines(rows.String()) {
		fmt.Fprintf(w.out, "%s\x1b[K\n", cut(strings.TrimSuffix(line, "\n"), columns))
	}
	if n >= room {
		fmt.Fprintf(w.out, "… and %d more\x1b[K\n", n-room+1)
	}
	fmt.Fprint(w.out, "\x1b[J")
	return w.flush()
}

// cut shortens a line to so many columns, counted as one for each character.
func cut(s string, columns int) string {
	if utf8.RuneCountInString(s) <= columns {
		return s
	}
	return string([]rune(s)[:max(0, columns-1)]) + "…"
}
