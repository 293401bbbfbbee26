//go:build unix

package main

import (
	"bytes"
	"context"
	"net/http"
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

func TestServiceRefusesTheStalledWriter(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	defer http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	ctx, cancel := context.WithTimeout(t.Context(), 14*time.Second)
	defer cancel()
	var out bytes.Buffer
	err := run(ctx, &out)
	require.NoError(t, err, "%s", out.String())
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	require.Equal(t, []string{
		`the document: "B was here\n"`,
		"made-up tokens refused: 1",
		"stale writes applied: 0, refused: 1",
	}, lines[len(lines)-3:], "%s", out.String())
}
