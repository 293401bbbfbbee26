//go:build !linux

package main

import "syscall"

// dieWithParent can do nothing here: a bench that is killed leaves its servers behind.
func dieWithParent(*syscall.SysProcAttr) {}
