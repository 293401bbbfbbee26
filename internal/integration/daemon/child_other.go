//go:build unix && !linux

package daemon

import "syscall"

// dieWithParent can do nothing here: a test binary that is killed leaves its
// server behind.
func dieWithParent(*syscall.SysProcAttr) {}
