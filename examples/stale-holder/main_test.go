//go:build unix

package main

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/examples/internal/process"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	process.Main(roles)
	os.Exit(m.Run())
}

func TestFenceRefusesWhatTheCheckLetsPass(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	ctx, cancel := context.WithTimeout(t.Context(), 19*time.Second)
	defer cancel()
	var out bytes.Buffer
	err := run(ctx, &out)
	require.NoError(t, err, "%s", out.String())
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	require.Equal(t, []string{
		"DoAdvisory, unfenced: stale writes applied: 1, refused: 0; deposited: 110, balance: 100, lost: 10",
		"Do, fenced:           stale writes applied: 0, refused: 1; deposited: 10, balance: 10, lost: 0",
	}, lines[len(lines)-2:], "%s", out.String())
}
