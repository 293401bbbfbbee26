package integration

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/namespace"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/etcdfence"
	"github.com/fencelock/fencelock/fencetest"
	"github.com/fencelock/fencelock/internal/integration/harness"
)

// TestEtcdFence runs on a real etcd. Each part has locks and keys of its own name.
func TestEtcdFence(t *testing.T) {
	harness.Parallel(t)
	b := newBench(t)
	for name, test := range map[string]func(*testing.T, *fencedEtcd){
		"the rule":                       etcdRule,
		"exact for every int64":          etcdExact,
		"deleted data keeps its mark":    etcdDeletedData,
		"own compares":                   etcdOwnCompares,
		"own compares of a stale token":  etcdStaleCompares,
		"the same key in both branches":  etcdBothBranches,
		"refused by etcd":                etcdRefused,
		"as many operations as fit":      etcdLimits,
		"the mark is not to be written":  etcdOverlap,
		"first writers at once":          etcdFirstWriters,
		"shuffled tokens":                etcdShuffled,
		"the reply is lost":              func(t *testing.T, e *fencedEtcd) { etcdLost(t, e, harness.LoseReply, 1) },
		"the request is lost":            func(t *testing.T, e *fencedEtcd) { etcdLost(t, e, harness.LoseRequest, 0) },
		"the context ends meanwhile":     etcdContextEnds,
		"the connection breaks":          etcdConnectionBreaks,
		"a request that comes late":      etcdLate,
		"damaged marks":                  etcdDamaged,
		"a mark sheds a lease":           etcdShedsLease,
		"a namespaced client":            etcdNamespaced,
		"marks of one name, kept apart":  etcdPrefixes,
		"nothing sent for what is known": etcdNothingSent,
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			test(t, &fencedEtcd{bench: b.part(t), lock: t.Name(), data: t.Name() + "/data/"})
		})
	}
}

// fencedEtcd is an etcd to fence, with a lock and keys that no other test has.
type fencedEtcd struct {
	*bench
	lock string
	data string // prefix of the protected keys
}

func (e *fencedEtcd) fence(t *testing.T, kv clientv3.KV, opts ...etcdfence.Option) *etcdfence.Fence {
	t.Helper()
	f, err := etcdfence.New(kv, opts...)
	require.NoError(t, err)
	return f
}

func (e *fencedEtcd) token(t *testing.T, revision int64, holder string) fencelock.Token {
	t.Helper()
	return etcdToken(t, e.lock, revision, holder)
}

func etcdToken(t *testing.T, name string, revision int64, holder string) fencelock.Token {
	t.Helper()
	token, err := fencelock.ParseToken(name, fmt.Sprintf("%d.%s", revision, holder))
	require.NoError(t, err)
	return token
}

func (e *fencedEtcd) put(value string) clientv3.Op { return clientv3.OpPut(e.data+"x", value) }

// write puts the protected value with that token.
func (e *fencedEtcd) write(ctx context.Context, f *etcdfence.Fence, token fencelock.Token, value string) error {
	_, err := f.Txn(ctx, token).Then(e.put(value)).Commit()
	return err
}

// value returns the protected value, "" if there is none, and how often it was put.
func (e *fencedEtcd) value(t *testing.T) (value string, version int64) {
	t.Helper()
	resp, err := e.clean.Get(t.Context(), e.data+"x")
	require.NoError(t, err)
	if len(resp.Kvs) == 0 {
		return "", 0
	}
	return string(resp.Kvs[0].Value), resp.Kvs[0].Version
}

func (e *fencedEtcd) requireValue(t *testing.T, want string) {
	t.Helper()
	got, _ := e.value(t)
	require.Equal(t, want, got)
}

func (e *fencedEtcd) markKey() string {
	return "fencelock-marks/" + strings.ReplaceAll(e.lock, "/", "%2F")
}

// putMark writes over the mark, as nobody should.
func (e *fencedEtcd) putMark(t *testing.T, value string, opts ...clientv3.OpOption) {
	t.Helper()
	_, err := e.clean.Put(t.Context(), e.markKey(), value, opts...)
	require.NoError(t, err)
}

func (e *fencedEtcd) requireMark(t *testing.T, want fencelock.Token) {
	t.Helper()
	got, err := e.fence(t, e.clean).Highest(t.Context(), e.lock)
	require.NoError(t, err)
	require.True(t, got.Equal(want), "the mark is %v, want %v", got, want)
}

func requireStaleAtEtcd(t *testing.T, err error, presented, highest fencelock.Token) {
	t.Helper()
	var stale *fencelock.StaleError
	require.ErrorAs(t, err, &stale)
	require.ErrorIs(t, err, fencelock.ErrStale)
	require.Equal(t, presented.Name(), stale.Scope)
	require.True(t, stale.Presented.Equal(presented), "presented: %v", stale.Presented)
	require.True(t, stale.Highest.Equal(highest), "highest: %v", stale.Highest)
	require.NotErrorIs(t, err, etcdfence.ErrUnknownOutcome)
}

func etcdRule(t *testing.T, e *fencedEtcd) {
	ctx := t.Context()
	f := e.fence(t, e.clean)
	older, newer, twin := e.token(t, 1, "old"), e.token(t, 2, "new"), e.token(t, 2, "twin")
	e.requireMark(t, fencelock.Token{})
	require.NoError(t, e.write(ctx, f, older, "1"))
	require.NoError(t, e.write(ctx, f, older, "2"), "the same holder writes many times")
	e.requireMark(t, older)
	require.NoError(t, e.write(ctx, f, newer, "3"))
	e.requireMark(t, newer)
	requireStaleAtEtcd(t, e.write(ctx, f, older, "late"), older, newer)
	requireStaleAtEtcd(t, e.write(ctx, f, twin, "late"), twin, newer)
	requireStaleAtEtcd(t, f.Advance(ctx, older), older, newer)
	e.requireValue(t, "3")
	require.NoError(t, e.write(ctx, f, newer, "4"))

	third := e.token(t, 3, "third")
	require.NoError(t, f.Advance(ctx, third))
	requireStaleAtEtcd(t, e.write(ctx, f, newer, "late"), newer, third)
	e.requireValue(t, "4")

	// Neither holders nor names that are prefixes of one another are mixed up.
	require.NoError(t, f.Advance(ctx, e.token(t, 9, "h")))
	requireStaleAtEtcd(t, f.Advance(ctx, e.token(t, 9, "h-")), e.token(t, 9, "h-"), e.token(t, 9, "h"))
	require.NoError(t, f.Advance(ctx, e.token(t, 10, "hh")))
	requireStaleAtEtcd(t, f.Advance(ctx, e.token(t, 10, "h")), e.token(t, 10, "h"), e.token(t, 10, "hh"))
	require.NoError(t, f.Advance(ctx, etcdToken(t, e.lock+"/", 1, "h")), "marks are independent")
	require.NoError(t, f.Advance(ctx, etcdToken(t, e.lock+"%2F", 2, "h")))
	highest, err := f.Highest(ctx, e.lock+"/")
	require.NoError(t, err)
	require.EqualValues(t, 1, highest.Revision())
}

func etcdExact(t *testing.T, e *fencedEtcd) {
	ctx := t.Context()
	f := e.fence(t, e.clean)
	var before fencelock.Token
	for _, revision := range []int64{
		1, 9, 10, 99, 100, 1<<31 - 1, 1 << 31, 1<<31 + 1,
		1<<53 - 1, 1 << 53, 1<<53 + 1, math.MaxInt64 - 1, math.MaxInt64,
	} {
		token := e.token(t, revision, "h"+strconv.FormatInt(revision, 10))
		require.NoError(t, e.write(ctx, f, token, token.String()), "%d", revision)
		require.NoError(t, e.write(ctx, f, token, token.String()), "%d", revision)
		e.requireMark(t, token)
		if !before.IsZero() {
			requireStaleAtEtcd(t, e.write(ctx, f, before, "late"), before, token)
		}
		twin := e.token(t, revision, "zz")
		requireStaleAtEtcd(t, e.write(ctx, f, twin, "late"), twin, token)
		e.requireValue(t, token.String())
		before = token
	}
}

// A fence that keeps its mark in the protected key, or compares that key's version,
// forgets it here.
func etcdDeletedData(t *testing.T, e *fencedEtcd) {
	ctx := t.Context()
	f := e.fence(t, e.clean)
	older, newer := e.token(t, 1, "old"), e.token(t, 2, "new")
	require.NoError(t, e.write(ctx, f, older, "1"))
	_, err := f.Txn(ctx, newer).Then(clientv3.OpDelete(e.data, clientv3.WithPrefix())).Commit()
	require.NoError(t, err)
	_, err = f.Txn(ctx, older).
		If(clientv3.Compare(clientv3.CreateRevision(e.data+"x"), "=", 0)).Then(e.put("late")).Commit()
	requireStaleAtEtcd(t, err, older, newer)
	e.requireValue(t, "")
}

// A compare that fails is no refusal: Else is applied, and the mark is raised.
func etcdOwnCompares(t *testing.T, e *fencedEtcd) {
	ctx := t.Context()
	f := e.fence(t, e.clean)
	first, second := e.token(t, 1, "a"), e.token(t, 2, "b")
	absent := clientv3.Compare(clientv3.CreateRevision(e.data+"x"), "=", 0)

	resp, err := f.Txn(ctx, first).If(absent).Then(e.put("then")).Else(e.put("else")).Commit()
	require.NoError(t, err)
	require.True(t, resp.Succeeded)
	e.requireValue(t, "then")
	got, err := e.clean.Get(ctx, e.data+"x")
	require.NoError(t, err)
	require.Equal(t, got.Kvs[0].ModRevision, resp.Header.Revision, "the header is the transaction's")

	resp, err = f.Txn(ctx, second).If(absent).Then(e.put("then again")).
		Else(clientv3.OpGet(e.data+"x"), clientv3.OpPut(e.data+"y", "else")).Commit()
	require.NoError(t, err)
	require.False(t, resp.Succeeded)
	require.Len(t, resp.Responses, 2, "the responses are the caller's only")
	require.Equal(t, "then", string(resp.Responses[0].GetResponseRange().Kvs[0].Value))
	require.NotNil(t, resp.Responses[1].GetResponsePut())
	e.requireValue(t, "then")
	e.requireMark(t, second)
	requireStaleAtEtcd(t, e.write(ctx, f, first, "late"), first, second)

	// Code that fills in a clientv3.Txn can be given a fenced one.
	fill := func(txn clientv3.Txn) (*clientv3.TxnResponse, error) { return txn.Then(e.put("filled")).Commit() }
	resp, err = fill(f.Txn(ctx, second))
	require.NoError(t, err)
	require.True(t, resp.Succeeded)
	e.requireValue(t, "filled")

	// The caller's compares may look at the mark, and see it as it was before.
	third := e.token(t, 3, "c")
	resp, err = f.Txn(ctx, third).
		If(clientv3.Compare(clientv3.Value(e.markKey()), "=", "0000000000000000002.b")).
		Then(clientv3.OpGet(e.markKey())).Commit()
	require.NoError(t, err)
	require.True(t, resp.Succeeded)
	require.Equal(t, "0000000000000000003.c", string(resp.Responses[0].GetResponseRange().Kvs[0].Value))
}

func etcdStaleCompares(t *testing.T, e *fencedEtcd) {
	ctx := t.Context()
	f := e.fence(t, e.clean)
	older, newer := e.token(t, 1, "old"), e.token(t, 2, "new")
	require.NoError(t, e.write(ctx, f, newer, "1"))
	for want, cmp := range map[string]clientv3.Cmp{
		"holds": clientv3.Compare(clientv3.Value(e.data+"x"), "=", "1"),
		"fails": clientv3.Compare(clientv3.Value(e.data+"x"), "=", "2"),
	} {
		resp, err := f.Txn(ctx, older).If(cmp).Then(e.put("then")).Else(e.put("else")).Commit()
		requireStaleAtEtcd(t, err, older, newer)
		require.Nil(t, resp, want)
	}
	e.requireValue(t, "1")
	e.requireMark(t, newer)
}

// What etcd allows of one transaction it allows of a fenced one.
func etcdBothBranches(t *testing.T, e *fencedEtcd) {
	ctx := t.Context()
	f := e.fence(t, e.clean)
	token := e.token(t, 1, "h")
	exists := clientv3.Compare(clientv3.CreateRevision(e.data+"x"), ">", 0)
	_, err := f.Txn(ctx, token).If(exists).Then(e.put("then")).Else(e.put("else")).Commit()
	require.NoError(t, err)
	e.requireValue(t, "else")
	_, err = f.Txn(ctx, token).If(exists).Then(clientv3.OpDelete(e.data, clientv3.WithPrefix())).Else(e.put("else")).Commit()
	require.NoError(t, err)
	e.requireValue(t, "")
	_, err = f.Txn(ctx, token).If(exists).Then(clientv3.OpDelete(e.data, clientv3.WithPrefix())).Else(e.put("again")).Commit()
	require.NoError(t, err)
	e.requireValue(t, "again")
	resp, err := f.Txn(ctx, token).
		Then(clientv3.OpTxn([]clientv3.Cmp{exists}, []clientv3.Op{e.put("nested")}, []clientv3.Op{e.put("not this")})).Commit()
	require.NoError(t, err)
	require.True(t, resp.Responses[0].GetResponseTxn().GetSucceeded())
	e.requireValue(t, "nested")
}

// A definite refusal is no unknown outcome, and leaves the mark as it was.
func etcdRefused(t *testing.T, e *fencedEtcd) {
	ctx := t.Context()
	w := e.wired()
	f := e.fence(t, w)
	first, second := e.token(t, 1, "a"), e.token(t, 2, "b")
	require.NoError(t, e.write(ctx, f, first, "1"))
	got, err := e.clean.Get(ctx, e.data+"x")
	require.NoError(t, err)
	old := got.Header.Revision - 1
	_, err = e.clean.Compact(ctx, got.Header.Revision)
	require.NoError(t, err)
	for want, op := range map[error]clientv3.Op{
		rpctypes.ErrDuplicateKey:  e.put("twice"),
		rpctypes.ErrEmptyKey:      clientv3.OpPut("", "v"),
		rpctypes.ErrKeyNotFound:   clientv3.OpPut(e.data+"never", "", clientv3.WithIgnoreValue()),
		rpctypes.ErrLeaseNotFound: clientv3.OpPut(e.data+"y", "v", clientv3.WithLease(4711)),
		rpctypes.ErrCompacted:     clientv3.OpGet(e.data+"x", clientv3.WithRev(old)),
		rpctypes.ErrFutureRev:     clientv3.OpGet(e.data+"x", clientv3.WithRev(math.MaxInt64)),
		rpctypes.ErrRequestTooLarge: clientv3.OpPut(e.data+"y",
			strings.Repeat("v", 1_600_000)), // etcd's own limit is 1.5 MiB
	} {
		_, err := f.Txn(ctx, second).Then(e.put("2"), op).Commit()
		require.ErrorIs(t, err, want)
		require.NotErrorIs(t, err, etcdfence.ErrUnknownOutcome, want)
		require.NotErrorIs(t, err, fencelock.ErrStale, want)
	}
	e.requireValue(t, "1")
	e.requireMark(t, first)
}

// etcdLimits: the numbers of WithMaxTxnOps are etcd's own. What fits by them is
// applied. One more is refused without a request; and by etcd, where the fence is
// made to believe that it fits.
func etcdLimits(t *testing.T, e *fencedEtcd) {
	ctx := t.Context()
	w := e.wired()
	token := e.token(t, 1, "h")
	puts := func(n int) (ops []clientv3.Op) {
		for i := range n {
			ops = append(ops, clientv3.OpPut(fmt.Sprint(e.data, i), "v"))
		}
		return ops
	}
	holding := func(n int) (cmps []clientv3.Cmp) {
		for i := range n {
			cmps = append(cmps, clientv3.Compare(clientv3.CreateRevision(fmt.Sprint(e.data, "absent", i)), "=", 0))
		}
		return cmps
	}
	for name, c := range map[string]struct {
		most int
		fill func(txn *etcdfence.Txn, n int)
	}{
		"compares":    {125, func(txn *etcdfence.Txn, n int) { txn.If(holding(n)...).Then(puts(1)...) }},
		"then":        {125, func(txn *etcdfence.Txn, n int) { txn.Then(puts(n)...) }},
		"else":        {125, func(txn *etcdfence.Txn, n int) { txn.Else(puts(n)...) }},
		"all at once": {125, func(txn *etcdfence.Txn, n int) { txn.If(holding(n)...).Then(puts(n)...).Else(puts(n)...) }},
		"nested": {100, func(txn *etcdfence.Txn, n int) {
			txn.If(holding(25)...).Then(clientv3.OpTxn(nil, puts(n), nil), clientv3.OpGet("x"))
		}},
		"nested twice": {110, func(txn *etcdfence.Txn, n int) {
			inner := clientv3.OpTxn(holding(n), nil, nil)
			txn.Then(clientv3.OpTxn(holding(5), []clientv3.Op{inner}, nil)).Else(puts(10)...)
		}},
	} {
		commit := func(f *etcdfence.Fence, n int) error {
			txn := f.Txn(ctx, token)
			c.fill(txn, n)
			_, err := txn.Commit()
			return err
		}
		f, trusting := e.fence(t, w), e.fence(t, w, etcdfence.WithMaxTxnOps(1000))
		require.NoError(t, commit(f, c.most), name)
		before := w.requests()
		require.ErrorIs(t, commit(f, c.most+1), etcdfence.ErrTooManyOps, name)
		require.Equal(t, before, w.requests(), name)
		err := commit(trusting, c.most+1)
		require.ErrorIs(t, err, etcdfence.ErrTooManyOps, name)
		require.ErrorIs(t, err, rpctypes.ErrTooManyOps, name)
	}
}

func etcdOverlap(t *testing.T, e *fencedEtcd) {
	ctx := t.Context()
	w := e.wired()
	f := e.fence(t, w)
	token, older := e.token(t, 2, "h"), e.token(t, 1, "old")
	require.NoError(t, f.Advance(ctx, token))
	before := w.requests()
	for name, op := range map[string]clientv3.Op{
		"put":            clientv3.OpPut(e.markKey(), "v"),
		"delete":         clientv3.OpDelete(e.markKey()),
		"prefix":         clientv3.OpDelete("fencelock", clientv3.WithPrefix()),
		"range":          clientv3.OpDelete("f", clientv3.WithRange("g")),
		"all":            clientv3.OpDelete("", clientv3.WithPrefix()),
		"nested":         clientv3.OpTxn(nil, nil, []clientv3.Op{clientv3.OpDelete(e.markKey())}),
		"another lock's": clientv3.OpDelete("fencelock-marks/other"),
	} {
		_, err := f.Txn(ctx, token).Then(op).Commit()
		require.ErrorIs(t, err, etcdfence.ErrMarkOverlap, name)
		_, err = f.Txn(ctx, token).Else(op).Commit()
		require.ErrorIs(t, err, etcdfence.ErrMarkOverlap, name)
	}
	require.Equal(t, before, w.requests())
	// Deleting the keys of locks is none of the fence's business, and reading is
	// allowed.
	_, err := f.Txn(ctx, token).Then(
		clientv3.OpDelete(keyPrefix+e.lock, clientv3.WithPrefix()),
		clientv3.OpGet("fencelock-marks/", clientv3.WithPrefix()),
	).Commit()
	require.NoError(t, err)
	requireStaleAtEtcd(t, f.Advance(ctx, older), older, token)
}

// A fence that reads the mark and then writes it lets both first writers pass in
// either order.
func etcdFirstWriters(t *testing.T, e *fencedEtcd) {
	ctx := t.Context()
	for round := range 50 {
		e := &fencedEtcd{bench: e.bench, lock: fmt.Sprint(e.lock, round), data: fmt.Sprint(e.data, round)}
		older, newer := e.token(t, 1, "old"), e.token(t, 2, "new")
		errs := map[string]*error{"old": new(error), "new": new(error)}
		var start, all sync.WaitGroup
		start.Add(1)
		for _, token := range []fencelock.Token{older, newer} {
			f := e.fence(t, e.clean)
			all.Go(func() {
				start.Wait()
				*errs[token.Holder()] = e.write(ctx, f, token, token.Holder())
			})
		}
		start.Done()
		all.Wait()
		require.NoError(t, *errs["new"])
		if err := *errs["old"]; err != nil {
			requireStaleAtEtcd(t, err, older, newer)
		}
		e.requireValue(t, "new")
		e.requireMark(t, newer)
	}
}

// etcdShuffled: whatever the order in which a hundred holders come, what etcd
// applied is in the order of their tokens. Half of them compete with a twin for
// their number.
func etcdShuffled(t *testing.T, e *fencedEtcd) {
	ctx := t.Context()
	const writers = 100
	start, err := e.clean.Get(ctx, e.data+"x")
	require.NoError(t, err)
	var all sync.WaitGroup
	var mu sync.Mutex
	passed := map[string]bool{}
	for _, n := range rand.Perm(writers) {
		token := e.token(t, int64(n/2+1), "h"+strconv.Itoa(n))
		f := e.fence(t, e.clean)
		all.Go(func() {
			for range 2 {
				err := e.write(ctx, f, token, token.String())
				if !errors.Is(err, fencelock.ErrStale) && !assert.NoError(t, err) {
					return
				}
				if err == nil {
					mu.Lock()
					passed[token.String()] = true
					mu.Unlock()
				}
			}
		})
	}
	all.Wait()
	history := e.history(t, start.Header.Revision+1)
	require.NotEmpty(t, history)
	applied, holders := map[string]bool{}, map[int64]string{}
	var before int64
	for _, value := range history {
		token, err := fencelock.ParseToken(e.lock, value)
		require.NoError(t, err)
		require.GreaterOrEqual(t, token.Revision(), before, "applied after a newer one: %v", history)
		before = token.Revision()
		if other, ok := holders[before]; ok {
			require.Equal(t, other, token.Holder(), "two holders of one number were applied")
		}
		holders[before] = token.Holder()
		applied[value] = true
	}
	require.Equal(t, applied, passed, "what was applied is what was told to be")
	require.EqualValues(t, writers/2, before, "the highest passes whenever it comes")
	got, err := e.fence(t, e.clean).Highest(ctx, e.lock)
	require.NoError(t, err)
	require.Equal(t, history[len(history)-1], got.String())
}

// history returns every value that the protected key was given since a revision.
func (e *fencedEtcd) history(t *testing.T, since int64) (values []string) {
	t.Helper()
	now, err := e.clean.Get(t.Context(), e.data+"x")
	require.NoError(t, err)
	if len(now.Kvs) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	for resp := range e.clean.Watch(ctx, e.data+"x", clientv3.WithRev(since)) {
		require.NoError(t, resp.Err())
		for _, event := range resp.Events {
			values = append(values, string(event.Kv.Value))
			if event.Kv.ModRevision == now.Kvs[0].ModRevision {
				return values
			}
		}
	}
	t.Fatalf("the history ends too soon: %v", values)
	return nil
}

// etcdLost loses a request or its reply. The caller cannot know which, is not told
// that it is stale, and nothing is sent again.
func etcdLost(t *testing.T, e *fencedEtcd, lose func(error) harness.Fate, version int64) {
	ctx := t.Context()
	w := e.wired()
	f := e.fence(t, w)
	token := e.token(t, 1, "h")
	broken := errors.New("connection reset by peer")
	w.kv.SetHook(harness.Nth(harness.OpTxn, 1, lose(broken)))
	err := e.write(ctx, f, token, "1")
	require.ErrorIs(t, err, etcdfence.ErrUnknownOutcome)
	require.ErrorIs(t, err, broken)
	require.NotErrorIs(t, err, fencelock.ErrStale)
	require.Equal(t, 1, w.kv.Calls(harness.OpTxn))
	_, got := e.value(t)
	require.Equal(t, version, got)
	require.NoError(t, e.write(ctx, f, token, "1"), "the same token passes again")
	_, got = e.value(t)
	require.Equal(t, version+1, got)
}

func etcdContextEnds(t *testing.T, e *fencedEtcd) {
	w := e.wired()
	f := e.fence(t, w)
	held := harness.NewHeld()
	w.kv.SetHook(harness.Nth(harness.OpTxn, 1, harness.HoldReply(held)))
	lost := errors.New("the lock was lost")
	ctx, cancel := context.WithCancelCause(t.Context())
	result := inBackground(t, func() error { return e.write(ctx, f, e.token(t, 1, "h"), "1") })
	require.NoError(t, harness.Receive(t, held.Answered(), soon, "answer"))
	cancel(lost)
	err := harness.Receive(t, result, soon, "end of the call")
	require.ErrorIs(t, err, etcdfence.ErrUnknownOutcome)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, lost)
	e.requireValue(t, "1")
	requests := w.requests()
	err = e.write(ctx, f, e.token(t, 1, "h"), "2")
	require.ErrorIs(t, err, lost)
	require.NotErrorIs(t, err, etcdfence.ErrUnknownOutcome, "nothing was sent")
	require.Equal(t, requests, w.requests())
}

// etcdConnectionBreaks: etcd's client itself does not send again what it got no
// reply to.
func etcdConnectionBreaks(t *testing.T, e *fencedEtcd) {
	proxy := harness.NewProxy(t, e.addr)
	client := harness.NewClient(t, proxy.Addr())
	f := e.fence(t, client)
	token := e.token(t, 1, "h")
	require.NoError(t, f.Advance(t.Context(), token), "connects")
	proxy.ToClient.Stall()
	result := inBackground(t, func() error { return e.write(t.Context(), f, token, "1") })
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	e.awaitValue(ctx, t)
	proxy.Cut()
	proxy.Heal()
	err := harness.Receive(t, result, soon, "end of the call")
	require.ErrorIs(t, err, etcdfence.ErrUnknownOutcome)
	require.NotErrorIs(t, err, fencelock.ErrStale)
	_, version := e.value(t)
	require.EqualValues(t, 1, version)
	// A client that has no connection yet refuses at once, and that is not known to
	// be a refusal either.
	require.Eventually(t, func() bool { return e.write(t.Context(), f, token, "2") == nil }, soon, 10*time.Millisecond)
	e.requireValue(t, "2")
}

// awaitValue waits until there is a protected value.
func (e *fencedEtcd) awaitValue(ctx context.Context, t *testing.T) {
	t.Helper()
	now, err := e.clean.Get(ctx, e.data+"x")
	require.NoError(t, err)
	if len(now.Kvs) > 0 {
		return
	}
	watch := e.clean.Watch(ctx, e.data+"x", clientv3.WithRev(now.Header.Revision+1))
	resp, ok := <-watch
	require.True(t, ok, "no value came")
	require.NoError(t, resp.Err())
}

// etcdLate: the request of a superseded holder is under way while its successor
// begins, and comes after it.
func etcdLate(t *testing.T, e *fencedEtcd) {
	ctx := t.Context()
	w := e.wired()
	older, newer := e.token(t, 1, "old"), e.token(t, 2, "new")
	held := harness.NewHeld()
	w.kv.SetHook(harness.Nth(harness.OpTxn, 1, harness.Hold(held)))
	late := inBackground(t, func() error { return e.write(ctx, e.fence(t, w), older, "late") })
	harness.Receive(t, held.Arrived(), soon, "request")
	require.NoError(t, e.fence(t, e.clean).Advance(ctx, newer))
	held.Release()
	requireStaleAtEtcd(t, harness.Receive(t, late, soon, "end of the late call"), older, newer)
	e.requireValue(t, "")
}

// etcdDamaged: what no fence wrote is neither taken for a low mark nor for a
// high one.
func etcdDamaged(t *testing.T, e *fencedEtcd) {
	ctx := t.Context()
	f := e.fence(t, e.clean)
	token := e.token(t, 7, "h")
	for _, damage := range []string{
		"", " ", "-1", "3", "3.h", "7.h", "garbage", `{"token":7}`, "0000000000000000000.h",
		"00000000000", "0000000000000000007", "0000000000000000009", "0000000000000000009.", "00000000000000000009.h",
		"\x00\x00\x00\x00\x00\x00\x00\x03", "\xff", "9999999999999999999.h",
	} {
		e.putMark(t, damage)
		err := e.write(ctx, f, token, "1")
		require.ErrorIs(t, err, etcdfence.ErrDamagedMark, "%q", damage)
		require.NotErrorIs(t, err, fencelock.ErrStale, "%q", damage)
		require.ErrorContains(t, err, e.markKey())
		_, err = f.Highest(ctx, e.lock)
		require.ErrorIs(t, err, etcdfence.ErrDamagedMark, "%q", damage)
		e.requireValue(t, "")
	}
	e.putMark(t, "0000000000000000007.h") // repaired, as ErrDamagedMark says
	require.NoError(t, e.write(ctx, f, token, "1"))
}

func etcdShedsLease(t *testing.T, e *fencedEtcd) {
	ctx := t.Context()
	lease, err := e.clean.Grant(ctx, 600)
	require.NoError(t, err)
	e.putMark(t, "0000000000000000001.h", clientv3.WithLease(lease.ID))
	token := e.token(t, 2, "h")
	f := e.fence(t, e.clean)
	// The lease of the caller's own keys is the caller's matter.
	_, err = f.Txn(ctx, token).Then(clientv3.OpPut(e.data+"x", "leased", clientv3.WithLease(lease.ID))).Commit()
	require.NoError(t, err)
	_, err = e.clean.Revoke(ctx, lease.ID)
	require.NoError(t, err)
	e.requireValue(t, "")
	e.requireMark(t, token)
}

// etcdNamespaced: marks and data are the namespace's own, and responses are in
// its words.
func etcdNamespaced(t *testing.T, e *fencedEtcd) {
	ctx := t.Context()
	one, two := namespace.NewKV(e.clean.KV, e.data+"one/"), namespace.NewKV(e.clean.KV, e.data+"two/")
	inOne, inTwo := e.fence(t, one), e.fence(t, two)
	older, newer := e.token(t, 1, "old"), e.token(t, 2, "new")
	require.NoError(t, inOne.Advance(ctx, newer))
	resp, err := inTwo.Txn(ctx, older).
		If(clientv3.Compare(clientv3.CreateRevision("x"), "=", 0)).
		Then(clientv3.OpPut("x", "two"), clientv3.OpGet("x")).Commit()
	require.NoError(t, err, "another namespace, another mark")
	require.True(t, resp.Succeeded)
	require.Equal(t, "x", string(resp.Responses[1].GetResponseRange().Kvs[0].Key))
	_, err = inOne.Txn(ctx, older).Then(clientv3.OpPut("x", "one")).Commit()
	requireStaleAtEtcd(t, err, older, newer)
	_, err = inOne.Txn(ctx, newer).Then(clientv3.OpDelete("", clientv3.WithPrefix())).Commit()
	require.ErrorIs(t, err, etcdfence.ErrMarkOverlap, "all of a namespace has its marks in it")

	highest, err := inOne.Highest(ctx, e.lock)
	require.NoError(t, err)
	require.True(t, highest.Equal(newer))
	got, err := e.clean.Get(ctx, e.data+"two/x")
	require.NoError(t, err)
	require.Equal(t, "two", string(got.Kvs[0].Value))
	e.requireMark(t, fencelock.Token{})
}

func etcdPrefixes(t *testing.T, e *fencedEtcd) {
	ctx := t.Context()
	here, there := e.fence(t, e.clean), e.fence(t, e.clean, etcdfence.WithPrefix(e.data+"marks/"))
	require.NoError(t, here.Advance(ctx, e.token(t, 2, "new")))
	require.NoError(t, there.Advance(ctx, e.token(t, 1, "old")))
	got, err := e.clean.Get(ctx, e.data+"marks/", clientv3.WithPrefix())
	require.NoError(t, err)
	require.Len(t, got.Kvs, 1)
	require.Equal(t, "0000000000000000001.old", string(got.Kvs[0].Value))
}

func etcdNothingSent(t *testing.T, e *fencedEtcd) {
	w := e.wired()
	var rejected []error
	f := e.fence(t, w, etcdfence.WithScope(e.lock), etcdfence.WithHooks(fencelock.Hooks{
		TokenRejected: func(info fencelock.TokenRejectedInfo) { rejected = append(rejected, info.Err) },
	}))
	require.ErrorIs(t, e.write(t.Context(), f, fencelock.Token{}, "v"), fencelock.ErrNoToken)
	require.ErrorIs(t, e.write(t.Context(), f, etcdToken(t, "another", 1, "h"), "v"), fencelock.ErrScope)
	require.Zero(t, w.requests())
	require.NoError(t, f.Advance(t.Context(), e.token(t, 2, "new")))
	require.ErrorIs(t, e.write(t.Context(), f, e.token(t, 1, "old"), "v"), fencelock.ErrStale)
	require.Len(t, rejected, 3)
	require.Equal(t, 2, w.requests(), "a transaction is one request, a refused one too")
}

// TestEtcdFenceAtAnotherCluster: the locks are in one etcd, and what they guard is in
// another, whose revisions have nothing to do with the tokens.
func TestEtcdFenceAtAnotherCluster(t *testing.T) {
	harness.Parallel(t)
	locks, resource := newBench(t), newBench(t)
	ctx := t.Context()
	for range 100 { // the tokens are above all revisions of the other etcd
		_, err := locks.clean.Put(ctx, "noise", "")
		require.NoError(t, err)
	}
	e := &fencedEtcd{bench: resource, lock: "job", data: "data/"}
	f := e.fence(t, resource.clean, etcdfence.WithScope("job"))
	first, second := locks.locker(locks.client()), locks.locker(locks.client())

	superseded, lateWrite := make(chan struct{}), make(chan error, 1)
	var late fencelock.Token
	held := make(chan struct{})
	result := inBackground(t, func() error {
		return first.Do(ctx, "job", func(ctx context.Context, token fencelock.Token) error {
			late = token
			if err := e.write(ctx, f, token, "first"); err != nil {
				return err
			}
			close(held)
			untilClosed(t, superseded)
			// It does not notice that it lost the lock, as one that was stopped would not.
			err := e.write(context.WithoutCancel(ctx), f, token, lateValue)
			lateWrite <- err
			return err
		})
	})
	harness.Receive(t, held, soon, "first holder")
	_, err := locks.clean.Delete(ctx, queueOf("job"), clientv3.WithPrefix())
	require.NoError(t, err)
	err = second.Do(ctx, "job", func(ctx context.Context, token fencelock.Token) error {
		require.NoError(t, f.Advance(ctx, token))
		e.requireValue(t, "first")
		close(superseded)
		requireStaleAtEtcd(t, harness.Receive(t, lateWrite, soon, "late write"), late, token)
		e.requireValue(t, "first")
		return e.write(ctx, f, token, "second")
	})
	require.NoError(t, err)
	require.ErrorIs(t, harness.Receive(t, result, soon, "end of the first"), fencelock.ErrLost)
	e.requireValue(t, "second")
}

// TestEtcdFencePermissions: with authentication on, a user needs the marks too, and
// an answer of "you may not" is a refusal.
func TestEtcdFencePermissions(t *testing.T) {
	harness.Parallel(t)
	g := newUnguarded(t, 0)
	g.addUser("worker")
	g.allow("worker", "data/", clientv3.PermReadWrite)
	g.enable()
	e := &fencedEtcd{bench: g.bench, lock: "job", data: "data/"}
	f := e.fence(t, g.as("worker"))
	token := e.token(t, 1, "h")
	denied := func() {
		t.Helper()
		err := e.write(t.Context(), f, token, "1")
		require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
		require.ErrorContains(t, err, "fencelock-marks/")
		require.NotErrorIs(t, err, etcdfence.ErrUnknownOutcome)
		e.requireValue(t, "")
	}
	denied()
	g.allow("worker", "fencelock-marks/", clientv3.PermWrite)
	denied()
	g.allow("worker", "fencelock-marks/", clientv3.PermReadWrite)
	require.NoError(t, e.write(t.Context(), f, token, "1"))
	e.requireMark(t, token)
}

// TestEtcdFenceOutOfSpace: "database space exceeded" is said of transactions that were
// applied too, so it is no refusal. It is said of every fenced transaction from then
// on, also of one that only deletes.
func TestEtcdFenceOutOfSpace(t *testing.T) {
	harness.Parallel(t)
	harness.NoLeaks(t)
	cluster := harness.StartCluster(t, harness.ClusterConfig{QuotaBackendBytes: 4 << 20})
	client := harness.NewClient(t, cluster.Endpoints()...)
	f, err := etcdfence.New(client)
	require.NoError(t, err)
	const writers = 100
	full, applied := 0, 0
	// etcd counts what it has on disk, to which it writes every 100 ms.
	for round := 0; full == 0; round++ {
		require.Less(t, round, 100, "etcd is never full")
		value := fmt.Sprint(round) + strings.Repeat("v", 100_000)
		errs := make([]error, writers)
		var all sync.WaitGroup
		for n := range writers {
			token := etcdToken(t, "job"+strconv.Itoa(n), 1, "h")
			all.Go(func() {
				_, errs[n] = f.Txn(t.Context(), token).Then(clientv3.OpPut(token.Name(), value)).Commit()
			})
		}
		all.Wait()
		for n, err := range errs {
			got, getErr := client.Get(t.Context(), "job"+strconv.Itoa(n))
			require.NoError(t, getErr)
			written := len(got.Kvs) == 1 && string(got.Kvs[0].Value) == value
			if err == nil {
				require.True(t, written)
				continue
			}
			require.ErrorIs(t, err, rpctypes.ErrNoSpace)
			require.ErrorIs(t, err, etcdfence.ErrUnknownOutcome)
			full++
			if written {
				applied++
			}
		}
	}
	t.Logf("%d of the %d transactions that exceeded the space were applied", applied, full)
	_, err = f.Txn(t.Context(), etcdToken(t, "job0", 2, "h")).Then(clientv3.OpDelete("job0")).Commit()
	require.ErrorIs(t, err, rpctypes.ErrNoSpace)
}

// TestEtcdFenceConformance has the rules of the kit decide. An etcd is restarted for
// Reopen, and its history compacted for Expire; it has nothing else that goes with
// time, since marks have no lease.
func TestEtcdFenceConformance(t *testing.T) {
	harness.Parallel(t)
	harness.NoLeaks(t)
	cluster := harness.StartCluster(t, harness.ClusterConfig{})
	rule := 0
	fencetest.Run(t, func(t *testing.T) fencetest.Resource {
		rule++
		client := harness.NewClient(t, cluster.Endpoints()...)
		kv := harness.NewLossyKV(t, namespace.NewKV(client.KV, fmt.Sprintf("rule%d/", rule)))
		f, err := etcdfence.New(kv)
		require.NoError(t, err)
		dataKey := func(scope, key string) string { return "data/" + url.PathEscape(scope) + "/" + key }
		return fencetest.Resource{
			Write: func(ctx context.Context, token fencelock.Token, key, value string) error {
				_, err := f.Txn(ctx, token).Then(clientv3.OpPut(dataKey(token.Name(), key), value)).Commit()
				return err
			},
			Read: func(ctx context.Context, scope, key string) (string, bool, error) {
				resp, err := kv.Get(ctx, dataKey(scope, key))
				if err != nil || len(resp.Kvs) == 0 {
					return "", false, err
				}
				return string(resp.Kvs[0].Value), true, nil
			},
			Update: func(ctx context.Context, token fencelock.Token, key string, change func(string, bool) (string, error)) error {
				return updateAtEtcd(ctx, f, token, dataKey(token.Name(), key), change)
			},
			Advance: f.Advance,
			Delete: func(ctx context.Context, token fencelock.Token, key string) error {
				_, err := f.Txn(ctx, token).Then(clientv3.OpDelete(dataKey(token.Name(), key))).Commit()
				return err
			},
			Reopen: func() error {
				cluster.Members[0].Kill()
				cluster.Members[0].Restart()
				// The client repeats a read until it has a connection again.
				_, err := kv.Get(t.Context(), "x")
				return err
			},
			Expire: func() error {
				resp, err := kv.Get(t.Context(), "x")
				if err != nil {
					return err
				}
				_, err = kv.Compact(t.Context(), resp.Header.Revision)
				return err
			},
			LoseAnswer: func() {
				kv.SetHook(harness.Nth(harness.OpTxn, 1, harness.LoseReply(errors.New("connection reset by peer"))))
			},
		}
	})
}

// updateAtEtcd reads inside of the fence: a first transaction raises the mark and
// returns the value, so nothing of an earlier holder comes after it. What the holder
// itself wrote meanwhile makes the compare fail, and then it is done again.
func updateAtEtcd(ctx context.Context, f *etcdfence.Fence, token fencelock.Token, key string, change func(string, bool) (string, error)) error {
	read, err := f.Txn(ctx, token).Then(clientv3.OpGet(key)).Commit()
	if err != nil {
		return err
	}
	for kvs := read.Responses[0].GetResponseRange().GetKvs(); ; {
		old, found, seen := "", false, int64(0)
		if len(kvs) > 0 {
			old, found, seen = string(kvs[0].Value), true, kvs[0].ModRevision
		}
		value, err := change(old, found)
		if err != nil {
			return err
		}
		resp, err := f.Txn(ctx, token).
			If(clientv3.Compare(clientv3.ModRevision(key), "=", seen)).
			Then(clientv3.OpPut(key, value)).Else(clientv3.OpGet(key)).Commit()
		if err != nil || resp.Succeeded {
			return err
		}
		kvs = resp.Responses[0].GetResponseRange().GetKvs()
	}
}
