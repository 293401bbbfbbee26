//go:build unix

package main

import (
	"bytes"
	"context"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/fencelock/fencelock/examples/internal/process"
)

func TestMain(m *testing.M) {
	process.Main(roles)
	os.Exit(m.Run())
}

func TestNoMoneyIsLost(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var out bytes.Buffer
	err := run(ctx, &out, "", 8*time.Second, rand.Uint64())
	require.NoError(t, err, "%s", out.String())
	require.Contains(t, out.String(), "audit of token")
	require.Contains(t, out.String(), "stale writes applied: 0; balances that differ from the journal: 0; sum: 4000 of 4000\n")
}
