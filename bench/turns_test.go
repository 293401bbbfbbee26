package main

import (
	"errors"
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
	turns := &turns{skip: 1, want: 1, within: time.Hour}
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

// What is counted is what came between the first grant that was measured and the last.
func TestTurnsCountTraffic(t *testing.T) {
	var sent int64
	turns := &turns{skip: 1, want: 2, within: time.Hour}
	turns.measuring = func(sign int64) { turns.unary += sign * sent }
	for i := range 5 {
		sent += 10
		_, err := turns.granted(i, int64(i+1), time.Now())
		require.NoError(t, err)
		turns.releasing()
	}
	require.Equal(t, 2, turns.counted)
	require.EqualValues(t, 20, turns.unary)
}

func TestTurnsEndWithTheirTime(t *testing.T) {
	ended := 0
	turns := &turns{want: 100, until: time.Now().Add(-time.Hour)}
	turns.measuring = func(int64) { ended++ }
	for i := range 3 {
		enough, err := turns.granted(i+1, int64(i+1), time.Now())
		require.NoError(t, err)
		require.True(t, enough)
		turns.releasing()
	}
	require.Equal(t, 1, ended)
}

// A lock that lets some wait while others have it again and again is no queue.
func TestTurnsNoticeWhoIsPassedOver(t *testing.T) {
	turns := &turns{want: 100, until: time.Now().Add(time.Hour), patience: 5, asked: make([]int, 3)}
	token := int64(0)
	grant := func(id int) error {
		token++
		_, err := turns.granted(id, token, time.Now())
		turns.releasing()
		return err
	}
	for id := range 3 {
		turns.asking(id)
	}
	for i := range 5 {
		require.NoError(t, grant(i%2))
		turns.asking(i % 2)
	}
	require.ErrorContains(t, grant(2), "contender 2 of 3 waited for 5 grants to others")
}

// The time for measuring is not used up by the grants that are skipped.
func TestTurnsTimeBeginsWithTheFirstMeasured(t *testing.T) {
	turns := &turns{skip: 1, want: 100, within: time.Minute}
	began := time.Now().Add(time.Hour) // of which the skipped grant took its time
	_, err := turns.granted(0, 1, began)
	require.NoError(t, err)
	turns.releasing()
	require.Equal(t, began.Add(time.Minute), turns.until)
}

// Where violations are counted they do not end the contest.
func TestTurnsCountViolations(t *testing.T) {
	wrong := &violations{}
	turns := &turns{want: 100, until: time.Now().Add(time.Hour), wrong: wrong}
	for i, token := range []int64{5, 5, 6} { // the second has an older token, and nobody releases
		_, err := turns.granted(i, token, time.Now())
		require.NoError(t, err)
		if i == 0 {
			turns.releasing()
		}
	}
	require.NoError(t, turns.failed(t.Context(), errors.New("refused")))
	require.Equal(t, violations{overlaps: 1, regressions: 1, errors: 1}, *wrong)
	require.EqualError(t, wrong.failure(), "bench: on three members: 1 overlaps, 1 tokens that did not rise, 1 calls that failed")
	require.NoError(t, violations{}.failure())
}
