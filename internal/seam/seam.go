// Package seam is what the fake Locker of package fencetest needs of the root package
// beyond its exported names.
package seam

import (
	"sync/atomic"
	"time"
)

// Options is what the options of one acquiring call amount to.
type Options struct {
	MaxWait    time.Duration
	MaxWaitSet bool
	MaxHold    time.Duration // 0: none
	RequireUse bool
}

// Option is implemented by every option that the root package makes.
type Option interface{ AddTo(o *Options) error }

// MintToken returns a fencelock.Token as an acquisition gets it: one whose use is seen
// in used. It is set by the root package, which this one cannot import. It fails as
// fencelock.ParseToken does.
var MintToken func(name, text string, used *atomic.Bool) (any, error)
