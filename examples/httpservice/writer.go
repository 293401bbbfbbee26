//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/examples/internal/process"
	"github.com/fencelock/fencelock/httpfence"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

const document = "plan"

// What a writer reports, and the service.
const (
	serving = "serving"
	hasRead = "has-read" // and the first writer waits for Proceed
	applied = "applied"
	refused = "refused"
	told    = "told" // by fencelock, that the lock was lost

	address = "serves at "
)

var nobody fencelock.Token

// remote is the service as a writer sees it.
type remote struct {
	client *http.Client // with a httpfence.Transport
	url    string       // of the document
}

func newRemote(addr string) *remote {
	return &remote{
		client: &http.Client{Transport: &httpfence.Transport{}},
		url:    "http://" + addr + "/documents/" + document,
	}
}

// send sends a request with the token, and returns the answer's text. A token that
// was refused is the same error here as at a fence in this process.
func (r *remote) send(ctx context.Context, token fencelock.Token, method, path, body string) (string, error) {
	req, err := http.NewRequestWithContext(httpfence.WithToken(ctx, token), method, r.url+path, strings.NewReader(body))
	if err != nil {
		return "", err
	}
	resp, err := r.client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if err := httpfence.CheckResponse(resp); err != nil {
		return "", err
	}
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return "", err
	}
	if resp.StatusCode >= 300 {
		return "", fmt.Errorf("%s %s: %s: %s", method, req.URL, resp.Status, text)
	}
	return string(text), nil
}

func (r *remote) claim(ctx context.Context, token fencelock.Token) error {
	_, err := r.send(ctx, token, http.MethodPost, "/claim", "")
	return err
}

// read sends the token too, though the service does not ask for one where nothing
// is changed.
func (r *remote) read(ctx context.Context, token fencelock.Token) (string, error) {
	return r.send(ctx, token, http.MethodGet, "", "")
}

func (r *remote) write(ctx context.Context, token fencelock.Token, text string) error {
	_, err := r.send(ctx, token, http.MethodPut, "", text)
	return err
}

// writer appends a line to the document. The first and the second differ in the
// place where the first waits to be stopped.
type writer struct {
	*process.Self
	linger func() error
	remote *remote
}

// append is what to copy, but for the place marked.
func (w *writer) append(ctx context.Context, locker *fencelock.Locker) error {
	return locker.Do(ctx, lockName(document), func(held context.Context, token fencelock.Token) error {
		w.Say("has-lock", token, "has the lock")
		// Before the first read: a late write of whoever had the lock earlier must
		// not land between this writer's read and its write.
		if err := w.remote.claim(held, token); err != nil {
			return err
		}
		text, err := w.remote.read(held, token)
		if err != nil {
			return err
		}
		w.Say(hasRead, token, "reads %q, and will append to it", text)
		if err := w.linger(); err != nil {
			return err
		}
		// Only so that it is the service, and not the context, that is put to the
		// test; give held to yours.
		late := context.WithoutCancel(held)
		err = w.remote.write(late, token, text+w.Name+" was here\n")
		switch {
		case err == nil:
			w.Say(applied, token, "writes: APPLIED")
		case errors.Is(err, fencelock.ErrStale):
			w.Say(refused, token, "writes: REFUSED, the service answers 412: it has seen a newer token")
		}
		return err
	})
}

func first(ctx context.Context, self *process.Self) error {
	return write(ctx, &writer{Self: self, linger: func() error { return self.Pause(ctx) }})
}

func second(ctx context.Context, self *process.Self) error {
	return write(ctx, &writer{Self: self, linger: func() error { return nil }})
}

// write is the role of a writer. Its arguments are the addresses of etcd and of the
// service.
func write(ctx context.Context, w *writer) error {
	client, err := clientv3.New(clientv3.Config{Endpoints: w.Args[:1], Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	defer client.Close()
	locker, err := fencelock.New(client,
		fencelock.WithTTL(3*time.Second),                    // short, for a short story; the default of 15 s suits most work
		fencelock.WithLogger(slog.New(slog.DiscardHandler))) // the timeline says it; leave this out
	if err != nil {
		return err
	}
	defer locker.Close()
	w.remote = newRemote(w.Args[1])

	err = w.append(ctx, locker)
	if lost, ok := errors.AsType[*fencelock.LostError](err); ok {
		w.Say(told, nobody, "is told by Do: the lock was lost (%s), and a stale write was refused: %t",
			lost.Reason, errors.Is(err, fencelock.ErrStale))
		return nil
	}
	return err
}
