package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/stretchr/testify/require"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/fencetest"
)

// The recipe is a fence like any other. An object is a scope here, and its data a map.
func TestRegister(t *testing.T) {
	store, end, err := startStore(t.Context(), "registers")
	require.NoError(t, err)
	t.Cleanup(end)
	rule := 0
	fencetest.Run(t, func(*testing.T) fencetest.Resource {
		rule++
		of := func(scope string) *register {
			// A name can be longer than an object's may be, and any bytes.
			key := fmt.Sprintf("%d/%x", rule, sha256.Sum256([]byte(scope)))
			return &register{store: store, bucket: "registers", key: key, lock: scope}
		}
		update := func(ctx context.Context, token fencelock.Token, change func(map[string]string) error) error {
			var failed error
			err := of(token.Name()).update(ctx, token, func(data string) string {
				values, err := decode(data)
				if err == nil {
					err = change(values)
				}
				if failed = err; err != nil {
					return data
				}
				return encode(values)
			})
			if err != nil {
				return err
			}
			return failed
		}
		return fencetest.Resource{
			Write: func(ctx context.Context, token fencelock.Token, key, value string) error {
				return update(ctx, token, func(values map[string]string) error {
					values[key] = value
					return nil
				})
			},
			Read: func(ctx context.Context, scope, key string) (string, bool, error) {
				seen, err := of(scope).get(ctx)
				if err != nil {
					return "", false, err
				}
				values, err := decode(seen.data)
				value, found := values[key]
				return value, found, err
			},
			Update: func(ctx context.Context, token fencelock.Token, key string, f func(string, bool) (string, error)) error {
				return update(ctx, token, func(values map[string]string) error {
					old, found := values[key]
					value, err := f(old, found)
					if err == nil {
						values[key] = value
					}
					return err
				})
			},
			Advance: func(ctx context.Context, token fencelock.Token) error { return of(token.Name()).claim(ctx, token) },
			Delete: func(ctx context.Context, token fencelock.Token, key string) error {
				return update(ctx, token, func(values map[string]string) error {
					delete(values, key)
					return nil
				})
			},
		}
	})
}

// Deleting the data must not delete the mark, and the object is where the mark is.
func TestClear(t *testing.T) {
	ctx := t.Context()
	store, end, err := startStore(ctx, "registers")
	require.NoError(t, err)
	t.Cleanup(end)
	r := &register{store: store, bucket: "registers", key: "one", lock: "lock"}
	old, err := fencelock.ParseToken("lock", "1.a")
	require.NoError(t, err)
	successor, err := fencelock.ParseToken("lock", "2.b")
	require.NoError(t, err)
	write := func(string) string { return "data" }
	require.NoError(t, r.update(ctx, old, write))
	require.NoError(t, r.clear(ctx, successor))
	require.ErrorIs(t, r.update(ctx, old, write), fencelock.ErrStale)
	seen, err := r.get(ctx)
	require.NoError(t, err)
	require.Empty(t, seen.data)
}

func decode(data string) (map[string]string, error) {
	values := map[string]string{}
	if data == "" {
		return values, nil
	}
	return values, json.Unmarshal([]byte(data), &values)
}

func encode(values map[string]string) string {
	b, err := json.Marshal(values)
	if err != nil {
		panic(err) // texts
	}
	return string(b)
}

// deaf loses the answer to the first PUT since puts was zero. The SDK sends it again
// and is answered with 412, because the object is what it wrote itself.
type deaf struct {
	base http.RoundTripper
	puts atomic.Int32
}

func (d *deaf) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := d.base.RoundTrip(req)
	if err == nil && req.Method == http.MethodPut && d.puts.Add(1) == 1 {
		resp.Body.Close()
		return nil, errors.New("connection reset by peer")
	}
	return resp, err
}

func TestOwnFirstPutIsNotStale(t *testing.T) {
	ctx := t.Context()
	store, end, err := startStore(ctx, "registers")
	require.NoError(t, err)
	t.Cleanup(end)
	opts := store.Options()
	line := &deaf{base: http.DefaultTransport}
	t.Cleanup(http.DefaultTransport.(*http.Transport).CloseIdleConnections)
	opts.HTTPClient = &http.Client{Transport: line}
	r := &register{store: s3.New(opts), bucket: "registers", key: "one", lock: "lock"}
	token, err := fencelock.ParseToken("lock", "1.a")
	require.NoError(t, err)

	for i := range 2 { // the object's first version, and another
		line.puts.Store(0)
		changes := 0
		require.NoError(t, r.update(ctx, token, func(data string) string {
			changes++
			return data + "once\n"
		}))
		require.EqualValues(t, 2, line.puts.Load(), "sent, and sent again and refused")
		require.Equal(t, 1, changes)
		seen, err := r.get(ctx)
		require.NoError(t, err)
		require.Equal(t, strings.Repeat("once\n", i+1), seen.data)
	}
}
