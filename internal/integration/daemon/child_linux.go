package daemon

import "syscall"

// dieWithParent makes the kernel stop a server whose test binary is gone,
// however that ended. PostgreSQL ends its own children too on SIGQUIT.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGQUIT }
