package harness

import (
	"bytes"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Event is one thing a child process said with [Child.Emit].
type Event struct {
	Name string
	Text string
	// Sent is when the child said it, by the wall clock both processes share.
	Sent time.Time
	// Received is when it was read here, with a monotonic reading.
	Received time.Time
}

// Fields returns the words of the event's text.
func (e Event) Fields() []string { return strings.Fields(e.Text) }

// eventLog is the standard output of a child, parsed and remembered.
type eventLog struct {
	mu      sync.Mutex
	partial []byte
	events  []Event
	seen    map[string]int // by name, up to where next has looked
	changed chan struct{}  // closed at the next event
}

func newEventLog() *eventLog {
	return &eventLog{seen: map[string]int{}, changed: make(chan struct{})}
}

// Write takes what the child wrote, in pieces of any size.
func (l *eventLog) Write(b []byte) (int, error) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.partial = append(l.partial, b...)
	for {
		line, rest, ok := bytes.Cut(l.partial, []byte("\n"))
		if !ok {
			return len(b), nil
		}
		l.events = append(l.events, parseEvent(string(line), now))
		l.partial = rest
		close(l.changed)
		l.changed = make(chan struct{})
	}
}

func parseEvent(line string, received time.Time) Event {
	sent, rest, _ := strings.Cut(line, " ")
	name, text, _ := strings.Cut(rest, " ")
	e := Event{Name: name, Text: text, Received: received}
	if ns, err := strconv.ParseInt(sent, 10, 64); err == nil {
		e.Sent = time.Unix(0, ns)
	}
	return e
}

// next returns the first event of that name it has not returned yet. Without
// one, more is closed when there is another event to look at.
func (l *eventLog) next(name string) (e Event, ok bool, more <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := l.seen[name]; i < len(l.events); i++ {
		if l.events[i].Name == name {
			l.seen[name] = i + 1
			return l.events[i], true, nil
		}
	}
	l.seen[name] = len(l.events)
	return Event{}, false, l.changed
}

func (l *eventLog) all() []Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]Event(nil), l.events...)
}

// tail is the last part of the standard error of a child.
type tail struct {
	mu   sync.Mutex
	text []byte
}

const tailSize = 32 << 10

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b...)
	if over := len(t.text) - tailSize; over > 0 {
		t.text = append(t.text[:0], t.text[over:]...)
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.text)
}
