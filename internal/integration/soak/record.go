package main

import (
	"time"

	"github.com/fencelock/fencelock/internal/integration/resource"
)

// record is one line of a history: something that happened, and when. What it
// leaves open does not apply to its kind.
type record struct {
	At   time.Duration `json:"at"`             // since the run began
	From time.Duration `json:"from,omitempty"` // when it began, for what has a length

	Kind   kind   `json:"kind"`
	Phase  phase  `json:"phase,omitempty"`
	Worker string `json:"worker,omitempty"`

	// Of what a worker asks: an invocation and its return have the worker and
	// the number in common.
	Op      int     `json:"op,omitempty"`
	Act     act     `json:"act,omitempty"`
	Outcome outcome `json:"outcome,omitempty"`

	Token    string `json:"token,omitempty"`
	Register string `json:"register,omitempty"`
	Value    string `json:"value,omitempty"`   // written, or read
	Element  string `json:"element,omitempty"` // what a write adds
	Highest  string `json:"highest,omitempty"` // the mark that a token was refused for

	Alive    bool            `json:"alive,omitempty"`    // of a look
	Reason   string          `json:"reason,omitempty"`   // of a loss
	Revision int64           `json:"revision,omitempty"` // the creation revision of a key
	Lease    string          `json:"lease,omitempty"`    // in hex, as keys have it
	Left     *left           `json:"left,omitempty"`
	Run      *about          `json:"run,omitempty"`
	Entry    *resource.Entry `json:"entry,omitempty"` // of the resource's own history
	Note     string          `json:"note,omitempty"`  // for people
}

// phase is a part of a run. Each has a lock and workers of its own.
type phase string

const (
	control phase = "control"
	trial   phase = "trial"
)

// kind is the kind of a record.
type kind string

const (
	runBegan    kind = "run"      // the first; what run it is
	invoked     kind = "invoked"  // a worker is about to send a request
	returned    kind = "returned" // and has its answer, or none
	granted     kind = "granted"  // a worker has the lock, says the library
	looked      kind = "looked"   // a worker looked whether it still has it
	told        kind = "told"     // it was told that it has not
	ended       kind = "ended"    // the call that ran the section returned
	stalled     kind = "stalled"  // a worker's process did not run, from when to when
	struck      kind = "fault"    // the nemesis did something
	healed      kind = "healed"   // and ended it
	foreign     kind = "foreign"  // it takes a key or a lease, or lets etcd do so from when to when
	deleted     kind = "deleted"  // a watch saw a lock's key disappear
	decided     kind = "decided"  // the resource's own history
	finalValue  kind = "final"    // what a register holds in the end
	leftBehind  kind = "left"     // what is there after everybody closed
	died        kind = "died"     // a worker's process ended by itself
	workingTime kind = "working"  // the phase, from when to when
)

// act is what a worker asks for.
type act string

const (
	acquire   act = "acquire"
	claim     act = "claim"
	read      act = "read"
	write     act = "write"
	overwrite act = "overwrite"
)

// outcome is what came of it.
type outcome string

const (
	done    outcome = "done"
	refused outcome = "refused" // by the fence
	unknown outcome = "unknown" // no answer: it happened, or will, or never
	unsent  outcome = "unsent"  // it never left, and has no effect
	failed  outcome = "failed"  // an acquire that got nothing; see the note

	// Of a section, what its call returned.
	lost        outcome = "lost"
	unconfirmed outcome = "unconfirmed"
	given       outcome = "given up" // ended without a write, by a context or the resource
	bad         outcome = "bad"      // what no fault explains
)

// left is what there is when nothing should be.
type left struct {
	Goroutines int `json:"goroutines,omitempty"`
	Keys       int `json:"keys,omitempty"`
	Leases     int `json:"leases,omitempty"`
}

func (l left) plus(m left) left {
	return left{l.Goroutines + m.Goroutines, l.Keys + m.Keys, l.Leases + m.Leases}
}

// about says what run a history is of.
type about struct {
	Seed     uint64        `json:"seed"`
	Strategy strategy      `json:"strategy"`
	Faults   []string      `json:"faults"`
	Duration time.Duration `json:"duration"`
	TTL      time.Duration `json:"ttl"`
	Margin   time.Duration `json:"margin"`
}
