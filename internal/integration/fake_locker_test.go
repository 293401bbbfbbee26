package integration

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/fencetest"
	"github.com/fencelock/fencelock/internal/integration/harness"
)

// lockerOrFake is what both kinds of Locker are to a caller.
type lockerOrFake interface {
	Do(ctx context.Context, name string, fn func(ctx context.Context, token fencelock.Token) error, opts ...fencelock.LockOption) error
	DoAdvisory(ctx context.Context, name string, fn func(ctx context.Context) error, opts ...fencelock.LockOption) error
	Lead(ctx context.Context, name string, fn func(ctx context.Context, token fencelock.Token) error, opts ...fencelock.LockOption) error
}

// likeness is one scenario on one kind of Locker: what it calls, what happens to it,
// and what a caller could see of it, which must be the same on both kinds.
type likeness struct {
	t     *testing.T
	l     lockerOrFake
	other lockerOrFake // another process's; in memory the same
	// lose loses the lock "x" of token and returns when its context has ended.
	lose func(ctx context.Context, token fencelock.Token)
	// awaitWaiting waits until n calls wait for "x". It is called for the first wait of
	// its scenario, and for none.
	awaitWaiting func(n int)
	// closeL closes l, which holds or waits for "x".
	closeL func()

	seen []string
}

// changing is what differs from run to run in a text: tokens and times. A loss says how
// long the holder went on only from half a millisecond.
var (
	changing = regexp.MustCompile(`\d+\.[A-Za-z0-9_-]+|\d+(µs|ms|s)\b`)
	wentOn   = regexp.MustCompile(`; the holder went on for \S+`)
)

// see notes an error: everything it is, and its text.
func (s *likeness) see(what string, err error) {
	s.seeKind(what, err)
	if err != nil {
		s.seeText(what, err.Error())
	}
}

func (s *likeness) seeText(what, text string) {
	s.seen = append(s.seen, what+" says "+changing.ReplaceAllString(wentOn.ReplaceAllString(text, ""), "…"))
}

// seeKind is see without the text.
func (s *likeness) seeKind(what string, err error) {
	s.t.Helper()
	if err == nil {
		s.seen = append(s.seen, what+": nil")
		return
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s:", what)
	for _, e := range append([]error{errWork, errCause}, everyError...) {
		if errors.Is(err, e) {
			fmt.Fprintf(&b, " [%v]", e)
		}
	}
	var failed *fencelock.AcquireError
	if errors.As(err, &failed) {
		fmt.Fprintf(&b, " AcquireError %s %s", failed.Name, failed.Phase)
	}
	var held *fencelock.HeldError
	if errors.As(err, &held) {
		fmt.Fprintf(&b, " HeldError %s of %s by %s, since %v, remaining %v", held.Name, held.Holder.Token.Name(), held.Holder.Label,
			!held.Holder.Since.IsZero(), held.Holder.Remaining)
	}
	var lost *fencelock.LostError
	if errors.As(err, &lost) {
		fmt.Fprintf(&b, " LostError %s of %s %s, confirmed %v, lost later %v, returned %v, because of %v", lost.Name, lost.Token.Name(), lost.Reason,
			!lost.LastConfirmed.IsZero(), !lost.LostAt.Before(lost.LastConfirmed), !lost.Returned.IsZero(), lost.Err)
		fmt.Fprintf(&b, ", itself %v", error(lost) == err)
	}
	var stale *fencelock.StaleError
	if errors.As(err, &stale) {
		fmt.Fprintf(&b, " StaleError %s", stale.Scope)
	}
	s.seen = append(s.seen, b.String())
}

// seeContext notes the end of a context.
func (s *likeness) seeContext(what string, ctx context.Context) {
	s.t.Helper()
	s.see(what+", Err", ctx.Err())
	s.see(what+", Cause", context.Cause(ctx))
}

func (s *likeness) fact(what string, value any) {
	s.seen = append(s.seen, fmt.Sprintf("%s: %v", what, value))
}

// same notes whether an error is the very one.
func (s *likeness) same(what string, want, err error) {
	s.fact(what+" returns it as it is", err == want)
}

// never is a callback that must not run.
func (s *likeness) never(context.Context, fencelock.Token) error {
	s.fact("the callback", "ran")
	return nil
}

// holding has the lock "x" held, by other, while f runs.
func (s *likeness) holding(f func(held context.Context, token fencelock.Token)) {
	s.t.Helper()
	s.see("the other", s.other.Do(s.t.Context(), "x", func(ctx context.Context, token fencelock.Token) error {
		f(ctx, token)
		return used(token, nil)
	}))
}

// free notes whether the lock is free.
func (s *likeness) free() {
	s.t.Helper()
	s.see("afterwards", s.l.DoAdvisory(s.t.Context(), "x", func(context.Context) error { return nil }, fencelock.MaxWait(0)))
}

var likenesses = map[string]func(*likeness){
	"a free lock": func(s *likeness) {
		var held context.Context
		var last fencelock.Token
		for range 2 {
			s.see("Do", s.l.Do(s.t.Context(), "x", func(ctx context.Context, token fencelock.Token) error {
				held = ctx
				s.see("inside", ctx.Err())
				s.fact("name", token.Name())
				s.fact("rises", token.Compare(last))
				s.fact("another holder", token.Holder() != last.Holder())
				last = token
				return used(token, nil)
			}))
			s.seeContext("after", held)
		}
		s.see("DoAdvisory", s.l.DoAdvisory(s.t.Context(), "x", func(ctx context.Context) error { held = ctx; return nil }))
		s.seeContext("after", held)
		s.see("Lead", s.l.Lead(s.t.Context(), "x", func(_ context.Context, token fencelock.Token) error { return used(token, nil) }))
		s.see("unused", s.l.Do(s.t.Context(), "x", func(context.Context, fencelock.Token) error { return nil }))
		// Over all names.
		s.see("another name", s.l.Do(s.t.Context(), "x/y", func(_ context.Context, token fencelock.Token) error {
			s.fact("rises", token.Revision() > last.Revision())
			return nil
		}))
	},
	"the callback's error": func(s *likeness) {
		fn := func(_ context.Context, token fencelock.Token) error { return used(token, errWork) }
		s.same("Do", errWork, s.l.Do(s.t.Context(), "x", fn))
		s.same("Lead", errWork, s.l.Lead(s.t.Context(), "x", fn))
		s.same("DoAdvisory", errWork, s.l.DoAdvisory(s.t.Context(), "x", func(context.Context) error { return errWork }))
		s.free()
	},
	"values, deadline, cancellation": func(s *likeness) {
		ctx, stop := context.WithTimeout(context.WithValue(s.t.Context(), valueKey{}, "a value"), time.Hour)
		defer stop()
		ctx, cancel := context.WithCancelCause(ctx)
		var held context.Context
		s.see("Do", s.l.Do(ctx, "x", func(ctx context.Context, token fencelock.Token) error {
			held = ctx
			s.fact("value", ctx.Value(valueKey{}))
			_, ok := ctx.Deadline()
			s.fact("deadline", ok)
			cancel(errCause)
			s.seeContext("cancelled", ctx)
			s.see("held", s.other.Do(s.t.Context(), "x", s.never, fencelock.MaxWait(0)))
			return used(token, nil)
		}))
		s.seeContext("after", held)
		s.see("again", s.l.Do(ctx, "x", s.never))
	},
	"held": func(s *likeness) {
		s.holding(func(context.Context, fencelock.Token) {
			for _, d := range []time.Duration{0, 50 * time.Millisecond} {
				s.see("Do", s.l.Do(s.t.Context(), "x", s.never, fencelock.MaxWait(d)))
				s.see("DoAdvisory", s.l.DoAdvisory(s.t.Context(), "x", func(context.Context) error { return errWork }, fencelock.MaxWait(d)))
			}
			ctx, cancel := context.WithTimeout(s.t.Context(), 500*time.Millisecond)
			defer cancel()
			s.see("a deadline", s.l.Do(ctx, "x", s.never))
			s.see("another name", s.l.Do(s.t.Context(), "y", func(_ context.Context, token fencelock.Token) error { return used(token, nil) }))
		})
		s.see("by DoAdvisory", s.other.DoAdvisory(s.t.Context(), "x", func(context.Context) error {
			s.see("Do", s.l.Do(s.t.Context(), "x", s.never, fencelock.MaxWait(0)))
			return nil
		}))
		s.free()
	},
	"an ended context": func(s *likeness) {
		cancelled, cancel := context.WithCancelCause(s.t.Context())
		cancel(errCause)
		late, cancel2 := context.WithDeadline(s.t.Context(), time.Now().Add(-time.Second))
		defer cancel2()
		for _, ctx := range []context.Context{cancelled, late} {
			s.see("Do", s.l.Do(ctx, "x", s.never))
			s.see("DoAdvisory", s.l.DoAdvisory(ctx, "x", func(context.Context) error { return errWork }))
			s.see("Lead", s.l.Lead(ctx, "x", s.never))
			s.see("first the name", s.l.Do(ctx, "", s.never))
		}
	},
	"bad calls": func(s *likeness) {
		var none context.Context
		ctx := s.t.Context()
		s.see("a nil callback", s.l.Do(none, "", nil))
		s.see("a nil callback", s.l.DoAdvisory(none, "", nil))
		s.see("a nil callback", s.l.Lead(none, "", nil))
		advisory := func(context.Context) error { return errWork }
		for _, call := range []func(context.Context, string, ...fencelock.LockOption) error{
			func(ctx context.Context, name string, opts ...fencelock.LockOption) error {
				return s.l.Do(ctx, name, s.never, opts...)
			},
			func(ctx context.Context, name string, opts ...fencelock.LockOption) error {
				return s.l.DoAdvisory(ctx, name, advisory, opts...)
			},
			func(ctx context.Context, name string, opts ...fencelock.LockOption) error {
				return s.l.Lead(ctx, name, s.never, opts...)
			},
		} {
			s.see("a nil context", call(none, "", fencelock.MaxWait(-1)))
			s.see("no name", call(ctx, "", fencelock.MaxWait(-1)))
			s.see("a long name", call(ctx, strings.Repeat("n", 1025)))
			s.see("a negative wait", call(ctx, "x", fencelock.MaxWait(-1)))
			s.see("no hold", call(ctx, "x", fencelock.MaxWait(1), fencelock.MaxHold(0)))
			s.see("a nil option", call(ctx, "x", fencelock.MaxWait(1), nil))
		}
		s.see("RequireTokenUse", s.l.DoAdvisory(ctx, "x", advisory, fencelock.RequireTokenUse()))
		s.see("the longest name", s.l.Do(ctx, strings.Repeat("\xff", 1024), func(_ context.Context, token fencelock.Token) error { return used(token, nil) }))
	},
	"lost while another waits, and late at the fence": func(s *likeness) {
		var fence fencelock.Fence
		s.see("Do", s.l.Do(s.t.Context(), "x", func(ctx context.Context, token fencelock.Token) error {
			require.NoError(s.t, fence.Advance(token))
			next := inBackground(s.t, func() error {
				return s.other.Do(s.t.Context(), "x", func(_ context.Context, next fencelock.Token) error { return fence.Advance(next) })
			})
			s.awaitWaiting(1)
			s.lose(ctx, token)
			s.see("the next", harness.Receive(s.t, next, soon, "next holder"))
			return errors.Join(errWork, fence.Advance(token))
		}))
		s.free()
	},
	"MaxHold": func(s *likeness) {
		s.see("Do", s.l.Do(s.t.Context(), "x", func(ctx context.Context, token fencelock.Token) error {
			<-ctx.Done()
			s.seeContext("lost", ctx)
			s.see("not free yet", s.other.Do(s.t.Context(), "x", s.never, fencelock.MaxWait(0)))
			return used(token, ctx.Err())
		}, fencelock.MaxHold(100*time.Millisecond)))
		// The real one's key is deleted in the background.
		s.see("soon", s.l.DoAdvisory(s.t.Context(), "x", func(context.Context) error { return nil }, fencelock.MaxWait(soon)))
	},
	"a panic and Goexit": func(s *likeness) {
		var held context.Context
		for _, end := range []func(){func() { panic(errWork) }, runtime.Goexit} {
			for _, call := range []func(fn func(context.Context)){
				func(fn func(context.Context)) {
					_ = s.l.Do(s.t.Context(), "x", func(ctx context.Context, _ fencelock.Token) error { fn(ctx); return nil })
				},
				func(fn func(context.Context)) {
					_ = s.l.DoAdvisory(s.t.Context(), "x", func(ctx context.Context) error { fn(ctx); return nil })
				},
				func(fn func(context.Context)) {
					_ = s.l.Lead(s.t.Context(), "x", func(ctx context.Context, _ fencelock.Token) error { fn(ctx); return nil })
				},
			} {
				over := make(chan any)
				go func() {
					defer close(over)
					defer func() {
						if v := recover(); v != nil {
							over <- v
						}
					}()
					call(func(ctx context.Context) { held = ctx; end() })
					over <- "it returned"
				}()
				s.fact("passed on", harness.Receive(s.t, over, soon, "end of the callback"))
				s.seeContext("after", held)
				s.free()
			}
		}
	},
	"reentrant": func(s *likeness) {
		nothing := func(context.Context) error { return nil }
		var late context.Context
		s.see("Do", s.l.Do(s.t.Context(), "x", func(ctx context.Context, token fencelock.Token) error {
			for _, inner := range []context.Context{ctx, context.WithValue(ctx, valueKey{}, 1), context.WithoutCancel(ctx)} {
				s.see("Do", s.l.Do(inner, "x", s.never))
				s.see("DoAdvisory", s.l.DoAdvisory(inner, "x", nothing, fencelock.MaxWait(0)))
				s.see("Lead", s.l.Lead(inner, "x", s.never))
				s.see("first the option", s.l.Do(inner, "x", s.never, fencelock.MaxWait(-1)))
			}
			s.see("no child of the hold", s.l.Do(s.t.Context(), "x", s.never, fencelock.MaxWait(0)))
			s.see("another name", s.l.DoAdvisory(ctx, "y", func(ctx context.Context) error {
				s.see("in between", s.l.DoAdvisory(ctx, "x", nothing))
				return nil
			}))
			late = context.WithoutCancel(ctx)
			s.lose(ctx, token)
			s.see("lost", s.l.DoAdvisory(late, "x", nothing))
			s.see("lost, and its context ended", s.l.DoAdvisory(ctx, "x", nothing))
			s.see("lost, and another name", s.l.DoAdvisory(ctx, "y", nothing))
			return used(token, nil)
		}))
		s.see("released", s.l.DoAdvisory(late, "x", nothing))
	},
	"nested": func(s *likeness) {
		for _, derive := range []func(context.Context) context.Context{func(ctx context.Context) context.Context { return ctx }, context.WithoutCancel} {
			s.see("outer", s.l.Do(s.t.Context(), "x", func(ctx context.Context, token fencelock.Token) error {
				s.see("between", s.other.DoAdvisory(derive(ctx), "between", func(ctx context.Context) error {
					return s.l.DoAdvisory(derive(ctx), "inner", func(inner context.Context) error {
						s.lose(inner, token)
						s.seeContext("inner", inner)
						return nil
					})
				}))
				return used(token, nil)
			}))
		}
	},
	"tokens went backwards": func(s *likeness) {
		var fence fencelock.Fence
		higher, err := fencelock.ParseToken("x", "9000000000.another")
		require.NoError(s.t, err)
		require.NoError(s.t, fence.Advance(higher))
		s.seeKind("Do", s.l.Do(s.t.Context(), "x", func(_ context.Context, token fencelock.Token) error {
			return errors.Join(errWork, fence.Advance(token))
		}))
		s.see("not its own", s.l.DoAdvisory(s.t.Context(), "x", func(context.Context) error {
			lower, err := fencelock.ParseToken("x", "1.another")
			require.NoError(s.t, err)
			return fence.Advance(lower)
		}))
	},
	"Lead": func(s *likeness) {
		var terms []fencelock.Token
		s.see("two terms", s.l.Lead(s.t.Context(), "x", func(ctx context.Context, token fencelock.Token) error {
			terms = append(terms, token)
			s.see("inside", ctx.Err())
			if len(terms) == 1 {
				s.lose(ctx, token)
				s.seeContext("lost", ctx)
				return used(token, nil)
			}
			return used(token, errWork)
		}))
		s.fact("terms", len(terms))
		s.fact("rises", terms[1].Compare(terms[0]))
		ctx, cancel := context.WithCancelCause(s.t.Context())
		s.see("ended after a loss", s.l.Lead(ctx, "x", func(ctx context.Context, token fencelock.Token) error {
			s.lose(ctx, token)
			cancel(errCause)
			return used(token, errWork)
		}))
		s.see("ended", s.l.Lead(ctx, "x", s.never))
		ctx, cancel = context.WithCancelCause(s.t.Context())
		s.see("ended while it leads", s.l.Lead(ctx, "x", func(ctx context.Context, token fencelock.Token) error {
			cancel(errCause)
			return used(token, ctx.Err())
		}))
		s.holding(func(context.Context, fencelock.Token) {
			ctx, cancel := context.WithTimeout(s.t.Context(), 500*time.Millisecond)
			defer cancel()
			s.seeKind("MaxWait", s.l.Lead(ctx, "x", s.never, fencelock.MaxWait(0)))
		})
		s.free()
	},
	"closed": func(s *likeness) {
		s.see("Do", s.l.Do(s.t.Context(), "x", func(ctx context.Context, token fencelock.Token) error {
			waiting := inBackground(s.t, func() error { return s.l.Do(s.t.Context(), "x", s.never) })
			s.awaitWaiting(1)
			s.closeL()
			s.see("waiting", harness.Receive(s.t, waiting, soon, "end of the wait"))
			<-ctx.Done()
			s.seeContext("inside", ctx)
			s.see("Do", s.l.Do(s.t.Context(), "x", s.never))
			s.see("DoAdvisory", s.l.DoAdvisory(s.t.Context(), "x", func(context.Context) error { return errWork }))
			s.see("Lead", s.l.Lead(s.t.Context(), "x", s.never))
			return used(token, errWork)
		}))
		s.see("Do", s.l.Do(s.t.Context(), "x", s.never))
	},
}

// cancelledWhileItWaits is a scenario for one kind of call, with and without a cause.
func cancelledWhileItWaits(cause error, call func(s *likeness, ctx context.Context) error) func(*likeness) {
	return func(s *likeness) {
		s.holding(func(context.Context, fencelock.Token) {
			ctx, cancel := context.WithCancelCause(s.t.Context())
			result := inBackground(s.t, func() error { return call(s, ctx) })
			s.awaitWaiting(1)
			cancel(cause)
			s.see("cancelled", harness.Receive(s.t, result, soon, "end of the wait"))
			s.awaitWaiting(0)
		})
		s.free()
	}
}

// lostAndReturns is a scenario for one way in which a callback can end after a loss.
func lostAndReturns(result func(held context.Context) error) func(*likeness) {
	return func(s *likeness) {
		var held context.Context
		s.see("Do", s.l.Do(s.t.Context(), "x", func(ctx context.Context, token fencelock.Token) error {
			held = ctx
			s.lose(ctx, token)
			s.seeContext("lost", ctx)
			s.see("the next", s.other.Do(s.t.Context(), "x", func(_ context.Context, next fencelock.Token) error {
				s.fact("rises", next.Compare(token))
				return nil
			}))
			return used(token, result(ctx))
		}))
		s.seeContext("after", held)
		s.free()
	}
}

func init() {
	for what, call := range map[string]func(s *likeness, ctx context.Context) error{
		"Do": func(s *likeness, ctx context.Context) error { return s.l.Do(ctx, "x", s.never) },
		"DoAdvisory": func(s *likeness, ctx context.Context) error {
			return s.l.DoAdvisory(ctx, "x", func(context.Context) error { return errWork })
		},
		"Lead": func(s *likeness, ctx context.Context) error { return s.l.Lead(ctx, "x", s.never) },
	} {
		likenesses[what+" is cancelled while it waits"] = cancelledWhileItWaits(nil, call)
		likenesses[what+" is cancelled with a cause while it waits"] = cancelledWhileItWaits(errCause, call)
	}
	for what, result := range map[string]func(context.Context) error{
		"an error":           func(context.Context) error { return errWork },
		"nil":                func(context.Context) error { return nil },
		"the cause":          context.Cause,
		"the cause, wrapped": func(ctx context.Context) error { return fmt.Errorf("sweeping: %w", context.Cause(ctx)) },
	} {
		likenesses["lost, and the callback returns "+what] = lostAndReturns(result)
	}
}

// The fake is worth something as far as it is like the real one. Each scenario runs on
// both, and a caller must see the same: what each error is and says, what becomes of
// the contexts, whether the callback runs.
func TestFakeLockerIsLikeTheRealOne(t *testing.T) {
	harness.Parallel(t)
	shared := newBench(t)
	for name, scenario := range likenesses {
		t.Run(name, func(t *testing.T) {
			fake := fencetest.NewLocker()
			inMemory := &likeness{t: t, l: fake, other: fake}
			inMemory.lose = func(ctx context.Context, token fencelock.Token) {
				holder, held := fake.Holder("x")
				require.True(t, held && holder.Equal(token))
				require.True(t, fake.Lose("x", fencelock.LostDeleted))
				require.Error(t, ctx.Err())
			}
			inMemory.awaitWaiting = func(n int) {
				require.Eventually(t, func() bool { return fake.Waiting("x") == n }, soon, time.Millisecond)
			}
			inMemory.closeL = func() {
				fake.Refuse("x", fencelock.ErrClosed)
				require.True(t, fake.Lose("x", fencelock.LostClosed))
			}
			scenario(inMemory)

			b := shared.part(t)
			client, otherClient := b.wired(), b.wired()
			label := fencelock.WithLabel("fencetest") // as the fake's
			l, other := b.locker(client.Client, label), b.locker(otherClient.Client, label)
			inEtcd := &likeness{t: t, l: l, other: other}
			inEtcd.lose = func(ctx context.Context, token fencelock.Token) {
				b.deleteKeyOf(token)
				harness.Receive(t, ctx.Done(), soon, "end of the held context")
			}
			inEtcd.awaitWaiting = func(n int) {
				b.awaitQueue("x", n+1)
				if n > 0 { // and it knows that it waits: then it watches the queue
					require.Eventually(t, func() bool { return client.watches.Load()+otherClient.watches.Load() > 0 }, soon, time.Millisecond)
				}
			}
			inEtcd.closeL = func() { inBackground(t, l.Close) }
			scenario(inEtcd)

			assert.Equal(t, inEtcd.seen, inMemory.seen)
			if testing.Verbose() {
				t.Logf("%s", strings.Join(inEtcd.seen, "\n"))
			}
		})
	}
}
