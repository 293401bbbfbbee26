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
	wrong  string // what goes wrong without it
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
	{"NewerPasses", "a newer token passes", "the first holder owns the resource for ever", "", newerPasses},
	{"StaleRefused", "a stale token is refused", "a late holder overwrites what its successor did", "", staleRefused},
	{"SameHolderPasses", "a holder can write many times", "a holder writes once, and its retry is called stale", "", sameHolderPasses},
	{"OtherHolderRefused", "an equal number of another holder is refused", "two owners of one number pass, after etcd was restored", "", otherHolderRefused},
	{"NoTokenRefused", "the zero Token is refused", "who forgets the token is the one that always passes", "", noTokenRefused},
	{"RefusalNotSticky", "a refusal leaves the mark as it was", "a refused request lowers the mark, or locks the holder out", "", refusalNotSticky},
	{"ScopeCoversAllKeys", "one mark guards all keys of a scope", "a late holder passes where nobody has written since", "", scopeCoversAllKeys},
	{"ScopesIndependent", "each scope has a mark of its own", "a lock's rightful holder is refused for that of another", "", scopesIndependent},
	{"ScopeNames", "different names are different scopes", "\"A\" and \"a\", \"a\" and \"a \" or two long names are one lock", "", scopeNames},
	{"HolderText", "holders are told apart by every character", "two holders that a collation or a column's length makes one", "", holderText},
	{"ExactNumbers", "numbers are compared exactly", "neighbours are equal past 2^53, or turn round past 2^31 or at 10", "", exactNumbers},
	{"RetryPasses", "a write can be repeated after its context ended in the middle of it", "a write cut off in the middle cannot be done again", "", retryPasses},
	{"UnknownOutcome", "a write without an answer is no refusal and can be repeated", "a lost answer is taken for a lost lock", needsLoseAnswer, unknownOutcome},
	{"ContextEnded", "a call with an ended context is applied only if it says so", "an error says that nothing was done, and it was", "", contextEnded},
	{"UpdateFenced", "Update is fenced", "one kind of statement forgets the fence", needsUpdate, updateFenced},
	{"UpdateFails", "an Update whose callback fails stores nothing", "a holder that stops in the middle has written all the same", needsUpdate, updateFails},
	{"UpdateReadsInside", "no update is lost between the read and the write of Update", "what an update read is not what it writes over", needsUpdate, updateReadsInside},
	{"AdvanceFenced", "Advance refuses what Write refuses", "a late holder's Advance locks its successor out", needsAdvance, advanceFenced},
	{"AdvanceBeforeRead", "nothing of an earlier holder is applied after Advance", "a late write lands between the new holder's read and write", needsAdvance, advanceBeforeRead},
	{"DeleteFenced", "Delete is fenced", "a late holder deletes what its successor wrote", needsDelete, deleteFenced},
	{"MarkSurvivesDelete", "the mark outlives the data", "deleting the data deletes the mark", needsDelete, markSurvivesDelete},
	{"MarkSurvivesReopen", "the mark is durable", "a restart lets the late holder in", needsReopen, markSurvivesReopen},
	{"MarkSurvivesExpire", "the mark does not go with time", "a holder need only be late enough", needsExpire, markSurvivesExpire},
	{"AtomicCheck", "check and effect are one step", "a holder stalled between check and effect writes over its successor", "", atomicCheck},
}
