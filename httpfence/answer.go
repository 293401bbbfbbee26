package httpfence

import (
	"bufio"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"

	"github.com/fencelock/fencelock"
)

// answer is what Require knows of a request it let pass: the token, and whether the
// answer has begun, after which no status can say any more that the effect was
// refused. It stands in the request's context, and for the handler's ResponseWriter.
//
// That costs a handler the concrete type of its ResponseWriter, which nobody should
// rely on. The alternative, to ask of handlers that they write nothing too early,
// ends with a client that was told 200 of a write that never was.
type answer struct {
	http.ResponseWriter
	token fencelock.Token
	begun bool // Error would come too late
	abort bool // it did
}

func (a *answer) WriteHeader(code int) {
	// 1xx is no answer yet, but for the one that ends HTTP.
	if code >= http.StatusOK || code == http.StatusSwitchingProtocols {
		a.begun = true
	}
	a.ResponseWriter.WriteHeader(code)
}

func (a *answer) Write(p []byte) (int, error) {
	a.begun = true
	return a.ResponseWriter.Write(p)
}

func (a *answer) WriteString(s string) (int, error) {
	a.begun = true
	return io.WriteString(a.ResponseWriter, s)
}

// ReadFrom leaves it to the server's writer to copy in a better way, if it has one.
func (a *answer) ReadFrom(src io.Reader) (int64, error) {
	a.begun = true
	return io.Copy(a.ResponseWriter, src)
}

// FlushError is what [http.ResponseController] looks for.
func (a *answer) FlushError() error {
	err := http.NewResponseController(a.ResponseWriter).Flush()
	if !errors.Is(err, http.ErrNotSupported) {
		a.begun = true
	}
	return err
}

// Unwrap is what it looks for next.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// writer returns the ResponseWriter for the handler. Handlers ask by type what it
// can do, so it has to have the methods that the server's has, and no others.
// HTTP/1 has Hijack, HTTP/2 has Push.
func (a *answer) writer() http.ResponseWriter {
	_, flush := a.ResponseWriter.(http.Flusher)
	_, hijack := a.ResponseWriter.(http.Hijacker)
	_, push := a.ResponseWriter.(http.Pusher)
	switch {
	case flush && hijack:
		return hijacker{flusher{a}}
	case flush && push:
		return pusher{flusher{a}}
	case flush:
		return flusher{a}
	}
	return a // for the rest of combinations, which no server has, there is Unwrap
}

// Each is one pointer, so that none costs an allocation.
type (
	flusher  struct{ *answer }
	hijacker struct{ flusher }
	pusher   struct{ flusher }
)

func (f flusher) Flush() { _ = f.FlushError() }

func (h hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return h.ResponseWriter.(http.Hijacker).Hijack()
}

func (p pusher) Push(target string, opts *http.PushOptions) error {
	return p.ResponseWriter.(http.Pusher).Push(target, opts)
}

// end is called after the handler returned.
func (a *answer) end() {
	if !a.abort {
		return
	}
	slog.Warn("httpfence: the handler wrote to the client before it called httpfence.Error for a refused token; " +
		"the connection is aborted, so that the client does not take that for a success: write only after the fence has answered")
	panic(http.ErrAbortHandler)
}
