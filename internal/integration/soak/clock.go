package main

import (
	"time"

	"golang.org/x/sys/unix"
)

// now reads CLOCK_MONOTONIC, by which all processes of a machine agree on what
// was before what. Go's own monotonic reading cannot be sent to another process,
// and the wall clock can be set while a soak runs.
func now() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err) // the arguments are good
	}
	return time.Duration(ts.Nano())
}
