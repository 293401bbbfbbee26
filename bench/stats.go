package main

import (
	"slices"
	"time"
)

// median returns the middle value, or the mean of the two in the middle. It
// panics on an empty slice, which is a measurement that measured nothing.
func median[T ~int64 | ~float64](values []T) T {
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}

// mean is for latencies whose sum is what a user waits for. It panics on an
// empty slice.
func mean(values []time.Duration) time.Duration {
	var sum time.Duration
	for _, v := range values {
		sum += v
	}
	return sum / time.Duration(len(values))
}

// percentile returns the value that p percent of the values do not exceed. It panics
// on an empty slice.
func percentile(values []time.Duration, p int) time.Duration {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[(len(sorted)*p+99)/100-1]
}
