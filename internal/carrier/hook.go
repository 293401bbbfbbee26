package carrier

import (
	"log/slog"
	"runtime/debug"

	"github.com/fencelock/fencelock"
)

// reject calls a hook, and contains its panic or Goexit: an observer must not turn a
// refusal into a client that waits. Goexit cannot be recovered from, so the hook gets
// a goroutine to end.
func reject(hook func(fencelock.TokenRejectedInfo), info fencelock.TokenRejectedInfo) {
	if hook == nil {
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		returned := false
		defer func() {
			switch v := recover(); {
			case v != nil:
				slog.Warn("fencelock: panic in a hook", "panic", v, "stack", string(debug.Stack()))
			case !returned:
				slog.Warn("fencelock: a hook ended its goroutine", "stack", string(debug.Stack()))
			}
		}()
		hook(info)
		returned = true
	}()
	<-done
}
