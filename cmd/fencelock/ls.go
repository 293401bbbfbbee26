package main

import (
	"context"
	"flag"
	"fmt"
	"iter"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/fencelock/fencelock"
)

var lsCommand = command{
	name: "ls", args: "[PREFIX]",
	does: "list the locks that are held or waited for",
	more: `Lists the locks that are held or waited for, all as of one moment; with PREFIX those whose
names begin with it. A name that could be misread is in quotes. FOR is how long the holder
has been in the queue, by its clock and this machine's; LEFT what its lease lives for if it
is not renewed.`,
	register: func(fs *flag.FlagSet) func(context.Context, *call) error {
		var f format
		f.register(fs)
		return func(ctx context.Context, c *call) error { return ls(ctx, c, f) }
	},
}

// lsBlock is how many lines of a list are lined up with each other.
const lsBlock = 256

func ls(ctx context.Context, c *call, f format) error {
	prefix, err := thePrefix(c)
	if err != nil {
		return err
	}
	locker, _, done, err := c.connection.open(ctx)
	if err != nil {
		return err
	}
	defer done()
	table := newTable(c)
	n := 0
	for q, err := range listing(ctx, locker, c.connection, prefix) {
		if err != nil {
			return c.connection.explain(err)
		}
		if f.json {
			if err := writeJSON(c.out, formOf(c.connection.prefix, q)); err != nil {
				return err
			}
			continue
		}
		if n%lsBlock == 0 {
			if err := table.Flush(); err != nil {
				return err
			}
		}
		if n == 0 {
			fmt.Fprint(table, lsHeader)
		}
		n++
		fmt.Fprint(table, lsLine(q, time.Now()))
	}
	return table.Flush()
}

func newTable(c *call) *tabwriter.Writer { return tabwriter.NewWriter(c.out, 0, 0, 2, ' ', 0) }

const lsHeader = "NAME\tWAITING\tFOR\tLEFT\tTOKEN\tHOLDER\n"

func lsLine(q fencelock.Queue, now time.Time) string {
	return fmt.Sprintf("%s\t%d\t%s\t%s\t%s\t%s\n", quoted(q.Name), len(q.Waiters), ago(*q.Holder, now), remaining(*q.Holder),
		q.Holder.Token, label(*q.Holder))
}

// listing is List, of the names that begin with prefix. It ends with an error if
// nothing comes for as long as a command may take; how many locks there are is no
// reason to end it.
func listing(ctx context.Context, locker *fencelock.Locker, conn *connection, prefix string) iter.Seq2[fencelock.Queue, error] {
	return func(yield func(fencelock.Queue, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		idle := time.AfterFunc(conn.commandTimeout, cancel)
		defer idle.Stop()
		for q, err := range locker.List(ctx) {
			if !idle.Stop() && err != nil {
				err = fmt.Errorf("%w: nothing came for %v", context.DeadlineExceeded, conn.commandTimeout)
			}
			if (err != nil || strings.HasPrefix(q.Name, prefix)) && !yield(q, err) {
				return
			}
			if err == nil {
				idle.Reset(conn.commandTimeout)
			}
		}
	}
}
