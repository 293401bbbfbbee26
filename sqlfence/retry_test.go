package sqlfence

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

const busy = stateError("40001")

// TestRepeatCallback: what fails with the callback has a bound of runs.
func TestRepeatCallback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &Fence{dialect: postgreSQL}
		runs := 0
		err := f.repeat(t.Context(), func() (bool, error) {
			runs++
			return true, busy
		})
		require.Equal(t, maxRuns, runs)
		require.ErrorIs(t, err, busy)
		require.ErrorContains(t, err, "8 runs")

		runs = 0
		require.NoError(t, f.repeat(t.Context(), func() (bool, error) {
			if runs++; runs < maxRuns {
				return true, busy
			}
			return true, nil
		}))
		require.Equal(t, maxRuns, runs)
	})
}

// TestRepeatWait: what fails before the callback has the bound of the context,
// and does not count as a run.
func TestRepeatWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &Fence{dialect: postgreSQL}
		lost := errors.New("the lock was lost")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, lost)
		defer cancel()
		start, tries := time.Now(), 0
		err := f.repeat(ctx, func() (bool, error) {
			tries++
			return false, busy
		})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, lost)
		require.ErrorIs(t, err, busy)
		require.Equal(t, time.Minute, time.Since(start), "it ends with the context")
		// Neither a busy loop nor asleep for long.
		require.Greater(t, tries, int(time.Minute/maxPause))
		require.Less(t, tries, int(2*time.Minute/maxPause)+20)
	})
	synctest.Test(t, func(t *testing.T) {
		f := &Fence{dialect: postgreSQL}
		tries, runs := 0, 0
		require.NoError(t, f.repeat(t.Context(), func() (ran bool, err error) {
			if tries++; tries < 100 {
				return false, busy
			}
			if runs++; runs < maxRuns {
				return true, busy
			}
			return true, nil
		}))
	})
}

func TestRepeatOther(t *testing.T) {
	f := &Fence{dialect: postgreSQL}
	other := errors.New("no disk")
	tries := 0
	require.Equal(t, other, f.repeat(t.Context(), func() (bool, error) {
		tries++
		return true, other
	}))
	require.Equal(t, 1, tries)
}
