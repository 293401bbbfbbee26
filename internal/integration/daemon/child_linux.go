package pgtest

import "syscall"

// dieWithParent makes the kernel stop a server whose test binary is gone,
// however that ended. SIGQUIT makes the server end its own children too.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGQUIT }
