package fencetest

import (
	"context"
	"fmt"
)

// tb is what a rule needs of a *testing.T. It is an interface of our own, because
// testing.TB cannot be implemented, and the kit's own tests must see a rule fail
// without failing themselves.
type tb interface {
	Helper()
	Context() context.Context
	Logf(format string, args ...any)
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// rule is one subtest of Run. Its check gets a resource that nobody has used, and
// uses one scope, one key and tokens of one length except where the rule is about
// those, so that what is broken fails the rule that is meant for it and few others.
type rule struct {
	name   string
	proves string // completes "it is not proved that …"
	needs  need   // what the resource must have beside Write and Read
	check  func(t tb, r Resource)
}

// need is an optional function of a Resource.
type need string

const (
	needsUpdate     need = "Update"
	needsAdvance    need = "Advance"
	needsDelete     need = "Delete"
	needsReopen     need = "Reopen"
	needsExpire     need = "Expire"
	needsLoseAnswer need = "LoseAnswer"
)

func (n need) metBy(r Resource) bool {
	switch n {
	case needsUpdate:
		return r.Update != nil
	case needsAdvance:
		return r.Advance != nil
	case needsDelete:
		return r.Delete != nil
	case needsReopen:
		return r.Reopen != nil
	case needsExpire:
		return r.Expire != nil
	case needsLoseAnswer:
		return r.LoseAnswer != nil
	}
	return true
}

// run checks the rule, or says why it was skipped.
func (c rule) run(t tb, r Resource) (skipped string) {
	t.Helper()
	if r.Write == nil || r.Read == nil {
		t.Fatalf("fencetest: the Resource needs Write and Read; no rule can be checked without them")
	}
	if !c.needs.metBy(r) {
		return fmt.Sprintf("fencetest: the Resource has no %s, so it is not proved that %s", c.needs, c.proves)
	}
	c.check(t, r)
	return ""
}

// rules are all rules, the plain ones first: where several fail, the first says most.
var rules = []rule{
	{"NewerPasses", "a newer token passes", "", newerPasses},
	{"StaleRefused", "a stale token is refused", "", staleRefused},
	{"SameHolderPasses", "a holder can write many times", "", sameHolderPasses},
	{"OtherHolderRefused", "an equal number of another holder is refused", "", otherHolderRefused},
	{"NoTokenRefused", "the zero Token is refused", "", noTokenRefused},
	{"RefusalNotSticky", "a refusal leaves the mark as it was", "", refusalNotSticky},
	{"ScopeCoversAllKeys", "one mark guards all keys of a scope", "", scopeCoversAllKeys},
	{"ScopesIndependent", "each scope has a mark of its own", "", scopesIndependent},
	{"ScopeNames", "different names are different scopes", "", scopeNames},
	{"HolderText", "holders are told apart by every character", "", holderText},
	{"ExactNumbers", "numbers are compared exactly", "", exactNumbers},
	{"RetryPasses", "a write can be repeated after its context ended in the middle of it", "", retryPasses},
	{"UnknownOutcome", "a write without an answer is no refusal and can be repeated", needsLoseAnswer, unknownOutcome},
	{"ContextEnded", "a call with an ended context is applied only if it says so", "", contextEnded},
	{"UpdateFenced", "Update is fenced", needsUpdate, updateFenced},
	{"UpdateFails", "an Update whose callback fails stores nothing", needsUpdate, updateFails},
	{"UpdateReadsInside", "no update is lost between the read and the write of Update", needsUpdate, updateReadsInside},
	{"AdvanceFenced", "Advance refuses what Write refuses", needsAdvance, advanceFenced},
	{"AdvanceBeforeRead", "nothing of an earlier holder is applied after Advance", needsAdvance, advanceBeforeRead},
	{"DeleteFenced", "Delete is fenced", needsDelete, deleteFenced},
	{"MarkSurvivesDelete", "the mark outlives the data", needsDelete, markSurvivesDelete},
	{"MarkSurvivesReopen", "the mark is durable", needsReopen, markSurvivesReopen},
	{"MarkSurvivesExpire", "the mark does not go with time", needsExpire, markSurvivesExpire},
	{"AtomicCheck", "check and effect are one step", "", atomicCheck},
}
