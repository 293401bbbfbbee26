package main

import (
	"context"
	"testing"

	"github.com/fencelock/fencelock"
	"github.com/stretchr/testify/require"
)

// lockerInProcess returns a Locker on an etcd that answers at once.
func lockerInProcess(b *testing.B) *fencelock.Locker {
	b.Helper()
	locker, err := newInProcess()
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, locker.Close()) })
	return locker
}

// What Do costs beside etcd: of a cycle of two requests, this is the library.
func BenchmarkDo(b *testing.B) {
	locker := lockerInProcess(b)
	doInProcess(b, locker)
}

// A holder can ask on every iteration of its work: each of these reads the clock.
func BenchmarkHeldContext(b *testing.B) {
	locker := lockerInProcess(b)
	lock, err := locker.Acquire(b.Context(), "name")
	require.NoError(b, err)
	defer func() { require.NoError(b, lock.Release(context.Background())) }()
	ctx := lock.Context()
	nested := context.WithValue(ctx, benchKey{}, 1)
	b.Run("Err", func(b *testing.B) { askHeld(b, ctx) })
	b.Run("Err of a context with a value", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if nested.Err() != nil {
				b.Fatal(nested.Err())
			}
		}
	})
	b.Run("Done", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			select {
			case <-ctx.Done():
				b.Fatal(ctx.Err())
			default:
			}
		}
	})
	b.Run("Lock.Err", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if lock.Err() != nil {
				b.Fatal(lock.Err())
			}
		}
	})
}

type benchKey struct{}

func BenchmarkToken(b *testing.B) {
	token, err := fencelock.ParseToken("name", "9223372036854775807.694d7624a5d5f04e-0123456789abcdef-1000000")
	require.NoError(b, err)
	b.Run("MarshalText", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := token.MarshalText(); err != nil {
				b.Fatal(err)
			}
		}
	})
	text, err := token.MarshalText()
	require.NoError(b, err)
	b.Run("ParseToken", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := fencelock.ParseToken("name", string(text)); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkFence(b *testing.B) {
	token, err := fencelock.ParseToken("name", "1.holder")
	require.NoError(b, err)
	var fence fencelock.Fence
	effect := func() error { return nil }
	b.Run("Do", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := fence.Do(token, effect); err != nil {
				b.Fatal(err)
			}
		}
	})
}
