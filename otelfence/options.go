package otelfence

import (
	"fmt"
	"strings"

	"github.com/fencelock/fencelock"
)

// Option configures [New].
type Option func(*config) error

type config struct {
	label func(name string) string
	fence string
}

// unnamed is the fence's name without WithFence.
const unnamed = "unnamed"

// WithNameLabel sets what fencelock.lock.label is for a lock's name, in metrics.
// By default it is the part of the name before its first '/', or the whole name. Names
// are unbounded, and each value is a set of time series for ever, so only the first 100
// values are kept apart, whatever label returns; the others are "other". Label must
// be safe for concurrent use and return soon. A nil label is an error that wraps
// [fencelock.ErrInvalidOption].
func WithNameLabel(label func(name string) string) Option {
	return func(c *config) error {
		if label == nil {
			return fmt.Errorf("%w: WithNameLabel of a nil function", fencelock.ErrInvalidOption)
		}
		c.label = label
		return nil
	}
}

// WithFence sets fencelock.fence.name, "unnamed" by default: hooks made with it are
// for one fence. An empty name is an error that wraps [fencelock.ErrInvalidOption].
func WithFence(name string) Option {
	return func(c *config) error {
		if name == "" {
			return fmt.Errorf("%w: WithFence of an empty name", fencelock.ErrInvalidOption)
		}
		c.fence = name
		return nil
	}
}

func firstSegment(name string) string {
	first, _, _ := strings.Cut(name, "/")
	return first
}
