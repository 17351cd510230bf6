package kube_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/pilothouse/pilothouse/internal/kube"
)

func TestReader(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer t0ken" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		switch r.URL.Path {
		case "/prefix/api/v1/nodes":
			fmt.Fprint(w, `{"kind":"NodeList"}`)
		case "/prefix/api/v1/pods":
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, `{"kind":"Status","message":"pods is forbidden"}`)
		case "/prefix/api/v1/broken":
			fmt.Fprint(w, `{`)
		default:
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"kind":"Status","message":"no such kind"}`)
		}
	}))
	defer s.Close()
	r, err := kube.NewReader(&rest.Config{Host: s.URL + "/prefix", BearerToken: "t0ken"})
	if err != nil {
		t.Fatal(err)
	}
	var list struct{ Kind string }
	if err := r.Get(t.Context(), &list, "api", "v1", "nodes"); err != nil || list.Kind != "NodeList" {
		t.Errorf("%v, %v", list, err)
	}
	for path, want := range map[string]string{
		"pods": "/api/v1/pods: 403 Forbidden: pods is forbidden", "broken": "decode the answer", "other": "no such kind",
	} {
		err := r.Get(t.Context(), &list, "api", "v1", path)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "t0ken") {
			t.Errorf("%s: error %v, want one with %q", path, err, want)
		}
		if notFound := path == "other"; errors.Is(err, kube.ErrNotFound) != notFound {
			t.Errorf("%s: not found is %v", path, !notFound)
		}
	}
}
