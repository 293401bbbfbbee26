package pgtest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
)

// findPrograms returns the folder that has both programs of a server: from
// PATH, or from where Debian keeps them, the newest version first.
func findPrograms() (string, error) {
	folders := filepath.SplitList(os.Getenv("PATH"))
	debian, err := filepath.Glob("/usr/lib/postgresql/*/bin")
	if err != nil {
		return "", fmt.Errorf("pgtest: %w", err)
	}
	slices.SortFunc(debian, func(a, b string) int { return version(b) - version(a) })
	for _, folder := range append(folders, debian...) {
		_, noServer := exec.LookPath(filepath.Join(folder, "postgres"))
		_, noInit := exec.LookPath(filepath.Join(folder, "initdb"))
		if noServer == nil && noInit == nil {
			return folder, nil
		}
	}
	return "", errors.New("pgtest: no PostgreSQL here: postgres and initdb are neither in PATH " +
		"nor in /usr/lib/postgresql/*/bin; on Debian install the package postgresql")
}

// version returns the major version in the path of one of Debian's folders.
func version(folder string) int {
	v, err := strconv.Atoi(filepath.Base(filepath.Dir(folder)))
	if err != nil {
		return 0 // a version such as 9.6, older than all that are whole numbers
	}
	return v
}

// unprivileged returns the attributes of a process that may be a server: the
// test's own user, unless that is root, as whom PostgreSQL refuses to run.
func unprivileged() (*syscall.SysProcAttr, error) {
	if os.Geteuid() != 0 {
		return &syscall.SysProcAttr{}, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.ParseUint(u.Uid, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("pgtest: user %s: %w", name, err)
		}
		gid, err := strconv.ParseUint(u.Gid, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("pgtest: user %s: %w", name, err)
		}
		return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}, nil
	}
	return nil, errors.New("pgtest: PostgreSQL refuses to run as root, and there is neither a user postgres nor nobody")
}
