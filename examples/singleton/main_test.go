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

func TestOneLeaderAtATime(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	ctx, cancel := context.WithTimeout(t.Context(), 29*time.Second)
	defer cancel()
	var out bytes.Buffer
	err := run(ctx, &out)
	require.NoError(t, err, "%s", out.String())
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	require.Regexp(t, `^terms: ([5-9]|\d\d+), overlaps: 0, stale rounds applied: 0$`, lines[len(lines)-1], "%s", out.String())
}
