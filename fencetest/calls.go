package fencetest

import (
	"context"

	"github.com/fencelock/fencelock"
)

// fenced is one of a Resource's functions that take a token. All are made to look like
// Write, for what is true of one must be true of each: Advance has no use for key and
// value, Delete none for value.
type fenced struct {
	name string
	call func(ctx context.Context, token fencelock.Token, key, value string) error
}

// fenced returns those the resource has, Write first.
func (r Resource) fenced() []fenced {
	has := []fenced{{"Write", r.Write}}
	if r.Advance != nil {
		has = append(has, fenced{"Advance", func(ctx context.Context, token fencelock.Token, _, _ string) error {
			return r.Advance(ctx, token)
		}})
	}
	if r.Update != nil {
		has = append(has, fenced{"Update", func(ctx context.Context, token fencelock.Token, key, value string) error {
			return r.Update(ctx, token, key, func(string, bool) (string, error) { return value, nil })
		}})
	}
	if r.Delete != nil {
		has = append(has, fenced{"Delete", func(ctx context.Context, token fencelock.Token, key, _ string) error {
			return r.Delete(ctx, token, key)
		}})
	}
	return has
}

// refuseEach runs every function the resource has, and each must be refused.
func (r Resource) refuseEach(t tb, token fencelock.Token, key string, want error, why string) {
	t.Helper()
	for _, f := range r.fenced() {
		r.refuse(t, f.name, token, key, want, why, func(ctx context.Context) error {
			return f.call(ctx, token, key, "refused:"+token.String())
		})
	}
}
