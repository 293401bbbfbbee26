//go:build unix

package main

import (
	"testing"
	"time"

	"github.com/fencelock/fencelock/examples/internal/process"
	"github.com/stretchr/testify/require"
)

func TestLedgerFindsOverlaps(t *testing.T) {
	start := time.Now()
	// at is a round of who at that second, with a token for each of its terms.
	at := func(who, token string, seconds int) process.Report {
		return process.Report{Who: who, Event: leads, Token: token, At: start.Add(time.Duration(seconds) * time.Second)}
	}
	for name, c := range map[string]struct {
		reports []process.Report
		found   []string
	}{
		"nobody": {},
		"one after the other": {reports: []process.Report{
			at("A", "5.a", 0), at("A", "5.a", 3), at("B", "7.b", 4), at("B", "7.b", 6), at("A", "9.c", 7),
		}},
		"a report that was long on its way": {reports: []process.Report{
			at("A", "5.a", 0), at("B", "7.b", 4), at("A", "5.a", 3),
		}},
		"at the same moment": {
			reports: []process.Report{at("A", "5.a", 0), at("A", "5.a", 4), at("B", "7.b", 4)},
			found:   []string{"A with token 5 still led 0s after B with token 7 had begun"},
		},
		"within": {
			reports: []process.Report{at("A", "5.a", 0), at("B", "7.b", 2), at("B", "7.b", 3), at("C", "8.c", 4), at("A", "5.a", 6)},
			found: []string{
				"A with token 5 still led 4s after B with token 7 had begun",
				"A with token 5 still led 2s after C with token 8 had begun",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var l ledger
			for _, r := range c.reports {
				l.record(r)
			}
			require.Equal(t, c.found, l.overlaps())
		})
	}
}
