package forward_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/pilothouse/pilothouse/internal/kube/forward"
)

// An API server whose node does not answer delays neither Dial, whose context ends, nor Close. That connections work is
// tested with a real API server (test/kube/node).
func TestAPIServerThatDoesNotAnswer(t *testing.T) {
	asked, end := make(chan string, 10), make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked <- r.URL.Path
		<-end
	}))
	defer s.Close()
	defer close(end)
	p, err := forward.New(&rest.Config{Host: s.URL + "/prefix"}, "mesh", "istiod-1")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		if path := <-asked; path != "/prefix/api/v1/namespaces/mesh/pods/istiod-1/portforward" {
			t.Errorf("the request is for %s", path)
		}
		cancel()
	}()
	if _, err := p.Dial(ctx, 8080); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want that of the context", err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

func TestErrorsOfTheAPIServer(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "pods \"istiod-1\" is forbidden", http.StatusForbidden)
	}))
	defer s.Close()
	p, err := forward.New(&rest.Config{Host: s.URL}, "mesh", "istiod-1")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second attempt is a new one
		if _, err := p.Dial(t.Context(), 8080); err == nil || !strings.Contains(err.Error(), "forbidden") {
			t.Errorf("error %v, want what the API server says", err)
		}
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}
