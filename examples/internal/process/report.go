//go:build unix

package process

import "time"

// Report is what a child tells its parent: that something happened.
type Report struct {
	Who   string    // the child's name; filled in
	At    time.Time // by the wall clock that all processes here share; filled in if zero
	Event string    // for the parent, one word
	Token string    // the text of the token it happened with, if any
	Text  string    // for people; empty if they need not know

	failure error // of an exit nobody asked for
}

// Exited is the event of the last report about every child, which the parent
// itself makes when the child is gone.
const Exited = "exited"
