package carrier

import (
	"errors"
	"fmt"

	"github.com/fencelock/fencelock"
)

// ErrOtherToken is exported by the packages for each protocol.
var ErrOtherToken = errors.New("fencelock: the request already carries a fencing token, and not this one; " +
	"use one way to set it, and a new request for each acquisition")

// Put returns the text with which token travels, and whether the request, which
// carries the values in have, lacks it. It fails with [fencelock.ErrNoToken] for
// the zero Token, and with [ErrOtherToken] if anything but this token is there.
func Put(have []string, token fencelock.Token) (text string, missing bool, err error) {
	b, err := token.MarshalText()
	if err != nil {
		return "", false, err
	}
	text = string(b)
	switch {
	case len(have) == 0:
		return text, true, nil
	case len(have) == 1 && have[0] == text:
		return text, false, nil
	}
	return "", false, ErrOtherToken
}

// One returns the one token among the values in have as scope's. It fails with
// [fencelock.ErrNoToken] if there is none, with [fencelock.ErrInvalidToken] if
// there are several, and as [fencelock.ParseToken] does.
func One(scope string, have []string) (fencelock.Token, error) {
	switch len(have) {
	case 0:
		return fencelock.ParseToken(scope, "") // looks at the scope, too
	case 1:
		return fencelock.ParseToken(scope, have[0])
	}
	// The scope first, as above: where it is no name nothing is wrong with the tokens.
	if _, err := fencelock.ParseToken(scope, ""); errors.Is(err, fencelock.ErrInvalidName) {
		return fencelock.Token{}, err
	}
	// Also if all are the same: something on the way joined two requests'
	// headers, or a client sets it twice, and next time they will differ.
	return fencelock.Token{}, fmt.Errorf("%w: the request carries %d tokens, and must carry one", fencelock.ErrInvalidToken, len(have))
}
