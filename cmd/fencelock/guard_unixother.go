//go:build unix && !linux

package main

import (
	"os/exec"
	"syscall"
)

// dieWithParent can do nothing here: a command outlives a fencelock that is killed.
func dieWithParent(*syscall.SysProcAttr) {}

// awaitEnd returns when a child has ended, and reaps it: these systems share no way to
// wait for the one without the other.
func awaitEnd(cmd *exec.Cmd) { _ = cmd.Wait() }

func takeTerminal(*syscall.SysProcAttr) (restore func()) { return func() {} }

func terminalSize() (columns, lines int, ok bool) { return 0, 0, false }
