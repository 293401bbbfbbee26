package main

import (
	"fmt"
	"math"
	"time"

	"github.com/anishathalye/porcupine"
)

// searchWithin bounds the search for an order of one register's requests.
const searchWithin = 5 * time.Second

// verdict is what the search found for one register.
type verdict struct {
	register string
	result   porcupine.CheckResult
	requests int
}

// linearize searches, for each register, for an order in which its requests
// could have been carried out one after the other, each between its sending and
// its answer, by a register with a fence.
func linearize(h *history) (verdicts []verdict) {
	steps := map[string][]porcupine.Operation{}
	for _, r := range h.requests {
		steps[r.Register] = append(steps[r.Register], r.steps()...)
	}
	for _, s := range h.registers {
		all := append(steps[s.name], porcupine.Operation{
			Input: step{act: read}, Output: answer{done, s.value, stamp{}},
			Call: int64(s.readFrom), Return: int64(s.readTo),
		})
		verdicts = append(verdicts, verdict{s.name, porcupine.CheckOperationsTimeout(register, all, searchWithin), len(all)})
	}
	return verdicts
}

// nonLinearizable says for which registers there is no such order. For one that
// could not be searched in time it says nothing; the table does.
func nonLinearizable(h *history) (found []string) {
	for _, v := range h.verdicts() {
		if v.result == porcupine.Illegal {
			found = append(found, fmt.Sprintf("no order explains the %d requests to %s and their answers", v.requests, v.register))
		}
	}
	return found
}

// step is what is done to a register at one moment.
type step struct {
	act   act
	token stamp
	value string // written
}

// behind is the second step of a claim: the read that is done at any time after
// the mark was raised.
const behind act = "read behind a claim"

// answer is what was said to a step.
type answer struct {
	outcome outcome
	value   string
	highest stamp
}

// steps returns what a request does, as the search needs it. One without an
// answer ends never: it may have its effect at the end of all times, which is
// not at all.
func (r *request) steps() []porcupine.Operation {
	if r.outcome == unsent {
		return nil
	}
	until := int64(r.answered)
	if r.answered == never {
		until = math.MaxInt64
	}
	one := func(a act, value string) porcupine.Operation {
		return porcupine.Operation{
			Input: step{a, r.token, value}, Output: answer{r.outcome, r.value, r.highest},
			Call: int64(r.At), Return: until,
		}
	}
	switch {
	case r.Act == claim && r.outcome == done:
		return []porcupine.Operation{one(claim, ""), one(behind, "")}
	case r.Act == read && r.outcome != done:
		return nil // it changed nothing and told nothing
	default:
		return []porcupine.Operation{one(r.Act, r.Value)}
	}
}

// shelfState is the state of a register: its value, and its fence's mark.
type shelfState struct {
	mark  stamp
	value string
}

// register is a register with a fence, as every fence is to behave.
var register = porcupine.Model{
	Init: func() any { return shelfState{} },
	Step: func(state, input, output any) (bool, any) {
		return state.(shelfState).take(input.(step), output.(answer))
	},
	Equal: func(a, b any) bool { return a == b },
}

func (s shelfState) take(in step, out answer) (possible bool, after shelfState) {
	after = s
	switch in.act {
	case read:
		return out.value == s.value, s
	case behind:
		// Nothing that is older than the claim can come behind it.
		return s.mark.revision >= in.token.revision && out.value == s.value, s
	case overwrite:
		after.value = in.value
		return true, after
	case claim, write:
		if !s.mark.admits(in.token) {
			return out.outcome == unknown || out.outcome == refused && out.highest == s.mark, s
		}
		after.mark = in.token
		if in.act == write {
			after.value = in.value
		}
		return out.outcome != refused, after
	}
	return false, s
}
