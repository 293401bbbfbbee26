//go:build unix

package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/fencelock/fencelock/examples/internal/process"
	"github.com/fencelock/fencelock/examples/internal/timeline"
)

// term is one member's time as the leader, by its own reports.
type term struct {
	who    string
	token  string
	from   time.Time // when it first saw its context alive
	to     time.Time // and when last
	rounds int
	left   bool   // it reported that its term is over
	end    string // what ended it, empty while nothing did
}

// ledger is the book of terms, in the order of their first reports.
type ledger struct {
	terms []*term
}

// record takes what a leader reports.
func (l *ledger) record(r process.Report) {
	i := slices.IndexFunc(l.terms, func(t *term) bool { return t.token == r.Token })
	switch {
	case r.Event == leads && i < 0:
		l.terms = append(l.terms, &term{who: r.Who, token: r.Token, from: r.At, to: r.At, rounds: 1})
	case r.Event == leads:
		l.terms[i].to = r.At
		l.terms[i].rounds++
	case r.Event == left && i >= 0:
		l.terms[i].left = true
		l.terms[i].end = cmp.Or(l.terms[i].end, r.Text)
	}
}

// last returns the latest term, nil if there is none.
func (l *ledger) last() *term {
	if len(l.terms) == 0 {
		return nil
	}
	return l.terms[len(l.terms)-1]
}

var errOverlap = errors.New("two members led at the same time")

// overlaps describes every two terms in which both members saw their contexts
// alive at one time. A stopped member sees nothing, so its term ends with the
// last thing it saw before.
func (l *ledger) overlaps() (found []string) {
	terms := slices.SortedFunc(slices.Values(l.terms), func(a, b *term) int {
		return cmp.Or(a.from.Compare(b.from), a.to.Compare(b.to))
	})
	for i, earlier := range terms {
		for _, later := range terms[i+1:] {
			if !later.from.After(earlier.to) {
				found = append(found, fmt.Sprintf("%s with token %s still led %v after %s with token %s had begun",
					earlier.who, timeline.Number(earlier.token), earlier.to.Sub(later.from).Round(time.Millisecond),
					later.who, timeline.Number(later.token)))
			}
		}
	}
	return found
}

func (l *ledger) print(out io.Writer, line *timeline.Timeline) {
	fmt.Fprintf(out, "%-6s  %5s  %8s  %8s  %6s  %s\n", "leader", "token", "from", "to", "rounds", "and then")
	for _, t := range l.terms {
		fmt.Fprintf(out, "%-6s  %5s  %7.3fs  %7.3fs  %6d  %s\n", t.who, timeline.Number(t.token),
			line.Since(t.from).Seconds(), line.Since(t.to).Seconds(), t.rounds, cmp.Or(t.end, "leads still"))
	}
}
