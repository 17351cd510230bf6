package webhook_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"testing"

	meshv1 "istio.io/api/mesh/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/pilothouse/pilothouse/internal/discovery/webhook"
	"github.com/pilothouse/pilothouse/test/wait"
)

// An injector is pending until all that it needs has been read, also while one list takes long, but not where a list is forbidden: that
// does not end by waiting.
func TestInjectorIsPendingUntilItsConfigurationIsRead(t *testing.T) {
	for _, slow := range []string{"configmaps", "nodes"} {
		t.Run(slow, func(t *testing.T) {
			release := make(chan struct{})
			asked := make(chan struct{}, 100)
			in := runInjector(t, func(w http.ResponseWriter, r *http.Request, list string) {
				if list == slow {
					asked <- struct{}{}
					select {
					case <-release:
					case <-r.Context().Done():
						return
					}
				}
				fmt.Fprint(w, `{"apiVersion":"v1","kind":"List","metadata":{"resourceVersion":"1"},"items":[]}`)
			})
			<-asked
			if why := in.Pending(); !strings.Contains(why, "has not been read yet") {
				t.Errorf("pending: %q", why)
			}
			if _, err := in.Inject(webhook.PodRequest{Pod: &corev1.Pod{}, Namespace: "shop", Path: "/inject"}); err == nil {
				t.Error("a Pod is injected by a configuration that has not been read")
			}
			if texts, ok := in.TemplateTexts(); ok {
				t.Errorf("templates %v of a configuration that has not been read", texts)
			}
			close(release)
			wait.Until(t, "it is not pending", func() bool { return in.Pending() == "" })
			if _, err := in.Inject(webhook.PodRequest{Pod: &corev1.Pod{}, Namespace: "shop", Path: "/inject"}); err != nil {
				t.Errorf("a Pod is refused when nothing is pending: %v", err)
			}
			if texts, ok := in.TemplateTexts(); !ok || texts["sidecar"] == "" {
				t.Errorf("templates %v, known: %v; want those that are built in", texts, ok)
			}
		})
	}
	in := runInjector(t, func(w http.ResponseWriter, _ *http.Request, _ string) {
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, `{"apiVersion":"v1","kind":"Status","status":"Failure","reason":"Forbidden","code":403}`)
	})
	wait.Until(t, "it is not pending where it may not read", func() bool { return in.Pending() == "" })
}

// runInjector runs an injector against an API server whose lists are answered by a function.
func runInjector(t *testing.T, answer func(w http.ResponseWriter, r *http.Request, list string)) *webhook.ClusterInjector {
	t.Helper()
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch q := r.URL.Query(); {
		case q.Get("sendInitialEvents") == "true": // as a server that cannot stream lists
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprint(w, `{"apiVersion":"v1","kind":"Status","status":"Failure","reason":"BadRequest","code":400}`)
		case q.Get("watch") != "":
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		default:
			answer(w, r, path.Base(r.URL.Path))
		}
	}))
	in, err := webhook.NewClusterInjector(webhook.InjectorOptions{
		Config: &rest.Config{Host: api.URL}, Namespace: "mesh", Ready: func() bool { return true }, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	in.SetMesh(&meshv1.MeshConfig{})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- in.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("run: %v", err)
		}
		api.CloseClientConnections()
		api.Close()
	})
	return in
}
