// Package hook calls the functions that observe, of which nothing may depend on.
package hook

import (
	"log/slog"
	"runtime/debug"
)

// Call runs a hook, nil for none, and contains its panic or Goexit: an observer must
// not take a lock from its holder, or turn a refusal into a client that waits. What it
// contained is logged to log, or to the default logger for nil. Goexit cannot be
// recovered from, so a hook gets a goroutine to end.
func Call[I any](log *slog.Logger, hook func(I), info I) {
	if hook != nil {
		call(log, hook, info)
	}
}

// call is apart so that an info is only on the heap where there is a hook.
func call[I any](log *slog.Logger, hook func(I), info I) {
	if log == nil {
		log = slog.Default()
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		returned := false
		defer func() {
			switch v := recover(); {
			case v != nil:
				log.Warn("fencelock: panic in a hook", "panic", v, "stack", string(debug.Stack()))
			case !returned:
				log.Warn("fencelock: a hook ended its goroutine", "stack", string(debug.Stack()))
			}
		}()
		hook(info)
		returned = true
	}()
	<-done
}
