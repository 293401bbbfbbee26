package httpfence

import (
	"encoding/json"
	"net/http"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/carrier"
)

const problemType = "application/problem+json"

// Types of problems. They are names and not addresses: nothing is to be found
// there, and a client must not look.
const (
	typeStale        = "urn:fencelock:problem:stale-token"
	typeNoToken      = "urn:fencelock:problem:token-required"
	typeInvalidToken = "urn:fencelock:problem:invalid-token"
	typeNoScope      = "urn:fencelock:problem:no-scope"
	typeUnverified   = "urn:fencelock:problem:token-not-verified"
)

// problem is the body of an answer, as RFC 9457 has it, with our members.
type problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`

	Scope     string `json:"scope,omitempty"`
	Presented string `json:"presented,omitempty"`
	Highest   string `json:"highest,omitempty"`
}

func staleProblem(r carrier.Refusal) problem {
	return problem{
		Type: typeStale, Title: "Stale fencing token", Status: http.StatusPreconditionFailed, Detail: r.Error(),
		Scope: r.Scope, Presented: r.Presented, Highest: r.Highest,
	}
}

// Error answers a request whose effect a fence refused, and reports whether err
// is such a refusal: [fencelock.ErrStale], of the token that the request
// carried. Then the answer is complete, and the handler returns. Otherwise
// nothing was written, and err is the handler's to answer; that includes a
// refusal of another token, which the service uses on its own account, and nil.
//
// Call it before anything is written to w. An answer that has begun cannot become a
// 412, and must not look like a success: behind [Require] nothing is added to it, a
// warning is logged, and once the handler has returned the connection is aborted, by
// a panic with [http.ErrAbortHandler]. So the client gets an error; only an answer that
// was complete and flushed before cannot be taken back.
//
// Without Require the token is not known, any refusal is answered, and w must be fresh.
func Error(w http.ResponseWriter, r *http.Request, err error) bool {
	var token fencelock.Token
	a, required := r.Context().Value(incoming{}).(*answer)
	if required {
		token = a.token
	}
	refusal, stale := carrier.Describe(err, token)
	switch {
	case !stale:
		return false
	case required && a.begun:
		a.abort = true
	default:
		write(w, staleProblem(refusal))
	}
	return true
}

func write(w http.ResponseWriter, p problem) {
	body, err := json.Marshal(p)
	if err != nil {
		panic(err) // strings and a number
	}
	h := w.Header()
	// What the handler meant for another answer. Content-Encoding stays: it can be
	// that of a middleware, which compresses whatever is written.
	for _, key := range []string{"Content-Length", "Content-Range", "Etag", "Last-Modified"} {
		h.Del(key)
	}
	h.Set("Content-Type", problemType)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(p.Status)
	_, _ = w.Write(body) // the client is gone if it fails
}
