package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A measurement that would not notice a lock that fails to exclude says
// nothing about a lock.
func TestTurnsNoticeTwoHolders(t *testing.T) {
	turns := &turns{want: 2, until: time.Now().Add(time.Hour)}
	_, err := turns.granted(0, 5, time.Now())
	require.NoError(t, err)
	_, err = turns.granted(1, 6, time.Now())
	require.ErrorContains(t, err, "contenders 0 and 1 hold the lock at once")
}

func TestTurnsNoticeTokensThatDoNotRise(t *testing.T) {
	turns := &turns{want: 2, until: time.Now().Add(time.Hour)}
	_, err := turns.granted(0, 5, time.Now())
	require.NoError(t, err)
	turns.releasing()
	_, err = turns.granted(1, 5, time.Now())
	require.ErrorContains(t, err, "token 5 was granted after token 5")
}

func TestTurnsCountHandOversOnly(t *testing.T) {
	turns := &turns{skip: 1, want: 1, until: time.Now().Add(time.Hour)}
	for i, step := range []struct {
		id     int
		enough bool
	}{
		{0, false}, // skipped
		{0, false}, // from 0 to 0 nothing was handed over
		{1, true},
	} {
		enough, err := turns.granted(step.id, int64(i+1), time.Now())
		require.NoError(t, err)
		require.Equal(t, step.enough, enough, "step %d", i)
		turns.releasing()
	}
	require.Len(t, turns.took, 1)
}
