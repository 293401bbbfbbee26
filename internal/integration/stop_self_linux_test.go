package integration

import (
	"bytes"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// stopSelf stops this process, and returns when somebody has continued it. The
// signal goes to the very thread that sends it, which takes it before it leaves
// the kernel: a process that signals itself as a whole can run on for a moment,
// and into what it was to be stopped before.
func stopSelf() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return unix.Tgkill(unix.Getpid(), unix.Gettid(), unix.SIGSTOP)
}

// isStopped reports whether a process is stopped.
func isStopped(pid int) (bool, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	// pid (name) state …, and the name can hold anything.
	return bytes.HasPrefix(stat[bytes.LastIndexByte(stat, ')')+1:], []byte(" T")), err
}
