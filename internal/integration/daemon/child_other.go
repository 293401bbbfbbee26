//go:build unix && !linux

package pgtest

import "syscall"

// dieWithParent can do nothing here: a test binary that is killed leaves its
// server behind.
func dieWithParent(*syscall.SysProcAttr) {}
