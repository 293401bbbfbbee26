package process

import "syscall"

// dieWithParent makes the kernel kill a child when the thread that started it
// ends, even if the child is stopped.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
