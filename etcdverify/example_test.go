package etcdverify_test

import (
	"log"
	"net/http"

	"github.com/fencelock/fencelock/etcdverify"
	"github.com/fencelock/fencelock/httpfence"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// A service that refuses tokens which etcd cannot have issued.
func ExampleNew() {
	var etcd *clientv3.Client // the one the locks are in
	verifier, err := etcdverify.New(etcd)
	if err != nil {
		log.Fatal(err)
	}
	scope := func(r *http.Request) (string, error) { return "orders/" + r.PathValue("id"), nil }
	var handler http.Handler // which commits through a fence
	http.Handle("PUT /orders/{id}", httpfence.Require(scope, httpfence.WithVerifier(verifier.Verify))(handler))
}
