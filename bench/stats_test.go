package main

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   float64
	}{
		{[]float64{7}, 7},
		{[]float64{9, 1}, 5},
		{[]float64{3, 100, 1}, 3},
		{[]float64{4, 1, 3, 2}, 2.5},
	} {
		before := append([]float64(nil), c.values...)
		require.InDelta(t, c.want, median(c.values), 0, "%v", c.values)
		require.Equal(t, before, c.values, "the values must stay in the order of the runs")
	}
	require.Equal(t, 2*time.Second, median([]time.Duration{3 * time.Second, time.Second}))
	require.Panics(t, func() { median([]float64(nil)) })
}

func TestMean(t *testing.T) {
	require.Equal(t, 2*time.Millisecond, mean([]time.Duration{time.Millisecond, time.Millisecond, 4 * time.Millisecond}))
	require.Panics(t, func() { mean(nil) })
}

func TestPercentile(t *testing.T) {
	var values []time.Duration
	for i := range 100 {
		values = append(values, time.Duration(100-i)*time.Millisecond)
	}
	require.Equal(t, 99*time.Millisecond, percentile(values, 99))
	require.Equal(t, 100*time.Millisecond, percentile(values, 100))
	require.Equal(t, 50*time.Millisecond, percentile(values, 50))
	require.Equal(t, time.Second, percentile([]time.Duration{time.Second}, 99))
	require.Panics(t, func() { percentile(nil, 99) })
}

func TestFiguresPrint(t *testing.T) {
	var f figures
	for _, v := range []float64{1.5, 0.5, 1} {
		f.add("ratio_of_things", v, "ratio")
		f.add("things", 10*v, "us")
	}
	var out bytes.Buffer
	require.NoError(t, f.print(&out))
	require.Equal(t, "ratio_of_things 1.000 ratio min=0.500 max=1.500 runs=3\n"+
		"things 10.000 us min=5.000 max=15.000 runs=3\n", out.String())
}

func TestFiguresPrintJSON(t *testing.T) {
	var f figures
	for _, v := range []float64{3, 1, 2} {
		f.add("a", v, "ms")
	}
	var out bytes.Buffer
	require.NoError(t, f.printJSON(&out))
	require.JSONEq(t, `{"name":"a","value":2,"unit":"ms","min":1,"max":3,"runs":[3,1,2]}`, out.String())
}
