package main

import "syscall"

// dieWithParent makes the kernel end a server whose bench is gone, however that ended.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGQUIT }
