//go:build !unix

package main

import (
	"errors"
	"fmt"
)

// run needs process groups.
func findCommand(string) (string, error) {
	return "", &exit{codeRefused, errors.New("run needs a Unix system; the other commands do not")}
}

type signals struct{}

func newSignals() *signals          { return &signals{} }
func (*signals) endOn(func())       {}
func (*signals) or(err error) error { return err }
func (*signals) stop()              {}
func (h *hold) guard(path string, _ []string, _ *signals) (int, error) {
	return 0, fmt.Errorf("%s cannot be run here", path)
}

func terminalSize() (columns, lines int, ok bool) { return 0, 0, false }
