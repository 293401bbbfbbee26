package harness

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// dieWithParent makes the kernel kill a child when the thread that started it
// ends, even if the child is stopped.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

// stopped reports whether every thread of a process is stopped. The process'
// own state is that of its first thread only.
func stopped(pid int) (bool, error) {
	dir := fmt.Sprintf("/proc/%d/task", pid)
	threads, err := os.ReadDir(dir)
	if err != nil {
		return false, err
	}
	for _, thread := range threads {
		stat, err := os.ReadFile(dir + "/" + thread.Name() + "/stat")
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			return false, nil // it has just ended; look again
		}
		if err != nil {
			return false, err
		}
		// pid (name) state …, and the name can hold anything.
		_, rest, _ := bytes.Cut(stat[bytes.LastIndexByte(stat, ')')+1:], []byte(" "))
		if len(rest) == 0 || rest[0] != 'T' {
			return false, nil
		}
	}
	return true, nil
}
