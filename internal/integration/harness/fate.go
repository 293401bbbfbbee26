package harness

// Fate is what becomes of one call. The zero value is [Pass].
type Fate struct {
	kind fate
	err  error // nil: the caller hears nothing until its context ends
	held *Held
}

type fate int

const (
	pass fate = iota
	loseRequest
	loseReply
	hold
	holdReply
)

// Pass lets the call be.
func Pass() Fate { return Fate{} }

// LoseRequest never sends the request. The call fails with err, or, if that is
// nil, blocks until its context ends.
func LoseRequest(err error) Fate { return Fate{kind: loseRequest, err: err} }

// LoseReply has etcd execute the request, whatever becomes of the caller
// meanwhile, and loses the answer. The call fails with err when it was
// answered, or, if err is nil, blocks until its context ends.
func LoseReply(err error) Fate { return Fate{kind: loseReply, err: err} }

// Hold keeps the request in the network until it is released, and sends it
// then, also if the caller has given up by that time; the caller's context
// reaches only the caller. A caller that still waits gets the answer.
func Hold(h *Held) Fate { return Fate{kind: hold, held: h} }

// HoldReply has etcd execute the request now, and delivers the answer when it
// is released, if the caller still waits.
func HoldReply(h *Held) Fate { return Fate{kind: holdReply, held: h} }
