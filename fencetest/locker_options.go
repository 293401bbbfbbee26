package fencetest

import (
	"fmt"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/seam"
)

// fakeOptions returns what fencelock's options amount to.
func fakeOptions(opts []fencelock.LockOption) (seam.Options, error) {
	var cfg seam.Options
	for _, o := range opts {
		if o == nil {
			return seam.Options{}, fmt.Errorf("%w: a nil option", fencelock.ErrInvalidOption)
		}
		opt, ok := o.(seam.Option)
		if !ok {
			return seam.Options{}, fmt.Errorf("%w: the fake takes fencelock's options as they are, not a %T", fencelock.ErrInvalidOption, o)
		}
		if err := opt.AddTo(&cfg); err != nil {
			return seam.Options{}, err
		}
	}
	return cfg, nil
}
