//go:build !linux

package clock

import "time"

// suspendTime reads the wall clock, the only one here that goes on during a
// suspend.
func suspendTime(now time.Time) time.Duration {
	wall := now.UnixNano()
	if wall < 0 {
		return unread
	}
	return time.Duration(wall)
}
