package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDrawSVG(t *testing.T) {
	var f figures
	file := filepath.Join(t.TempDir(), "figures.svg")
	require.ErrorContains(t, drawSVG(file, &f), "no picture without raw_uncontended_p50_us")
	require.NoFileExists(t, file)

	for name, value := range map[string]float64{
		"raw_uncontended_p50_us": 800, "uncontended_p50_us": 790, "mutex_uncontended_p50_us": 900, "round_trip_p50_us": 150,
		"handover_w2_mean_ms": 0.6, "mutex_handover_w2_mean_ms": 44, "floor_mean_ms": 0.5,
		"handover_w512_mean_ms": 1.2, "mutex_handover_w512_mean_ms": 9,
	} {
		f.add(name, value, "")
	}
	require.NoError(t, drawSVG(file, &f))
	svg, err := os.Open(file)
	require.NoError(t, err)
	defer svg.Close()
	drawn := make(map[string]bool)
	for d := xml.NewDecoder(svg); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		if text, ok := token.(xml.CharData); ok {
			drawn[string(text)] = true
		}
	}
	for _, text := range []string{"fencelock", "concurrency.Mutex", "two commits (raft, disk)", "512", "floor: deletion to event"} {
		require.True(t, drawn[text], text)
	}
}
