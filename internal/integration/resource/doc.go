// Package resource is what the locks of the tests protect: registers, which are
// values by name, in a process of their own, that keep a history of all that was
// asked of them, in the order in which it was decided.
//
// A register takes writes through a fence, of memory or of an SQLite file, and
// by a second way also past it. The second is a test's control: a fault after
// which nothing stale would arrive proves nothing about a fence that refused it.
//
//	p := resource.Start(t, "")
//	r := p.Client(t)
//	value, err := r.Claim(ctx, "stock", token) // before anything is read
//	err = r.Write(ctx, "stock", token, value+" more")
//	history, err := r.History(ctx, "stock")
//	require.Empty(t, resource.Stale(history))
//
// # Why a protocol of its own
//
// A request is one line of JSON, and so is its reply. That is what a test's
// proxy can hold, or send a second time, without knowing more than where a line
// ends. HTTP was rejected because its clients send some requests again by
// themselves; here nothing is ever sent twice unless a test does it.
//
// A server gives a token the name of the register that it was asked for, as any
// resource should: which lock guards it is for the resource to know.
package resource
