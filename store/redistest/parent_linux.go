package redistest

import (
	"os/exec"
	"syscall"
)

// endWithParent has the kernel end the server should the test process be killed before its cleanups.
func endWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
