package fencelock

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The lowest free number is taken, however many are, and one that was given back is
// taken again: what is not reused fills etcd's history.
func TestSlotsAreTheLowestFree(t *testing.T) {
	var s slots
	for n := range 200 {
		require.Equal(t, n, s.take())
	}
	for _, n := range []int{199, 0, 63, 64, 127, 128, 70} {
		require.False(t, s.giveBack(n))
	}
	for _, n := range []int{0, 63, 64, 70, 127, 128, 199, 200} {
		require.Equal(t, n, s.take())
	}
	for n := range 200 {
		require.False(t, s.giveBack(n), n)
	}
	assert.True(t, s.giveBack(200), "none is taken any more")
	assert.Equal(t, 0, s.take())
	assert.True(t, s.giveBack(0))
}
