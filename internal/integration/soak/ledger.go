package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// ledger keeps the history of a run, in memory and in a file, and what is to be
// known of it while the run goes on.
type ledger struct {
	origin time.Duration // by now

	mu      sync.Mutex
	file    *os.File
	out     *bufio.Writer
	err     error // of writing
	records []record
	now     map[phase]*standing
}

// standing is what is known of a phase while it runs.
type standing struct {
	acknowledged, refused, unknown, losses, faults int

	holder  string // who was last granted the lock and has not ended
	acked   []string
	last    string // fault
	pending map[opKey]record
}

func newLedger(path string) (*ledger, error) {
	file, err := os.Create(path)
	if err != nil {
		return nil, fmt.Errorf("soak: creating the history's file: %w", err)
	}
	return &ledger{
		origin: now(), file: file, out: bufio.NewWriter(file),
		now: map[phase]*standing{
			control: {pending: map[opKey]record{}},
			trial:   {pending: map[opKey]record{}},
		},
	}, nil
}

// clock is the time since the run began.
func (l *ledger) clock() time.Duration { return now() - l.origin }

// add adds a record whose times count from the beginning of the run. One
// without a time is of this moment.
func (l *ledger) add(r record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.At == 0 {
		r.At = l.clock()
	}
	l.records = append(l.records, r)
	if line, err := json.Marshal(r); err != nil {
		panic(err) // strings and numbers marshal
	} else if _, err := l.out.Write(append(line, '\n')); err != nil && l.err == nil {
		l.err = err
	}
	if s := l.now[r.Phase]; s != nil {
		s.take(r)
	}
}

func (s *standing) take(r record) {
	switch key := (opKey{r.Worker, r.Op}); r.Kind {
	case invoked:
		s.pending[key] = r
	case returned:
		asked := s.pending[key]
		delete(s.pending, key)
		switch {
		case r.Outcome == unknown:
			s.unknown++
		case r.Outcome == refused:
			s.refused++
		case r.Outcome == done && (asked.Act == write || asked.Act == overwrite):
			s.acknowledged++
			s.acked = append(s.acked, asked.Element)
		}
	case granted:
		s.holder = r.Worker
	case told:
		s.losses++
	case ended:
		delete(s.pending, key)
		if s.holder == r.Worker {
			s.holder = ""
		}
	case struck:
		s.faults++
		s.last = r.Note
	}
}

// standing returns how a phase stands.
func (l *ledger) standing(p phase) standing {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := *l.now[p]
	s.acked = append([]string(nil), s.acked...)
	s.pending = nil
	return s
}

// close writes out the rest of the file, and returns all records.
func (l *ledger) close() ([]record, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, err := range []error{l.out.Flush(), l.file.Close()} {
		if l.err == nil {
			l.err = err
		}
	}
	if l.err != nil {
		return nil, fmt.Errorf("soak: writing the history: %w", l.err)
	}
	return l.records, nil
}

// readHistory reads what a ledger wrote.
func readHistory(path string) ([]record, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("soak: opening the history: %w", err)
	}
	defer func() { _ = file.Close() }()
	var records []record
	d := json.NewDecoder(bufio.NewReader(file))
	for {
		var r record
		switch err := d.Decode(&r); err {
		case nil:
			records = append(records, r)
		case io.EOF:
			return records, nil
		default:
			return nil, fmt.Errorf("soak: line %d of the history: %w", len(records)+1, err)
		}
	}
}
