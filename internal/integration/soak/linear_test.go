package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRegisterModel gives the model one step after the other. What it lets pass
// is what the search takes for right.
func TestRegisterModel(t *testing.T) {
	one, two, twin := stamp{1, "a"}, stamp{2, "b"}, stamp{2, "c"}
	for name, c := range map[string]struct {
		before   shelfState
		in       step
		out      answer
		possible bool
		after    shelfState
	}{
		"first claim": {in: step{act: claim, token: one}, out: answer{outcome: done}, possible: true, after: shelfState{mark: one}},
		"claim again": {
			before: shelfState{one, "v"}, in: step{act: claim, token: one}, out: answer{outcome: done},
			possible: true, after: shelfState{one, "v"},
		},
		"newer write": {
			before: shelfState{one, "v"}, in: step{write, two, "w"}, out: answer{outcome: done},
			possible: true, after: shelfState{two, "w"},
		},
		"newer write refused": {before: shelfState{one, "v"}, in: step{write, two, "w"}, out: answer{refused, "", one}},
		"stale write done":    {before: shelfState{two, "v"}, in: step{write, one, "w"}, out: answer{outcome: done}},
		"twin write done":     {before: shelfState{two, "v"}, in: step{write, twin, "w"}, out: answer{outcome: done}},
		"stale claim done":    {before: shelfState{two, "v"}, in: step{act: claim, token: one}, out: answer{outcome: done}},
		"stale write refused": {
			before: shelfState{two, "v"}, in: step{write, one, "w"}, out: answer{refused, "", two},
			possible: true, after: shelfState{two, "v"},
		},
		"refused for another mark": {before: shelfState{two, "v"}, in: step{write, one, "w"}, out: answer{refused, "", twin}},
		"unanswered newer write": {
			before: shelfState{one, "v"}, in: step{write, two, "w"}, out: answer{outcome: unknown},
			possible: true, after: shelfState{two, "w"},
		},
		"unanswered stale write": {
			before: shelfState{two, "v"}, in: step{write, one, "w"}, out: answer{outcome: unknown},
			possible: true, after: shelfState{two, "v"},
		},
		"read": {
			before: shelfState{two, "v"}, in: step{act: read}, out: answer{outcome: done, value: "v"},
			possible: true, after: shelfState{two, "v"},
		},
		"wrong read": {before: shelfState{two, "v"}, in: step{act: read}, out: answer{outcome: done, value: "w"}},
		"read behind a claim": {
			before: shelfState{two, "v"}, in: step{act: behind, token: one}, out: answer{outcome: done, value: "v"},
			possible: true, after: shelfState{two, "v"},
		},
		"read before the claim": {before: shelfState{one, "v"}, in: step{act: behind, token: two}, out: answer{outcome: done, value: "v"}},
		"overwrite, as if there were no fence": {
			before: shelfState{two, "v"}, in: step{overwrite, one, "w"}, out: answer{outcome: done},
			possible: true, after: shelfState{two, "w"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			possible, after := c.before.take(c.in, c.out)
			require.Equal(t, c.possible, possible)
			if possible {
				require.Equal(t, c.after, after)
			}
		})
	}
}
