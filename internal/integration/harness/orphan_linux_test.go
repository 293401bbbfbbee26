package harness

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestProcessDiesWithItsParent kills a process whose own child is stopped and
// was started by a thread that is long gone.
func TestProcessDiesWithItsParent(t *testing.T) {
	NoLeaks(t)
	p := Start(t, "parent")
	pid, err := strconv.Atoi(p.Expect("child", soon).Text)
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(pid, 0), "the child outlives the thread that asked for it")
	all, err := stopped(pid)
	require.NoError(t, err)
	require.True(t, all)

	p.Kill()
	require.Eventually(t, func() bool { return gone(pid) }, soon, time.Millisecond)
}

// gone reports whether a process has ended, waited for or not: who inherits an
// orphan may be slow to wait for it.
func gone(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || bytes.Contains(stat, []byte(") Z "))
}
