package integration

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/integration/harness"
)

// requireWithin checks that something that began at from was over by to, with
// what the machine may add.
func requireWithin(t testing.TB, bound time.Duration, from, to time.Time, what string) {
	t.Helper()
	took := to.Sub(from)
	require.LessOrEqual(t, took, bound+allowance(from, to), what)
}

// raftTerm returns the term of the cluster, which grows with every election.
// Each new leader gives all leases their whole TTL again.
func raftTerm(t testing.TB, client *clientv3.Client) int {
	t.Helper()
	status, err := client.Status(atMost(t, eventually), client.Endpoints()[0])
	require.NoError(t, err)
	return int(status.RaftTerm)
}

// requireToldInTime checks what every lost hold promises: its context ended
// before its key was seen to be deleted and before another was granted the
// lock, and no later than one margin before the last confirmed TTL ran out,
// which counts from the sending of what was answered.
func (p *party) requireToldInTime(t testing.TB, h *hold, gone harness.Deletion, next grant) {
	t.Helper()
	told := h.ended(t, eventually)
	require.Less(t, told, gone.At, "the holder was told after its key was deleted")
	require.NoError(t, next.err)
	require.Less(t, told, next.at, "the holder was told after another had the lock")
	t.Logf("told %v before the deletion was seen and %v before the next grant", gone.At.Sub(told), next.at.Sub(told))
	p.requireToldByDeadline(t, h)
}

// requireToldByDeadline is the part of requireToldInTime that concerns the time
// alone.
func (p *party) requireToldByDeadline(t testing.TB, h *hold) {
	t.Helper()
	told := h.ended(t, eventually)
	last := p.trace.lastConfirmed(told)
	deadline := last.sent.Add(min(p.ttl, last.ttl) - p.margin)
	t.Logf("told %v after the deadline", told.Sub(deadline))
	require.LessOrEqual(t, told.Sub(deadline), allowance(deadline, told), "the holder was told after the deadline")
}

// requireLossReported checks that everybody was told of a loss: who asks the
// lock or its context, the hook, the log. It returns the loss.
func (p *party) requireLossReported(t testing.TB, h *hold, reason fencelock.Reason) *fencelock.LostError {
	t.Helper()
	var loss *fencelock.LostError
	require.ErrorAs(t, h.Err(), &loss)
	require.ErrorIs(t, h.Err(), fencelock.ErrLost)
	require.Equal(t, reason, loss.Reason)
	require.Equal(t, h.Name(), loss.Name)
	require.True(t, loss.Token.Equal(h.Token()), "the loss is of another token")
	require.ErrorIs(t, h.Context().Err(), context.Canceled)
	require.Same(t, loss, context.Cause(h.Context()))

	own := func(l fencelock.LostInfo) bool { return l.Err.Token.Equal(h.Token()) }
	until(t, "hook and warning of the loss", func() bool {
		hooked := slices.ContainsFunc(reported[fencelock.LostInfo](p.told), own)
		warned := slices.ContainsFunc(reported[slog.Record](p.told), func(r slog.Record) bool {
			return r.Level == slog.LevelWarn && attribute(r, "lock") == h.Name() &&
				attribute(r, "token") == h.Token().String() && attribute(r, "reason") == string(reason)
		})
		return hooked && warned
	})
	hooked := slices.DeleteFunc(reported[fencelock.LostInfo](p.told), func(l fencelock.LostInfo) bool { return !own(l) })
	require.Len(t, hooked, 1, "one loss is reported once")
	require.Equal(t, reason, hooked[0].Err.Reason)
	require.True(t, hooked[0].Running, "the loss came while the lock was held")
	return loss
}

// requireLostRelease releases a lost lock and checks that the answer is the
// loss again.
func (p *party) requireLostRelease(t testing.TB, h *hold) {
	t.Helper()
	err := h.Release(context.Background())
	var loss *fencelock.LostError
	require.True(t, errors.As(err, &loss), "got %v", err)
	require.False(t, loss.Returned.IsZero())
	require.False(t, loss.Returned.Before(loss.LostAt), "returned before it was lost")
	returned := reported[fencelock.ReturnedAfterLossInfo](p.told)
	require.True(t, slices.ContainsFunc(returned, func(r fencelock.ReturnedAfterLossInfo) bool {
		return r.Err.Token.Equal(h.Token())
	}), "no hook of the return after the loss")
}

// requireHeldThroughout checks that a hold was never lost: its context lives,
// no loss was reported, and the confirmed release proves that etcd's record named
// it from grant to release.
func requireHeldThroughout(t testing.TB, p *party, h *hold) {
	t.Helper()
	require.NoError(t, h.Err())
	require.NoError(t, h.Context().Err())
	require.Empty(t, reported[fencelock.LostInfo](p.told))
	require.NoError(t, h.Release(atMost(t, eventually)))
	require.ErrorIs(t, h.Err(), fencelock.ErrReleased)
}
