package etcdfence

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock"
)

// etcd answers transactions as the test says. What a real one does with them is
// tested in internal/integration.
type etcd struct {
	clientv3.KV
	answer func(ctx context.Context) (*clientv3.TxnResponse, error)
	sent   int
}

func (e *etcd) Txn(ctx context.Context) clientv3.Txn { return &transaction{e, ctx} }

type transaction struct {
	etcd *etcd
	ctx  context.Context
}

func (t *transaction) If(...clientv3.Cmp) clientv3.Txn  { return t }
func (t *transaction) Then(...clientv3.Op) clientv3.Txn { return t }
func (t *transaction) Else(...clientv3.Op) clientv3.Txn { return t }

func (t *transaction) Commit() (*clientv3.TxnResponse, error) {
	t.etcd.sent++
	return t.etcd.answer(t.ctx)
}

func says(resp *clientv3.TxnResponse, err error) *etcd {
	return &etcd{answer: func(context.Context) (*clientv3.TxnResponse, error) { return resp, err }}
}

func newFence(t *testing.T, kv clientv3.KV, opts ...Option) *Fence {
	t.Helper()
	f, err := New(kv, opts...)
	require.NoError(t, err)
	return f
}

func token(t *testing.T, name string, revision int64, holder string) fencelock.Token {
	t.Helper()
	token, err := fencelock.ParseToken(name, fmt.Sprintf("%d.%s", revision, holder))
	require.NoError(t, err)
	return token
}

// The parts of answers.
func found(values ...string) *etcdserverpb.ResponseOp {
	resp := &etcdserverpb.RangeResponse{}
	for _, v := range values {
		resp.Kvs = append(resp.Kvs, &mvccpb.KeyValue{Value: []byte(v)})
	}
	return &etcdserverpb.ResponseOp{Response: &etcdserverpb.ResponseOp_ResponseRange{ResponseRange: resp}}
}

func put() *etcdserverpb.ResponseOp {
	return &etcdserverpb.ResponseOp{Response: &etcdserverpb.ResponseOp_ResponsePut{ResponsePut: &etcdserverpb.PutResponse{}}}
}

func nested(succeeded bool, responses ...*etcdserverpb.ResponseOp) *etcdserverpb.ResponseOp {
	return &etcdserverpb.ResponseOp{Response: &etcdserverpb.ResponseOp_ResponseTxn{
		ResponseTxn: &etcdserverpb.TxnResponse{Succeeded: succeeded, Responses: responses},
	}}
}

func response(succeeded bool, responses ...*etcdserverpb.ResponseOp) *clientv3.TxnResponse {
	return &clientv3.TxnResponse{
		Header:    &etcdserverpb.ResponseHeader{Revision: 17},
		Succeeded: succeeded, Responses: responses,
	}
}

// TestMarkOrder: the bytes of marks are in the order of the numbers, whoever held
// them, and the compares of guarded tell three cases apart.
func TestMarkOrder(t *testing.T) {
	revisions := []int64{
		1, 2, 9, 10, 99, 100, 1<<31 - 1, 1 << 31, 1<<31 + 1,
		1<<53 - 1, 1 << 53, 1<<53 + 1, math.MaxInt64 - 1, math.MaxInt64,
	}
	holders := []string{"-", "0", "Z", "_", "zz", strings.Repeat("z", 128)}
	for _, a := range revisions {
		for _, b := range revisions {
			for _, holder := range holders {
				mark := markValue(token(t, "n", a, holder))
				// See guarded, where the mark is on the left.
				assert.Equal(t, a < b, mark <= padded(b-1)+"/", "%d before %d", a, b)
				assert.GreaterOrEqual(t, mark, padded(1))
				back, ok := parseMark("n", mark)
				assert.True(t, ok)
				assert.True(t, back.Equal(token(t, "n", a, holder)), mark)
			}
		}
	}
}

func TestDamagedMarks(t *testing.T) {
	zeros := strings.Repeat("0", revisionDigits)
	for _, value := range []string{
		"", ".", "7", "7.h", "0000000000000000007", "0000000000000000007.", "0000000000000000007.h.h",
		"00000000000000000007.h", zeros + ".h", "000000000000000000x.h", "-000000000000000007.h",
		"+000000000000000007.h", "9999999999999999999.h", "0000000000000000007.h\n", "0000000000000000007 h",
	} {
		_, ok := parseMark("n", value)
		assert.False(t, ok, "%q", value)
	}
}

func TestMarkKey(t *testing.T) {
	f := newFence(t, &etcd{})
	require.Equal(t, "fencelock-marks/orders%2F42", f.markKey("orders/42"))
	require.Equal(t, "m/x", newFence(t, &etcd{}, WithPrefix("m/")).markKey("x"))
}

func puts(n int) []clientv3.Op {
	ops := make([]clientv3.Op, n)
	for i := range ops {
		ops[i] = clientv3.OpPut(fmt.Sprint("k", i), "v")
	}
	return ops
}

func compares(n int) []clientv3.Cmp {
	cmps := make([]clientv3.Cmp, n)
	for i := range cmps {
		cmps[i] = clientv3.Compare(clientv3.Version(fmt.Sprint("k", i)), "=", 0)
	}
	return cmps
}

// TestTooManyOps: what fits is sent and what does not is not. That the numbers are
// etcd's is tested in internal/integration.
func TestTooManyOps(t *testing.T) {
	fine := response(false, nested(false, put(), nested(true)))
	for name, test := range map[string]struct {
		maxOps int
		fill   func(txn *Txn, n int)
		most   int
	}{
		"compares": {128, func(txn *Txn, n int) { txn.If(compares(n)...) }, 125},
		"then":     {128, func(txn *Txn, n int) { txn.Then(puts(n)...) }, 125},
		"else":     {128, func(txn *Txn, n int) { txn.Else(puts(n)...) }, 125},
		"all at once": {128, func(txn *Txn, n int) {
			txn.If(compares(n)...).Then(puts(n)...).Else(puts(n)...)
		}, 125},
		"added up": {128, func(txn *Txn, n int) { txn.Then(puts(100)...).Then(puts(n - 100)...) }, 125},
		"nested in then": {128, func(txn *Txn, n int) {
			txn.If(compares(25)...).Then(clientv3.OpTxn(nil, nil, puts(n)))
		}, 100},
		"nested in else": {128, func(txn *Txn, n int) {
			txn.Else(clientv3.OpTxn(compares(n), nil, nil), clientv3.OpGet("k"))
		}, 123},
		"nested twice": {128, func(txn *Txn, n int) {
			txn.Then(clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpTxn(nil, puts(n), nil)}, nil))
		}, 123},
		"option": {4, func(txn *Txn, n int) { txn.Then(puts(n)...) }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			e := says(fine, nil)
			f := newFence(t, e, WithMaxTxnOps(test.maxOps))
			txn := f.Txn(t.Context(), token(t, "n", 1, "h"))
			test.fill(txn, test.most)
			_, err := txn.Commit()
			require.NoError(t, err)
			require.Equal(t, 1, e.sent)
			txn = f.Txn(t.Context(), token(t, "n", 1, "h"))
			test.fill(txn, test.most+1)
			_, err = txn.Commit()
			require.ErrorIs(t, err, ErrTooManyOps)
			require.NotErrorIs(t, err, ErrUnknownOutcome)
			require.Equal(t, 1, e.sent)
		})
	}
}

func TestMarkOverlap(t *testing.T) {
	refused := map[string]clientv3.Op{
		"put":                     clientv3.OpPut("marks/n", "v"),
		"another lock's":          clientv3.OpPut("marks/other", "v"),
		"delete":                  clientv3.OpDelete("marks/n"),
		"range that covers":       clientv3.OpDelete("a", clientv3.WithRange("z")),
		"range that ends inside":  clientv3.OpDelete("a", clientv3.WithRange("marks/n\x00")),
		"range that starts there": clientv3.OpDelete("marks/n", clientv3.WithRange("z")),
		"its prefix":              clientv3.OpDelete("marks/", clientv3.WithPrefix()),
		"shorter prefix":          clientv3.OpDelete("m", clientv3.WithPrefix()),
		"longer prefix":           clientv3.OpDelete("marks/n", clientv3.WithPrefix()),
		"from a key":              clientv3.OpDelete("marks", clientv3.WithFromKey()),
		"everything":              clientv3.OpDelete("", clientv3.WithPrefix()),
		"everything from":         clientv3.OpDelete("", clientv3.WithFromKey()),
	}
	allowed := map[string]clientv3.Op{
		"beside":             clientv3.OpPut("marks", "v"),
		"shares the letters": clientv3.OpPut("marksmen/n", "v"),
		"longer one":         clientv3.OpPut("a/marks/n", "v"),
		"range up to it":     clientv3.OpDelete("a", clientv3.WithRange("marks/")),
		"range after it":     clientv3.OpDelete("marks0", clientv3.WithRange("z")),
		"from after it":      clientv3.OpDelete("marks0", clientv3.WithFromKey()),
		"prefix beside it":   clientv3.OpDelete("marksmen/", clientv3.WithPrefix()),
		"reads it":           clientv3.OpGet("marks/n"),
		"reads all":          clientv3.OpGet("", clientv3.WithPrefix()),
		"compares it": clientv3.OpTxn([]clientv3.Cmp{clientv3.Compare(clientv3.Value("marks/n"), "=", "v")},
			nil, nil),
	}
	places := map[string]func(txn *Txn, op clientv3.Op){
		"then": func(txn *Txn, op clientv3.Op) { txn.Then(clientv3.OpGet("x"), op) },
		"else": func(txn *Txn, op clientv3.Op) { txn.Else(op) },
		"nested": func(txn *Txn, op clientv3.Op) {
			txn.Then(clientv3.OpTxn(nil, nil, []clientv3.Op{clientv3.OpTxn(nil, []clientv3.Op{op}, nil)}))
		},
	}
	fine := response(false, nested(false, put(), nested(true)))
	for place, add := range places {
		commit := func(op clientv3.Op) (sent int, err error) {
			e := says(fine, nil)
			txn := newFence(t, e, WithPrefix("marks/")).Txn(t.Context(), token(t, "n", 1, "h"))
			add(txn, op)
			_, err = txn.Commit()
			return e.sent, err
		}
		for name, op := range refused {
			sent, err := commit(op)
			assert.ErrorIs(t, err, ErrMarkOverlap, "%s in %s", name, place)
			assert.Zero(t, sent, "%s in %s", name, place)
		}
		for name, op := range allowed {
			_, err := commit(op)
			assert.NoError(t, err, "%s in %s", name, place)
		}
	}
}

// TestAnswers: what each answer of etcd's comes to.
func TestAnswers(t *testing.T) {
	presented := token(t, "n", 7, "h")
	commit := func(resp *clientv3.TxnResponse, err error) (*clientv3.TxnResponse, error) {
		return newFence(t, says(resp, err)).Txn(t.Context(), presented).Commit()
	}
	t.Run("applied", func(t *testing.T) {
		for _, succeeded := range []bool{true, false} {
			resp, err := commit(response(false, nested(false, put(), nested(succeeded, found("x")))), nil)
			require.NoError(t, err)
			require.Equal(t, succeeded, resp.Succeeded)
			require.EqualValues(t, 17, resp.Header.Revision)
			require.Len(t, resp.Responses, 1)
			require.Equal(t, "x", string(resp.Responses[0].GetResponseRange().Kvs[0].Value))
		}
	})
	t.Run("stale", func(t *testing.T) {
		resp, err := commit(response(false, nested(true, found("0000000000000000008.other"))), nil)
		require.Nil(t, resp)
		var stale *fencelock.StaleError
		require.ErrorAs(t, err, &stale)
		require.Equal(t, "n", stale.Scope)
		require.True(t, stale.Presented.Equal(presented))
		require.True(t, stale.Highest.Equal(token(t, "n", 8, "other")))
	})
	t.Run("damaged", func(t *testing.T) {
		for _, resp := range []*clientv3.TxnResponse{
			response(true, found("")),
			response(false, nested(true, found("not a mark"))),
		} {
			_, err := commit(resp, nil)
			require.ErrorIs(t, err, ErrDamagedMark)
			require.NotErrorIs(t, err, fencelock.ErrStale)
			require.ErrorContains(t, err, "fencelock-marks/n")
		}
	})
	// Nothing that cannot be understood may be taken for a refusal.
	t.Run("strange", func(t *testing.T) {
		for name, resp := range map[string]*clientv3.TxnResponse{
			"empty":              response(false),
			"empty that holds":   response(true),
			"no mark":            response(true, found()),
			"no nested":          response(false, put()),
			"nested is empty":    response(false, nested(false)),
			"nested has no mark": response(false, nested(true, found())),
			"no user's":          response(false, nested(false, put(), put())),
		} {
			got, err := commit(resp, nil)
			require.ErrorIs(t, err, ErrUnknownOutcome, name)
			require.Nil(t, got, name)
		}
	})
	t.Run("refusals", func(t *testing.T) {
		for _, refusal := range []error{
			rpctypes.ErrPermissionDenied, rpctypes.ErrTooManyRequests, rpctypes.ErrRequestTooLarge,
			rpctypes.ErrDuplicateKey, rpctypes.ErrEmptyKey, rpctypes.ErrCompacted, rpctypes.ErrLeaseNotFound,
			rpctypes.ErrInvalidAuthToken, rpctypes.Error(rpctypes.ErrGRPCNotSupportedForLearner),
		} {
			_, err := commit(nil, refusal)
			require.ErrorIs(t, err, refusal)
			require.ErrorContains(t, err, "nothing was applied")
			require.NotErrorIs(t, err, ErrUnknownOutcome)
			require.NotErrorIs(t, err, fencelock.ErrStale)
		}
		_, err := commit(nil, rpctypes.ErrTooManyOps)
		require.ErrorIs(t, err, ErrTooManyOps)
		require.NotErrorIs(t, err, ErrUnknownOutcome)
	})
	t.Run("unknown", func(t *testing.T) {
		for _, answer := range []error{
			rpctypes.ErrTimeout, rpctypes.ErrTimeoutDueToConnectionLost, rpctypes.ErrLeaderChanged,
			rpctypes.ErrNoLeader, rpctypes.ErrStopped, rpctypes.ErrNoSpace, errors.New("connection reset"),
		} {
			_, err := commit(nil, answer)
			require.ErrorIs(t, err, ErrUnknownOutcome)
			require.ErrorIs(t, err, answer)
			require.NotErrorIs(t, err, fencelock.ErrStale)
		}
	})
}

func TestTokens(t *testing.T) {
	var rejected []fencelock.TokenRejectedInfo
	hooks := fencelock.Hooks{TokenRejected: func(info fencelock.TokenRejectedInfo) {
		rejected = append(rejected, info)
		panic("contained")
	}}
	e := says(response(false, nested(true, found("0000000000000000008.other"))), nil)
	f := newFence(t, e, WithScope("n"), WithHooks(hooks))
	require.ErrorIs(t, f.Advance(t.Context(), fencelock.Token{}), fencelock.ErrNoToken)
	require.ErrorIs(t, f.Advance(t.Context(), token(t, "m", 9, "h")), fencelock.ErrScope)
	require.Zero(t, e.sent)
	require.ErrorIs(t, f.Advance(t.Context(), token(t, "n", 7, "h")), fencelock.ErrStale)
	require.Equal(t, 1, e.sent)
	require.Len(t, rejected, 3)
	for i, want := range []error{fencelock.ErrNoToken, fencelock.ErrScope, fencelock.ErrStale} {
		require.ErrorIs(t, rejected[i].Err, want)
	}
	require.True(t, rejected[2].Token.Equal(token(t, "n", 7, "h")))

	e.answer = func(context.Context) (*clientv3.TxnResponse, error) { return nil, rpctypes.ErrTimeout }
	require.ErrorIs(t, f.Advance(t.Context(), token(t, "n", 7, "h")), ErrUnknownOutcome)
	require.Len(t, rejected, 3, "not known is not rejected")
}

// TestContextEnded: nothing is sent, so nothing is unknown.
func TestContextEnded(t *testing.T) {
	e := says(response(false, nested(false, put(), nested(true))), nil)
	lost := errors.New("the lock was lost")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(lost)
	err := newFence(t, e).Advance(ctx, token(t, "n", 1, "h"))
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, lost)
	require.NotErrorIs(t, err, ErrUnknownOutcome)
	require.Zero(t, e.sent)
}

// TestContextEndsMeanwhile: the caller is told that its context ended, and why; and no
// deadline travels with the request, see dateless.
func TestContextEndsMeanwhile(t *testing.T) {
	lost := errors.New("the lock was lost")
	parent, cancel := context.WithCancelCause(t.Context())
	ctx, stop := context.WithTimeout(parent, time.Hour)
	defer stop()
	e := &etcd{answer: func(inner context.Context) (*clientv3.TxnResponse, error) {
		_, has := inner.Deadline()
		assert.False(t, has, "the client sends again when the server's deadline passes first")
		cancel(lost)
		<-inner.Done()
		return nil, inner.Err()
	}}
	err := newFence(t, e).Advance(ctx, token(t, "n", 1, "h"))
	require.ErrorIs(t, err, ErrUnknownOutcome)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, lost)
}

func TestBadInput(t *testing.T) {
	f := newFence(t, &etcd{})
	var noClient *clientv3.Client
	var noContext context.Context
	build := func(opts ...Option) func() error {
		return func() error { _, err := New(&etcd{}, opts...); return err }
	}
	for name, try := range map[string]func() error{
		"nil kv":               func() error { _, err := New(nil); return err },
		"nil client":           func() error { _, err := New(noClient); return err },
		"nil option":           build(nil),
		"empty prefix":         build(WithPrefix("")),
		"slash only":           build(WithPrefix("/")),
		"no slash":             build(WithPrefix("marks")),
		"the locks' prefix":    build(WithPrefix("fencelock/")),
		"under that":           build(WithPrefix("fencelock/marks/")),
		"no room":              build(WithMaxTxnOps(3)),
		"nil context":          func() error { return f.Advance(noContext, token(t, "n", 1, "h")) },
		"nil context, Highest": func() error { _, err := f.Highest(noContext, "n"); return err },
		"zero op": func() error {
			_, err := f.Txn(t.Context(), token(t, "n", 1, "h")).Then(clientv3.Op{}).Commit()
			return err
		},
		"zero op nested": func() error {
			_, err := f.Txn(t.Context(), token(t, "n", 1, "h")).
				Else(clientv3.OpTxn(nil, nil, []clientv3.Op{{}})).Commit()
			return err
		},
	} {
		require.ErrorIs(t, try(), fencelock.ErrInvalidOption, name)
	}
	require.ErrorIs(t, build(WithScope(""))(), fencelock.ErrInvalidName)
	_, err := f.Highest(t.Context(), strings.Repeat("n", 1025))
	require.ErrorIs(t, err, fencelock.ErrInvalidName)
}
