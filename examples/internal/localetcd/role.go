//go:build unix

package localetcd

import (
	"context"
	"fmt"
	"strings"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/examples/internal/process"
)

const (
	name    = "etcd"
	serving = "serving"
	address = "serves at "
)

// Role is a child process that is an etcd server, started by [StartChild].
func Role(ctx context.Context, self *process.Self) error {
	server, err := Start(ctx, self.Args[0])
	if err != nil {
		return err
	}
	defer server.Close()
	self.Say(serving, fencelock.Token{}, "%s%s", address, server.Clients[0].Addr())
	select {
	case <-ctx.Done():
		return nil
	case err := <-server.Err():
		return fmt.Errorf("localetcd: etcd ended by itself: %w", err)
	}
}

// StartChild starts an etcd server in a process of its own, with its data in
// dir, and returns its address when it serves. The program's [Role] has to be
// among its roles, as role.
func StartChild(ctx context.Context, group *process.Group, role, dir string) (endpoint string, err error) {
	if _, err := group.Start(name, role, dir); err != nil {
		return "", err
	}
	report, err := group.Await(ctx, name, serving)
	return strings.TrimPrefix(report.Text, address), err
}
