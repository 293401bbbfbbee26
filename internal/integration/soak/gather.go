package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"
)

// opKey finds the invocation of an answer.
type opKey struct {
	worker string
	op     int
}

// gathering puts a history together.
type gathering struct {
	*history
	acquires map[opKey]record
	requests map[opKey]*request
	holds    map[opKey]*tenure
	shelves  map[string]*shelf

	robbedKeys   map[int64]time.Duration
	robbedLeases map[string]time.Duration
	staleLeaders []span
}

// gather puts together the records of one phase.
func gather(records []record, p phase) (*history, error) {
	g := &gathering{
		history:      newHistory(),
		acquires:     map[opKey]record{},
		requests:     map[opKey]*request{},
		holds:        map[opKey]*tenure{},
		shelves:      map[string]*shelf{},
		robbedKeys:   map[int64]time.Duration{},
		robbedLeases: map[string]time.Duration{},
	}
	for i, r := range records {
		if r.Phase != p {
			continue
		}
		if err := g.take(r); err != nil {
			return nil, fmt.Errorf("soak: record %d of the history, %q: %w", i+1, r.Kind, err)
		}
	}
	g.finish()
	return g.history, nil
}

func (g *gathering) take(r record) error {
	switch r.Kind {
	case invoked, returned:
		return g.takeRequest(r)
	case granted, looked, told, ended:
		return g.takeHold(r)
	case finalValue, decided:
		return g.takeRegister(r)
	case stalled:
		g.stalls[r.Worker] = append(g.stalls[r.Worker], span{r.From, r.At})
	case deleted:
		g.deletions[r.Revision] = r.At
	case foreign:
		switch {
		case r.Lease != "":
			g.robbedLeases[r.Lease] = r.At
		case r.Revision != 0:
			g.robbedKeys[r.Revision] = r.At
		default:
			g.staleLeaders = append(g.staleLeaders, span{r.From, r.At})
		}
	case leftBehind:
		if r.Left == nil {
			return errors.New("it does not say what is left")
		}
		g.left = g.left.plus(*r.Left)
		if r.Note != "" {
			g.trouble = append(g.trouble, fmt.Sprintf("%s could not close: %s", r.Worker, r.Note))
		}
	case died:
		g.trouble = append(g.trouble, fmt.Sprintf("%s ended by itself: %s", r.Worker, r.Note))
	case workingTime:
		g.from, g.to = r.From, r.At
	case struck:
		g.faults++
	case healed:
	default:
		return errors.New("there is no such kind")
	}
	return nil
}

func (g *gathering) takeRequest(r record) error {
	key := opKey{r.Worker, r.Op}
	if r.Kind == invoked {
		if r.Act == acquire {
			g.acquires[key] = r
			return nil
		}
		token, err := parseStamp(r.Token)
		if err != nil {
			return err
		}
		q := &request{record: r, answered: never, outcome: unknown, token: token}
		g.requests[key] = q
		g.history.requests = append(g.history.requests, q)
		return nil
	}
	if _, ok := g.acquires[key]; ok {
		g.unlocked++
		if r.Outcome == bad {
			g.trouble = append(g.trouble, fmt.Sprintf("%s could not acquire: %s", r.Worker, r.Note))
		}
		return nil
	}
	q := g.requests[key]
	if q == nil {
		return errors.New("nothing was asked")
	}
	var err error
	if q.highest, err = parseStamp(r.Highest); err != nil {
		return err
	}
	q.outcome, q.value = r.Outcome, r.Value
	if r.Outcome != unknown { // else it may still happen
		q.answered = r.At
	}
	return nil
}

func (g *gathering) takeHold(r record) error {
	key := opKey{r.Worker, r.Op}
	if r.Kind == granted {
		asked, ok := g.acquires[key]
		if !ok {
			return errors.New("nobody acquired")
		}
		token, err := parseStamp(r.Token)
		if err != nil {
			return err
		}
		k := &tenure{worker: r.Worker, token: token, invoked: asked.At, granted: r.At, told: never, ended: never}
		g.holds[key] = k
		g.history.holds = append(g.history.holds, k)
		return nil
	}
	k := g.holds[key]
	if k == nil {
		return errors.New("nothing was granted")
	}
	switch r.Kind {
	case looked:
		if r.Alive {
			k.alive = r.At
		}
	case told:
		k.told, k.reason = r.At, r.Reason
	case ended:
		k.ended, k.kept = r.At, r.Outcome == done || r.Outcome == given
		if r.Outcome == bad {
			g.trouble = append(g.trouble, fmt.Sprintf("%s, token %s: %s", r.Worker, k.token, r.Note))
		}
	}
	return nil
}

func (g *gathering) takeRegister(r record) error {
	if r.Kind == finalValue {
		s := &shelf{name: r.Register, value: r.Value, readFrom: r.From, readTo: r.At}
		g.shelves[r.Register] = s
		g.registers = append(g.registers, s)
		return nil
	}
	s := g.shelves[r.Register]
	if s == nil || r.Entry == nil {
		return errors.New("it is about no register, or says nothing of it")
	}
	s.decisions = append(s.decisions, *r.Entry)
	return nil
}

// finish does what needs all records. Those of each worker are in order, those of
// several are not.
func (g *gathering) finish() {
	h := g.history
	slices.SortStableFunc(h.requests, func(a, b *request) int { return cmp.Compare(a.At, b.At) })
	slices.SortStableFunc(h.holds, func(a, b *tenure) int { return cmp.Compare(a.granted, b.granted) })
	var peak int64
	for _, k := range h.holds {
		peak = max(peak, k.token.revision)
		h.peaks = append(h.peaks, peak)
		k.robber = g.robberOf(k)
	}
}

// robberOf returns who took a hold's key: the nemesis, if it set out to while
// the key was there and in use, or else a stale leader.
func (g *gathering) robberOf(k *tenure) string {
	gone, isGone := g.deletions[k.token.revision]
	for _, at := range []time.Duration{
		orNever(g.robbedKeys, k.token.revision), orNever(g.robbedLeases, leaseOf(k.token.holder)),
	} {
		if at < k.ended && (!isGone || at < gone) {
			return byNemesis
		}
	}
	if isGone && !k.kept && slices.ContainsFunc(g.staleLeaders, func(s span) bool { return s.from <= gone && gone <= s.to }) {
		return byLeader
	}
	return ""
}

func orNever[K comparable](times map[K]time.Duration, key K) time.Duration {
	if at, ok := times[key]; ok {
		return at
	}
	return never
}
