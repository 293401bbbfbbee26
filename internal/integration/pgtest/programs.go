package pgtest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
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
