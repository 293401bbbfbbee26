package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/integration/resource"
)

// room is how many elements a register takes. One that is full is left for the
// next, so that histories stay small enough to be searched, and values to be
// kept.
const room = 64

func registerName(lock string, n int) string { return fmt.Sprintf("%s-%d", lock, n) }

func elements(value string) []string { return strings.Fields(value) }

func withElement(value, element string) string {
	if value == "" {
		return element
	}
	return value + " " + element
}

// findRoom reads the first register that is not full, as far as this worker has
// come. It claims each that it reads, if the strategy has a fence: the next to
// find one full has then seen to it that nothing late is written there.
func (w *worker) findRoom(ctx context.Context, token fencelock.Token) (register, value string, err error) {
	for {
		register = registerName(w.Lock, w.register)
		if w.Strategy == fenced {
			value, err = w.ask(record{Act: claim, Register: register, Token: token.String()}, func() (string, error) {
				return w.resource.Claim(ctx, register, token)
			})
		} else {
			value, err = w.ask(record{Act: read, Register: register}, func() (string, error) {
				return w.resource.Read(ctx, register)
			})
		}
		if err != nil || len(elements(value)) < room {
			return register, value, err
		}
		w.register++
	}
}

// add writes what was read, with the element.
func (w *worker) add(ctx context.Context, register string, token fencelock.Token, value, element string) error {
	value = withElement(value, element)
	r := record{Act: write, Register: register, Token: token.String(), Value: value, Element: element}
	send := w.resource.Write
	if w.Strategy != fenced {
		r.Act, send = overwrite, w.resource.Overwrite
	}
	_, err := w.ask(r, func() (string, error) { return "", send(ctx, register, token, value) })
	return err
}

// ask sends one request to the resource, and records that and what came of it.
func (w *worker) ask(r record, send func() (value string, err error)) (string, error) {
	op := w.invoke(r)
	value, err := send()
	answer := record{Kind: returned, Op: op, Outcome: done, Value: value, Note: text(err)}
	var stale *fencelock.StaleError
	switch {
	case err == nil:
	case errors.As(err, &stale):
		answer.Outcome, answer.Highest = refused, stale.Highest.String()
	case errors.Is(err, resource.ErrUnanswered):
		answer.Outcome = unknown
	default:
		answer.Outcome = unsent
	}
	w.put(answer)
	return value, err
}
