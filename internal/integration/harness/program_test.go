package harness

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestProgram(t *testing.T) {
	NoLeaks(t)
	var order []string
	var dir string
	passed := Program("program", func(p testing.TB) {
		require.Equal(p, "program", p.Name())
		dir = p.TempDir()
		require.NoError(p, os.WriteFile(filepath.Join(dir, "data"), nil, 0o600))
		p.Cleanup(func() { order = append(order, "first registered") })
		p.Cleanup(func() {
			p.Cleanup(func() { order = append(order, "registered last") })
			order = append(order, "second registered")
		})
		order = append(order, "main")
	})
	require.True(t, passed)
	require.Equal(t, []string{"main", "second registered", "registered last", "first registered"}, order)
	require.NoDirExists(t, dir)
}

// A program that fails runs no further, and still cleans up, however often it
// fails.
func TestProgramFails(t *testing.T) {
	NoLeaks(t)
	for name, fail := range map[string]func(p testing.TB){
		"at once": func(p testing.TB) { p.Fatal("so it failed") },
		"later":   func(p testing.TB) { p.Errorf("so it failed: %d", 1) },
		"in a require": func(p testing.TB) {
			require.NoError(p, os.ErrClosed)
		},
		"while it cleans up": func(p testing.TB) { p.Cleanup(p.FailNow) },
	} {
		t.Run(name, func(t *testing.T) {
			clean := false
			require.False(t, Program("program", func(p testing.TB) {
				p.Cleanup(func() { clean = true })
				fail(p)
			}))
			require.True(t, clean)
		})
	}
}

// The whole harness works in a program.
func TestProgramWithACluster(t *testing.T) {
	NoLeaks(t)
	require.True(t, Program("program", func(p testing.TB) {
		c := StartCluster(p, ClusterConfig{})
		require.Empty(p, Keys(p, NewClient(p, c.Endpoints()...), ""))
	}))
}
