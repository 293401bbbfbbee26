package fencelock

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The lowest free number is taken, however many are, and one that was given back is
// taken again: what is not reused fills etcd's history.
func TestSlotsAreTheLowestFree(t *testing.T) {
	s := newSlots()
	for n := range 200 {
		require.Equal(t, n, s.take("a"))
	}
	require.Equal(t, 0, s.take("b"), "each name has its own")
	for _, n := range []int{199, 0, 63, 64, 127, 128, 70} {
		s.giveBack("a", n)
	}
	for _, n := range []int{0, 63, 64, 70, 127, 128, 199, 200} {
		require.Equal(t, n, s.take("a"))
	}
	for n := range 201 {
		require.Len(t, s.few, 2)
		s.giveBack("a", n)
	}
	assert.Len(t, s.few, 1, "nothing is kept of a name that has none")
	assert.Empty(t, s.many)
	assert.Equal(t, 0, s.take("a"))
}
