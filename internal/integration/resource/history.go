package resource

import "time"

// Op is what is asked of a register.
type Op string

// What a [Client] asks.
const (
	OpClaim     Op = "claim"
	OpRead      Op = "read"
	OpWrite     Op = "write"
	OpOverwrite Op = "overwrite"
	OpHistory   Op = "history"
)

// Entry is one line of a register's history: a claim or a write.
type Entry struct {
	Op       Op        `json:"op"`
	Revision int64     `json:"revision"` // of the token it came with
	Holder   string    `json:"holder"`   // of the same
	Value    string    `json:"value,omitempty"`
	Refused  bool      `json:"refused,omitempty"` // by the fence; else it was applied
	At       time.Time `json:"at"`                // by the server's clock
}

// Stale returns the writes that were applied after a newer token had been seen.
// It goes by the tokens alone and takes no fence's word, so it judges fences
// too, and overwrites by the same measure.
//
// A claim changes no value, so an old one that was let pass is not counted. What
// it was to prevent is.
func Stale(history []Entry) (stale []Entry) {
	var newest Entry
	for _, e := range history {
		switch {
		case e.Refused:
		case e.Revision < newest.Revision, e.Revision == newest.Revision && e.Holder != newest.Holder:
			if e.Op != OpClaim {
				stale = append(stale, e)
			}
		default:
			newest = e
		}
	}
	return stale
}
