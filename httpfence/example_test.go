package httpfence_test

import (
	"context"
	"database/sql"
	"errors"
	"log"
	"net/http"
	"strings"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/etcdverify"
	"github.com/fencelock/fencelock/httpfence"
	"github.com/fencelock/fencelock/sqlfence"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// A service that stores what it is sent in a database, and refuses what comes
// from a superseded holder.
func ExampleRequire() {
	var (
		fence *sqlfence.Fence  // from sqlfence.New
		etcd  *clientv3.Client // the one the locks are in
	)
	verifier, err := etcdverify.New(etcd)
	if err != nil {
		log.Fatal(err)
	}
	require := httpfence.Require(
		// Which lock guards an order is the service's own knowledge.
		func(r *http.Request) (string, error) { return "orders/" + r.PathValue("id"), nil },
		httpfence.WithVerifier(verifier.Verify))

	mux := http.NewServeMux()
	mux.Handle("PUT /orders/{id}/paid", require(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, _ := httpfence.TokenFrom(r.Context())
		err := fence.Tx(r.Context(), token, func(tx *sql.Tx) error {
			_, err := tx.ExecContext(r.Context(), "UPDATE orders SET paid = true WHERE id = $1", r.PathValue("id"))
			return err
		})
		switch {
		case httpfence.Error(w, r, err):
			// Stale: the client is told.
		case err != nil:
			http.Error(w, "the order was not stored", http.StatusInternalServerError)
		default:
			w.WriteHeader(http.StatusNoContent)
		}
	})))
	log.Fatal(http.ListenAndServe("localhost:8080", mux))
}

// A holder that writes through such a service.
func ExampleTransport() {
	var locker *fencelock.Locker // from fencelock.New
	client := &http.Client{Transport: &httpfence.Transport{}}

	err := locker.Do(context.Background(), "orders/42", func(ctx context.Context, token fencelock.Token) error {
		req, err := http.NewRequestWithContext(httpfence.WithToken(ctx, token),
			http.MethodPut, "http://localhost:8080/orders/42/paid", strings.NewReader("{}"))
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if err := httpfence.CheckResponse(resp); err != nil {
			return err
		}
		if resp.StatusCode != http.StatusNoContent {
			return errors.New(resp.Status)
		}
		return nil
	})
	if errors.Is(err, fencelock.ErrStale) {
		log.Print("another holder has taken over; nothing was written: ", err)
	}
}
