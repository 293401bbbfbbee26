// Package httpfence takes a fencing token over HTTP, to a service that checks
// it where the effect lands.
//
// The token travels in one header, [Header], in its text form. The client puts
// it there with a [Transport] or with [SetToken]:
//
//	client := &http.Client{Transport: &httpfence.Transport{}}
//	err := locker.Do(ctx, "orders/42", func(ctx context.Context, token fencelock.Token) error {
//		req, err := http.NewRequestWithContext(httpfence.WithToken(ctx, token), http.MethodPut, url, body)
//		…
//		resp, err := client.Do(req)
//		…
//		defer resp.Body.Close()
//		if err := httpfence.CheckResponse(resp); err != nil {
//			return err // a *fencelock.StaleError if it was refused
//		}
//		if resp.StatusCode != http.StatusNoContent {
//			return errors.New(resp.Status) // all else that went wrong is yours to find out
//		}
//		return nil
//	})
//
// The service requires it with [Require], and its handler commits through a
// fence that lives where the data does:
//
//	scope := func(r *http.Request) (string, error) { return "orders/" + r.PathValue("id"), nil }
//	mux.Handle("PUT /orders/{id}", httpfence.Require(scope)(handler))
//	…
//	token, _ := httpfence.TokenFrom(r.Context())
//	err := fence.Tx(r.Context(), token, …) // a sqlfence.Fence
//	switch {
//	case httpfence.Error(w, r, err): // it was a refusal, and the client is told
//	case err != nil:
//		http.Error(w, "the order was not stored", http.StatusInternalServerError)
//	default:
//		w.WriteHeader(http.StatusNoContent) // nothing is written before the fence has answered
//	}
//
// # The middleware is no fence
//
// It sees that there is a token, and compares it with nothing. A check in front
// of the handler could only say that the token was not stale then; the handler
// can be stalled after it. What makes the service safe is the fence in its
// handler, which checks the token and applies the effect in one step.
//
// # Who says which lock it is
//
// The name of a lock never travels. The service decides from its own view of the
// request which lock guards what it is about to change; that is the scope
// function of Require. A client that could name the scope could bring a large
// token of some other lock.
//
// So a token of the wrong lock, sent by mistake, is not recognised as such: the
// service takes its number for one of its own lock, with the harm of a number that
// was made up, which is bounded as follows.
//
// # A token is no credential
//
// Who can reach the service can write any number into the header, and what a fence
// has seen it never forgets. By default every well-formed token is taken, up to the
// largest int64, 9223372036854775807; that one locks everybody else out of the
// resource for ever. Authenticate clients as you would without a lock.
//
// Where clients can be wrong, not only hostile, verify tokens against etcd, with
// [WithVerifier] and package etcdverify. Then no token above etcd's revision reaches
// the handler, and that is the bound: a made-up one can shut out the present holder,
// until the lock is granted the next time, with a larger token; never longer.
//
// # Answers
//
//	412 Precondition Failed    a newer token was seen; the effect was not applied
//	428 Precondition Required  there is no token
//	400 Bad Request            more than one token, a malformed one, one that was
//	                           never issued, or no scope
//	503 Service Unavailable    the verifier came to no result
//
// All are application/problem+json (RFC 9457), told from other errors of the same
// status by their type. Besides type, title, status and detail the 412 has the
// members scope (a name that is not valid UTF-8 is shown with U+FFFD for what is
// not), presented and highest (both in the text form of a token; highest is missing if
// the fence did not say). [CheckResponse]
// turns them back into errors: for a token those they came from, so that errors.Is
// says the same on both sides, and [ErrNoScope] and [ErrUnverified].
//
// # What is not promised
//
// A fence orders holders, not the messages of one holder. HTTP clients, proxies
// and [net/http] itself repeat requests that got no answer, and a late copy of a
// holder's first request passes after its second. Do not send the next effect
// while a copy of the last may be under way, or make effects conditional. A
// request that got no answer may have been applied. One whose answer broke off too, also
// where [Error] made it break off.
package httpfence
