//go:build !linux

package harness

import (
	"bytes"
	"os/exec"
	"strconv"
	"syscall"
)

// dieWithParent has nothing to set here: a child ends when its input does, so
// only one that is stopped at that moment outlives its parent.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }

// stopped reports whether a process is stopped.
func stopped(pid int) (bool, error) {
	state, err := exec.Command("ps", "-o", "state=", "-p", strconv.Itoa(pid)).Output()
	return bytes.HasPrefix(bytes.TrimSpace(state), []byte("T")), err
}
