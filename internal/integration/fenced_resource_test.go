package integration

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/integration/resource"
)

// fencedResources starts a resource with each kind of fence, as a process.
func fencedResources(t testing.TB) map[string]*resource.Process {
	t.Helper()
	return map[string]*resource.Process{
		"in memory": resource.Start(t, ""),
		"in SQLite": resource.Start(t, filepath.Join(t.TempDir(), "registers.db")),
	}
}

// nextHolderWrites has the next holder of a lock read and write, with and
// without the fence.
func nextHolderWrites(t *testing.T, r *resource.Client, token fencelock.Token, value string) {
	t.Helper()
	_, err := r.Claim(t.Context(), token.Name(), token)
	require.NoError(t, err)
	require.NoError(t, r.Write(t.Context(), token.Name(), token, value))
	require.NoError(t, r.Overwrite(t.Context(), unfenced(token.Name()), token, value))
}

// requireOnlyFenceKept checks that a stale write of lateValue came behind value:
// it is what the register has that takes everything, and not what the fenced one
// has.
func requireOnlyFenceKept(t *testing.T, r *resource.Client, register, value string) {
	t.Helper()
	history, err := r.History(t.Context(), register)
	require.NoError(t, err)
	require.Empty(t, resource.Stale(history))
	kept, err := r.Read(t.Context(), register)
	require.NoError(t, err)
	require.Equal(t, value, kept)

	history, err = r.History(t.Context(), unfenced(register))
	require.NoError(t, err)
	stale := resource.Stale(history)
	require.NotEmpty(t, stale, "nothing stale came: the test proves nothing about the fence")
	require.Equal(t, lateValue, stale[len(stale)-1].Value)
	damaged, err := r.Read(t.Context(), unfenced(register))
	require.NoError(t, err)
	require.Equal(t, lateValue, damaged)
}
