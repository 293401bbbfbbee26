package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fencelock/fencelock/internal/integration/resource"
)

// play writes histories down: every step is some milliseconds after the last.
type play struct {
	phase   phase
	at      time.Duration
	op      int
	records []record
	shelf   map[string]string
	history map[string][]resource.Entry
}

func newPlay(p phase) *play {
	return &play{phase: p, shelf: map[string]string{}, history: map[string][]resource.Entry{}}
}

func (p *play) add(r record) {
	p.at += 5 * time.Millisecond
	r.At, r.Phase = p.at, p.phase
	p.records = append(p.records, r)
}

func (p *play) ask(worker string, r record, o outcome, value string) {
	p.op++
	r.Kind, r.Worker, r.Op = invoked, worker, p.op
	p.add(r)
	p.add(record{Kind: returned, Worker: worker, Op: p.op, Outcome: o, Value: value})
}

// section is one that does all right. It adds an element named after its token.
func (p *play) section(worker string, revision int64) {
	token := stamp{revision, fmt.Sprintf("%x-r-%d", revision*100, revision)}
	register := string(p.phase) + "-0"
	p.op++
	op := p.op
	p.add(record{Kind: invoked, Worker: worker, Op: op, Act: acquire})
	p.add(record{Kind: granted, Worker: worker, Op: op, Token: token.String()})
	p.add(record{Kind: looked, Worker: worker, Op: op, Alive: true})
	p.ask(worker, record{Act: claim, Register: register, Token: token.String()}, done, p.shelf[register])
	p.history[register] = append(p.history[register],
		resource.Entry{Op: resource.OpClaim, Revision: revision, Holder: token.holder})
	p.add(record{Kind: looked, Worker: worker, Op: op, Alive: true})
	element := fmt.Sprint("e", revision)
	p.shelf[register] = withElement(p.shelf[register], element)
	p.ask(worker, record{
		Act: write, Register: register, Token: token.String(), Value: p.shelf[register], Element: element,
	}, done, "")
	p.history[register] = append(p.history[register],
		resource.Entry{Op: resource.OpWrite, Revision: revision, Holder: token.holder, Value: p.shelf[register]})
	p.add(record{Kind: deleted, Revision: revision, Lease: leaseOf(token.holder)})
	p.add(record{Kind: ended, Worker: worker, Op: op, Outcome: done})
}

// end closes the phase.
func (p *play) end() []record {
	p.add(record{Kind: workingTime, From: time.Nanosecond})
	for register, value := range p.shelf {
		p.add(record{Kind: finalValue, Register: register, From: p.at, Value: value})
		for _, e := range p.history[register] {
			p.add(record{Kind: decided, Register: register, Entry: &e})
		}
	}
	p.add(record{Kind: leftBehind, Left: &left{}})
	return p.records
}

// soundHistory is one in which nothing is wrong, and the control lost an update.
func soundHistory(s strategy) []record {
	c := newPlay(control)
	c.section("c1", 2)
	c.section("c2", 3)
	c.shelf["control-0"] = "e3"
	p := newPlay(trial)
	for i := range 4 {
		p.section(fmt.Sprint("t", 1+i%2), int64(10+3*i))
	}
	begin := record{Kind: runBegan, Run: &about{Seed: 1, Strategy: s, TTL: ttl, Margin: margin}}
	return slices.Concat([]record{begin}, c.end(), p.end())
}

// replay has a history checked from its file, as a user does.
func replay(t *testing.T, records []record) (status int, out string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "history.jsonl")
	var file bytes.Buffer
	for _, r := range records {
		require.NoError(t, json.NewEncoder(&file).Encode(r))
	}
	require.NoError(t, os.WriteFile(path, file.Bytes(), 0o600))
	var all bytes.Buffer
	status = command(t.Context(), []string{"-replay", path}, &all, &all)
	return status, all.String()
}

func TestReplayOfASoundHistory(t *testing.T) {
	for _, s := range strategies {
		status, out := replay(t, soundHistory(s))
		require.Equal(t, statusPassed, status, out)
		require.NotContains(t, out, "VIOLATION")
		require.NotContains(t, out, "not true")
		require.Contains(t, out, "operations acknowledged")
	}
}

// find returns the n-th record of the trial that is as wanted.
func find(t *testing.T, records []record, n int, wanted func(r record) bool) *record {
	t.Helper()
	for i := range records {
		if r := &records[i]; r.Phase == trial && wanted(*r) {
			if n--; n == 0 {
				return r
			}
		}
	}
	t.Fatal("no such record")
	return nil
}

func is(k kind) func(record) bool { return func(r record) bool { return r.Kind == k } }

func asks(a act) func(record) bool {
	return func(r record) bool { return r.Kind == invoked && r.Act == a }
}

// TestReplayFindsViolations plants one violation after the other in a history
// that is sound otherwise. Each is found, in the file alone, under its name.
func TestReplayFindsViolations(t *testing.T) {
	const (
		gone     = "acknowledged updates are there in the end"
		stale    = "the resource applied nothing stale"
		invented = "nothing is there that nobody wrote"
		linear   = "the registers are linearizable, and their fences"
		rise     = "tokens rise"
		told1st  = "a holder is told before its key is gone"
		alone    = "no two believe to hold the lock at once"
		still    = "the lock never stands still"
		explain  = "nothing fails that no fault explains"
		behind   = "nothing is left behind"
	)
	answerTo := func(t *testing.T, all []record, n int, a act) *record {
		asked := find(t, all, n, asks(a))
		return find(t, all, 1, func(r record) bool { return r.Kind == returned && r.Op == asked.Op })
	}
	for name, c := range map[string]struct {
		plant func(t *testing.T, all []record) []record
		found []string
	}{
		"an update that is lost": {
			plant: func(t *testing.T, all []record) []record {
				find(t, all, 1, is(finalValue)).Value = "e10 e13 e19"
				return all
			},
			found: []string{gone, linear},
		},
		"an update from nowhere, and one twice": {
			plant: func(t *testing.T, all []record) []record {
				find(t, all, 1, is(finalValue)).Value += " e99 e10"
				return all
			},
			found: []string{invented, linear},
		},
		"a stale write that was applied": {
			plant: func(t *testing.T, all []record) []record {
				e := resource.Entry{Op: resource.OpWrite, Revision: 13, Holder: "x"}
				r := *find(t, all, 4, is(decided))
				r.Entry = &e
				at := 1 + slices.IndexFunc(all, func(r record) bool {
					return r.Phase == trial && r.Kind == decided && r.Entry.Revision == 16
				})
				return slices.Insert(all, at, r)
			},
			found: []string{stale},
		},
		"a read of what was overwritten": {
			plant: func(t *testing.T, all []record) []record {
				answerTo(t, all, 3, claim).Value = "e10"
				return all
			},
			found: []string{linear},
		},
		"a write let pass behind a newer claim": {
			plant: func(t *testing.T, all []record) []record {
				// The first write is sent by the time of the third claim's answer.
				asked, answered := find(t, all, 1, asks(write)), answerTo(t, all, 1, write)
				late := answerTo(t, all, 3, claim).At + time.Millisecond
				asked.At, answered.At = late, late+time.Microsecond
				return all
			},
			found: []string{linear},
		},
		"a write refused for no reason": {
			plant: func(t *testing.T, all []record) []record {
				r := answerTo(t, all, 4, write)
				r.Outcome, r.Highest = refused, "19.x"
				return all
			},
			found: []string{linear},
		},
		"a token that falls": {
			plant: func(t *testing.T, all []record) []record {
				find(t, all, 3, is(granted)).Token = "12.x"
				return all
			},
			found: []string{rise, alone},
		},
		"a token that was there before": {
			plant: func(t *testing.T, all []record) []record {
				find(t, all, 3, is(granted)).Token = find(t, all, 2, is(granted)).Token
				return all
			},
			found: []string{rise, told1st},
		},
		"a look that finds the lock held after its key is gone": {
			plant: func(t *testing.T, all []record) []record {
				find(t, all, 2, is(deleted)).At -= 22 * time.Millisecond
				return all
			},
			found: []string{told1st},
		},
		"a holder told after its key is gone": {
			plant: func(t *testing.T, all []record) []record {
				key, end := find(t, all, 2, is(deleted)), find(t, all, 2, is(ended))
				return append(all, record{
					Kind: told, Phase: trial, Worker: end.Worker, Op: end.Op, At: key.At + time.Millisecond, Reason: "expired",
				})
			},
			found: []string{told1st},
		},
		"two holders at once": {
			plant: func(t *testing.T, all []record) []record {
				next := find(t, all, 3, is(granted))
				next.At = find(t, all, 3, is(looked)).At - time.Millisecond
				return all
			},
			found: []string{alone},
		},
		"a lock that stands still": {
			plant: func(t *testing.T, all []record) []record {
				for i := range all {
					if r := &all[i]; r.Phase == trial && (r.Kind == workingTime || r.Kind == finalValue) {
						r.At += time.Minute
					}
				}
				return all
			},
			found: []string{still},
		},
		"an error that nothing explains": {
			plant: func(t *testing.T, all []record) []record {
				find(t, all, 1, is(ended)).Outcome = bad
				return all
			},
			found: []string{explain},
		},
		"a worker that died": {
			plant: func(t *testing.T, all []record) []record {
				return append(all, record{Kind: died, Phase: trial, Worker: "t1", Note: "panic"})
			},
			found: []string{explain},
		},
		"a key left behind": {
			plant: func(t *testing.T, all []record) []record {
				find(t, all, 1, is(leftBehind)).Left = &left{Keys: 1}
				return all
			},
			found: []string{behind},
		},
	} {
		t.Run(name, func(t *testing.T) {
			status, out := replay(t, c.plant(t, soundHistory(fenced)))
			require.Equal(t, statusViolated, status, out)
			var found []string
			for line := range strings.Lines(out) {
				if what, ok := strings.CutPrefix(line, "VIOLATION: not true: "); ok {
					what, _, _ = strings.Cut(what, " (")
					found = append(found, what)
				}
			}
			require.ElementsMatch(t, c.found, found, out)
		})
	}
}

// What only a fence can promise is shown, and no violation, where there is none.
func TestReplayOfDamageWithoutAFence(t *testing.T) {
	for _, s := range []strategy{advisory, peer} {
		all := soundHistory(s)
		all = slices.DeleteFunc(all, func(r record) bool {
			return r.Phase == trial && r.Kind == decided && r.Entry.Op == resource.OpWrite && r.Entry.Revision == 19
		})
		for i := range all {
			r := &all[i]
			if r.Phase != trial {
				continue
			}
			// The last holder's update, written by the first, late.
			if r.Kind == finalValue {
				r.Value = "e10"
			}
			if r.Act == claim {
				r.Act = read
			}
			if r.Act == write {
				r.Act = overwrite
			}
		}
		last := find(t, all, 1, func(r record) bool { return r.Kind == invoked && r.Element == "e19" })
		last.Value = "e10"
		status, out := replay(t, all)
		require.Equal(t, statusPassed, status, out)
		require.Contains(t, out, fmt.Sprintf("not true of %s, which does not promise it: acknowledged updates are there", s))
		require.NotContains(t, out, "VIOLATION")
	}
}

// Where the nemesis or a stale leader took the key, nobody could be told before,
// and a stopped process cannot be told at all.
func TestReplayExcusesWhatNobodyCouldTell(t *testing.T) {
	toldLate := func(t *testing.T, all []record) ([]record, *record) {
		key, end := find(t, all, 2, is(deleted)), find(t, all, 2, is(ended))
		key.At -= 22 * time.Millisecond
		end.Outcome = lost
		return append(all, record{
			Kind: told, Phase: trial, Worker: end.Worker, Op: end.Op, At: end.At - time.Millisecond, Reason: "deleted",
		}), key
	}
	for name, c := range map[string]struct {
		excuse func(key *record) record
		taken  string
	}{
		"a deleted key": {
			excuse: func(key *record) record { return record{Kind: foreign, Revision: key.Revision, At: key.At - 1} },
			taken:  "1, 0",
		},
		"a revoked lease": {
			excuse: func(key *record) record { return record{Kind: foreign, Lease: key.Lease, At: key.At - 1} },
			taken:  "1, 0",
		},
		"a leader that was stopped": {
			excuse: func(key *record) record {
				return record{Kind: foreign, From: key.At - time.Millisecond, At: key.At + time.Millisecond}
			},
			taken: "0, 1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			all, key := toldLate(t, soundHistory(fenced))
			r := c.excuse(key)
			r.Phase = trial
			status, out := replay(t, append(all, r))
			require.Equal(t, statusPassed, status, out)
			require.Contains(t, out, "holds taken by the nemesis, by a stale leader  "+c.taken)

			// It is no excuse for what happened before.
			r.At += time.Hour
			if r.From != 0 {
				r.From += time.Hour
			}
			status, out = replay(t, append(all, r))
			require.Equal(t, statusViolated, status, out)
		})
	}
	t.Run("a process that did not run", func(t *testing.T) {
		all := soundHistory(fenced)
		key, end := find(t, all, 2, is(deleted)), find(t, all, 2, is(ended))
		all = append(all,
			record{Kind: told, Phase: trial, Worker: end.Worker, Op: end.Op, At: key.At + time.Millisecond, Reason: "expired"},
			record{Kind: stalled, Phase: trial, Worker: end.Worker, From: key.At - 2*time.Millisecond, At: key.At})
		status, out := replay(t, all)
		require.Equal(t, statusPassed, status, out)

		// What does run and looks must not find the lock held.
		find(t, all, 4, is(looked)).At = key.At + 1
		status, out = replay(t, all)
		require.Equal(t, statusViolated, status, out)
	})
}

func TestReplayOfAControlThatLostNothing(t *testing.T) {
	all := soundHistory(fenced)
	for i := range all {
		if all[i].Phase == control && all[i].Kind == finalValue {
			all[i].Value = "e2 e3"
		}
	}
	status, out := replay(t, all)
	require.Equal(t, statusViolated, status)
	require.Contains(t, out, "the control lost nothing")
}

func TestReplayOfNoHistory(t *testing.T) {
	all := soundHistory(fenced)
	cut := slices.IndexFunc(all, func(r record) bool { return r.Phase == trial && r.Kind == workingTime })
	status, out := replay(t, all[:cut])
	require.Equal(t, statusViolated, status)
	require.Contains(t, out, "did not run to its end")

	for name, records := range map[string][]record{
		"nothing":               {},
		"no beginning":          all[1:],
		"an answer to nothing":  append(slices.Clone(all), record{Phase: trial, Kind: returned, Worker: "t9", Op: 1}),
		"a hold of nobody":      append(slices.Clone(all), record{Phase: trial, Kind: looked, Worker: "t9", Op: 1}),
		"an unknown kind":       append(slices.Clone(all), record{Phase: trial, Kind: "surprise"}),
		"a token that is none":  append(slices.Clone(all), record{Phase: trial, Kind: invoked, Act: write, Token: "seven"}),
		"a register of nothing": append(slices.Clone(all), record{Phase: trial, Kind: decided, Register: "r"}),
	} {
		status, out := replay(t, records)
		require.Equal(t, statusFailedToRun, status, name)
		require.Contains(t, out, "soak: ", name)
	}
	var errs bytes.Buffer
	require.Equal(t, statusFailedToRun, command(t.Context(), []string{"-replay", filepath.Join(t.TempDir(), "none")}, &errs, &errs))
	require.Contains(t, errs.String(), "no such file")
}
