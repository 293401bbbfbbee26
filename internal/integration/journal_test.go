package integration

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
)

// journal records what a Locker tells its operator: every call of its hooks, as
// that hook's Info struct, and every line of its log, as a [slog.Record].
type journal struct {
	mu      sync.Mutex
	reports []any
	changed chan struct{} // closed at the next report
}

func newJournal() *journal { return &journal{changed: make(chan struct{})} }

func (j *journal) add(report any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.reports = append(j.reports, report)
	close(j.changed)
	j.changed = make(chan struct{})
}

func (j *journal) hooks() fencelock.Hooks {
	return fencelock.Hooks{
		Waited:            func(i fencelock.WaitedInfo) { j.add(i) },
		Acquired:          func(i fencelock.AcquiredInfo) { j.add(i) },
		NotAcquired:       func(i fencelock.NotAcquiredInfo) { j.add(i) },
		Renewed:           func(i fencelock.RenewedInfo) { j.add(i) },
		RenewalFailed:     func(i fencelock.RenewalFailedInfo) { j.add(i) },
		Lost:              func(i fencelock.LostInfo) { j.add(i) },
		ReturnedAfterLoss: func(i fencelock.ReturnedAfterLossInfo) { j.add(i) },
		Released:          func(i fencelock.ReleasedInfo) { j.add(i) },
		TokenUnused:       func(i fencelock.TokenUnusedInfo) { j.add(i) },
	}
}

func (j *journal) logger() *slog.Logger { return slog.New(journalHandler{j}) }

// journalHandler takes whole records: the library logs without groups and
// without attributes that are set once.
type journalHandler struct{ j *journal }

func (h journalHandler) Enabled(context.Context, slog.Level) bool { return true }
func (h journalHandler) WithAttrs([]slog.Attr) slog.Handler       { return h }
func (h journalHandler) WithGroup(string) slog.Handler            { return h }
func (h journalHandler) Handle(_ context.Context, r slog.Record) error {
	h.j.add(r.Clone())
	return nil
}

// look returns what was reported so far, and a channel that is closed when
// there is more.
func (j *journal) look() ([]any, <-chan struct{}) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clip(j.reports), j.changed
}

// reported returns the reports of one kind so far.
func reported[T any](j *journal) []T {
	reports, _ := j.look()
	return only[T](reports)
}

// awaitReports waits until there are n reports of one kind, and returns all of
// that kind.
func awaitReports[T any](t testing.TB, j *journal, n int, within time.Duration) []T {
	t.Helper()
	late := time.After(within)
	for {
		reports, changed := j.look()
		found := only[T](reports)
		if len(found) >= n {
			return found
		}
		select {
		case <-changed:
		case <-late:
			t.Fatalf("%d of %d reports of %T within %v; reported was:\n%+v", len(found), n, *new(T), within, reports)
		}
	}
}

func only[T any](reports []any) (found []T) {
	for _, r := range reports {
		if f, ok := r.(T); ok {
			found = append(found, f)
		}
	}
	return found
}

// attribute returns a log line's attribute as text.
func attribute(r slog.Record, key string) string {
	var text string
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == key {
			text = a.Value.String()
		}
		return text == ""
	})
	return text
}
