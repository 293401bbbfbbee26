package integration

import (
	"testing"

	"github.com/fencelock/fencelock/internal/integration/harness"
	"github.com/fencelock/fencelock/internal/integration/resource"
)

// roles are what this test binary can be as a child process, beside an etcd
// server. Each is defined in the file of the test that starts it.
var roles = harness.Roles{
	"adopter": adopterRole,
	"mortal":  mortalRole,

	resource.RoleName:      resource.Role,
	heartRoleName:          heartRole,
	stoppingHolderRoleName: stoppingHolderRole,
	tlsEtcdRoleName:        tlsEtcdRole,
}

func TestMain(m *testing.M) { harness.Main(m, roles) }
