package httpfence_test

import (
	"net/http"
	"testing"

	"github.com/fencelock/fencelock/internal/leaktest"
)

func TestMain(m *testing.M) {
	leaktest.Main(m, http.DefaultTransport.(*http.Transport).CloseIdleConnections)
}
