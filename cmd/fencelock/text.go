package main

import (
	"encoding/json"
	"flag"
	"io"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/fencelock/fencelock"
)

// quoted is a lock's name as it is shown: as it is, or in quotes as in Go where that
// could be misread, or mean something to a terminal. Anybody who may write a lock
// chooses its name.
func quoted(s string) string {
	plain := func(r rune) bool {
		return unicode.IsPrint(r) && r != ' ' && r != '"' && r != '\\' && r != unicode.ReplacementChar
	}
	if s == "" || strings.ContainsFunc(s, func(r rune) bool { return !plain(r) }) {
		return strconv.Quote(s)
	}
	return s
}

// printable is a text for people in which nothing means anything to a terminal but
// the ends of its lines.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, s)
}

// label is who a claim is of, as far as it says.
func label(c fencelock.Claim) string {
	if c.Label == "" {
		return "(says nothing of itself)"
	}
	return c.Label
}

// ago is how long a claim has been in the queue, by two machines' clocks.
func ago(c fencelock.Claim, now time.Time) string {
	if c.Since.IsZero() {
		return "-"
	}
	return max(0, now.Sub(c.Since)).Round(time.Second).String()
}

func remaining(c fencelock.Claim) string {
	if c.Remaining == 0 {
		return "-"
	}
	return c.Remaining.String()
}

// claimForm is a claim in JSON.
type claimForm struct {
	Token     string     `json:"token"`
	Revision  int64      `json:"revision"`
	Label     string     `json:"label"`
	Host      string     `json:"host"`
	PID       int        `json:"pid"`
	Since     *time.Time `json:"since"`            // null: unknown
	Remaining *float64   `json:"remainingSeconds"` // null: unknown, or no lease
}

// queueForm is a lock in JSON. Queue is what its keys in etcd begin with: a name can
// be no valid UTF-8, which JSON cannot hold.
type queueForm struct {
	Name    string      `json:"name"`
	Queue   string      `json:"queue"`
	Holder  *claimForm  `json:"holder"`
	Waiters []claimForm `json:"waiters"`
}

func formOfClaim(c fencelock.Claim) claimForm {
	f := claimForm{Token: c.Token.String(), Revision: c.Token.Revision(), Label: c.Label, Host: c.Host, PID: c.PID}
	if !c.Since.IsZero() {
		f.Since = &c.Since
	}
	if c.Remaining > 0 {
		s := c.Remaining.Seconds()
		f.Remaining = &s
	}
	return f
}

func formOf(prefix string, q fencelock.Queue) queueForm {
	f := queueForm{Name: q.Name, Queue: prefix + url.PathEscape(q.Name) + "/", Waiters: []claimForm{}}
	if q.Holder != nil {
		h := formOfClaim(*q.Holder)
		f.Holder = &h
	}
	for _, w := range q.Waiters {
		f.Waiters = append(f.Waiters, formOfClaim(w))
	}
	return f
}

// writeJSON writes a value on a line of its own.
func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// format is the value of -o.
type format struct{ json bool }

func (f *format) String() string {
	if f.json {
		return "json"
	}
	return "text"
}

func (f *format) Set(s string) error {
	switch s {
	case "text", "json":
		f.json = s == "json"
		return nil
	}
	return usageText("text or json")
}

type usageText string

func (u usageText) Error() string { return "it can be " + string(u) }

func (f *format) register(fs *flag.FlagSet) {
	fs.Var(f, "o", "how to print: `text|json`; JSON is one object a line")
	fs.Var(f, "output", "the same as -o: `text|json`")
}

// theName is the one argument of a command that takes a lock's name. Behind "--" it
// can begin with a dash.
func theName(c *call) (string, error) {
	args := append(c.args, c.command...)
	switch len(args) {
	case 1:
		return args[0], nil
	case 0:
		return "", usage("the name of the lock is missing")
	}
	return "", usage("one name of a lock is wanted, not %d: quote a name with spaces", len(args))
}

// thePrefix is the argument of a command that may be given what names begin with.
func thePrefix(c *call) (string, error) {
	args := append(c.args, c.command...)
	switch len(args) {
	case 0:
		return "", nil
	case 1:
		return args[0], nil
	}
	return "", usage("one prefix of names is wanted, not %d: quote one with spaces", len(args))
}

// none is for a command without arguments.
func none(c *call) error {
	if len(c.args)+len(c.command) > 0 {
		return usage("this command takes no arguments")
	}
	return nil
}

// nameOf is the name of the lock in whose queue a key stands; ok is false for a key
// that is in none.
func nameOf(prefix, key string) (name string, ok bool) {
	segment, _, ok := strings.Cut(strings.TrimPrefix(key, prefix), "/")
	name, err := url.PathUnescape(segment)
	return name, ok && err == nil && name != "" && url.PathEscape(name) == segment
}
