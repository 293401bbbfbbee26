//go:build unix && !linux

package process

import "syscall"

// dieWithParent has nothing to set here: a child hears of its parent's end from
// its input, so only one that is stopped at that moment outlives it.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }
