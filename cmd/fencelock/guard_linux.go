package main

import (
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"unsafe"
)

// dieWithParent has the kernel kill the command when this process is gone, however
// that ended.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }

// awaitEnd returns when a child has ended, and leaves it to be reaped: up to then its
// number, and its group's, is not given to another.
func awaitEnd(cmd *exec.Cmd) {
	const pPID, wNoWait = 1, 0x01000000
	var info [128]byte // a siginfo_t
	for {
		_, _, errno := syscall.Syscall6(syscall.SYS_WAITID, pPID, uintptr(cmd.Process.Pid),
			uintptr(unsafe.Pointer(&info)), syscall.WEXITED|wNoWait, 0, 0)
		if !errors.Is(errno, syscall.EINTR) {
			return
		}
	}
}

// takeTerminal gives the terminal to the command's group, if there is one and this
// process has it: in the background it could not read, and Ctrl-C would not come to
// it. restore takes it back.
func takeTerminal(attr *syscall.SysProcAttr) (restore func()) {
	var foreground int32
	if ioctl(0, syscall.TIOCGPGRP, unsafe.Pointer(&foreground)) != nil || int(foreground) != syscall.Getpgrp() {
		return func() {}
	}
	attr.Foreground, attr.Ctty = true, 0
	return func() {
		// From the background that stops a process which does not ignore it.
		signal.Ignore(syscall.SIGTTOU)
		own := int32(syscall.Getpgrp())
		_ = ioctl(0, syscall.TIOCSPGRP, unsafe.Pointer(&own))
	}
}

func ioctl(fd, request uintptr, arg unsafe.Pointer) error {
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, fd, request, uintptr(arg)); errno != 0 {
		return errno
	}
	return nil
}

// terminalSize returns the size of the terminal that the standard output is, and
// whether it is one.
func terminalSize() (columns, lines int, ok bool) {
	var size struct{ lines, columns, x, y uint16 }
	if ioctl(os.Stdout.Fd(), syscall.TIOCGWINSZ, unsafe.Pointer(&size)) != nil {
		return 0, 0, false
	}
	if size.columns == 0 || size.lines == 0 {
		return 80, 24, true
	}
	return int(size.columns), int(size.lines), true
}
