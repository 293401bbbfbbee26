package process_test

import (
	"bytes"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/fencelock/fencelock/examples/internal/process"
	"github.com/stretchr/testify/require"
)

// TestKilledParentTakesItsChildrenAlong kills a parent that gets no chance to
// kill its child, which is stopped and so cannot notice anything.
func TestKilledParentTakesItsChildrenAlong(t *testing.T) {
	ctx, group := newGroup(t)
	parent, _, grandchild := startParent(ctx, t, group)
	require.NoError(t, parent.Kill())
	_, err := group.Await(ctx, "P", process.Exited)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return gone(grandchild) }, 10*time.Second, time.Millisecond)
}

// gone reports whether a process has ended, waited for or not: who inherits an
// orphan may be slow to wait for it.
func gone(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || bytes.Contains(stat, []byte(") Z "))
}
