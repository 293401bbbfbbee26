package main

import (
	"fmt"

	"github.com/fencelock/fencelock"
)

// stamp is a token as a value that can be compared and be part of a state. The
// zero stamp is none.
type stamp struct {
	revision int64
	holder   string
}

func parseStamp(text string) (stamp, error) {
	if text == "" {
		return stamp{}, nil
	}
	token, err := fencelock.ParseToken("soak", text)
	if err != nil {
		return stamp{}, err
	}
	return stamp{token.Revision(), token.Holder()}, nil
}

func (s stamp) String() string { return fmt.Sprintf("%d.%s", s.revision, s.holder) }

// admits reports whether a fence whose mark is s lets a token pass.
func (s stamp) admits(token stamp) bool {
	return token.revision > s.revision || token == s
}
