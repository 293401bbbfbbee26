package main

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestStaleWriteIsRefused(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 14*time.Second)
	defer cancel()
	var out bytes.Buffer
	err := run(ctx, &out, "")
	require.NoError(t, err, "%s", out.String())
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	require.Regexp(t, `^stale writes applied: 0, refused: [1-9]\d*$`, lines[len(lines)-1], "%s", out.String())
}
