package clock

import (
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

// clockBoottime is CLOCK_BOOTTIME of linux/time.h, which package syscall lacks.
const clockBoottime = 7

// boottime reads CLOCK_BOOTTIME: time since boot, suspends included.
//
// The kernel offers that clock through the vDSO, but Go calls into the vDSO only
// for its own clocks, so this is a real system call: 0.2 µs on bare metal, 2 µs in
// some virtual machines. It never blocks; hence RawSyscall, which does not tell the
// scheduler and costs a quarter less than unix.ClockGettime.
func boottime() time.Duration {
	var ts syscall.Timespec
	_, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&ts)), 0)
	if errno != 0 {
		return unread
	}
	return time.Duration(ts.Nano())
}

// origin is what monotonic readings are counted from.
var origin = time.Now()

var shared = screen{read: boottime}

func suspendTime(now time.Time) time.Duration {
	return shared.at(time.Duration(now.UnixNano()), now.Sub(origin))
}

// screen saves most of the system calls. CLOCK_BOOTTIME and CLOCK_MONOTONIC run
// alike but for suspends, and what a suspend adds to the one the kernel adds to the
// wall clock in the same step (Linux, kernel/time/timekeeping.c,
// __timekeeping_inject_sleeptime). The wall clock comes with every reading of Go's.
// So while the two that Go reads have kept step since the last system call, there
// was no suspend since, and the answer is the last one and the monotonic time since
// then.
//
// A step of the wall clock only costs a system call. To hide a suspend it would have
// to undo it to the millisecond, and even that is found out a moment later: after
// trusted, the source is read in any case.
type screen struct {
	read func() time.Duration
	last atomic.Pointer[reading]
}

// reading is one system call's answer, and what Go's clocks showed just before it.
type reading struct{ wall, mono, source time.Duration }

const (
	// trusted is how long a reading serves. NTP slews the wall clock by 500 ppm at
	// most, 50 µs in that time.
	trusted = 100 * time.Millisecond
	// step is by how much the clocks may differ within it.
	step = time.Millisecond
	// set is a wall clock that can be one: 2020. Before it the clock was not set, or
	// is a bubble's of testing/synctest, where all of them stand at the same times
	// and what was read in one is nothing to another.
	set = 1_577_836_800 * time.Second
)

func (s *screen) at(wall, mono time.Duration) time.Duration {
	if wall < set {
		return s.read()
	}
	if r := s.last.Load(); r != nil {
		passed := mono - r.mono
		drift := wall - r.wall - passed
		if 0 <= passed && passed < trusted && -step < drift && drift < step {
			return r.source + passed
		}
	}
	source := s.read()
	if source != unread {
		s.last.Store(&reading{wall, mono, source})
	}
	return source
}
