package webhook_test

import (
	"log/slog"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/pilothouse/pilothouse/internal/discovery/webhook"
)

// Before its configuration has been read, no Pod is created outside of the mesh by mistake, but those of the control
// plane are: without them it would never be read.
func TestBeforeTheInjectorIsConfigured(t *testing.T) {
	in, err := webhook.NewClusterInjector(webhook.InjectorOptions{
		Config: &rest.Config{Host: "https://127.0.0.1:1"}, Namespace: "mesh", Ready: func() bool { return true }, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		namespace, label, value string
		skipped                 bool
	}{
		{"mesh", "app", "istiod", true}, {"mesh", "istio", "pilot", true}, {"mesh", "istio", "istiod", true},
		{"mesh", "app", "web", false}, {"shop", "app", "istiod", false},
	} {
		pod := &corev1.Pod{}
		pod.Labels = map[string]string{tt.label: tt.value}
		got, err := in.Inject(webhook.PodRequest{Pod: pod, Namespace: tt.namespace, Path: "/inject"})
		if tt.skipped && (err != nil || got.Skipped != "ControlPlane") || !tt.skipped && (err == nil || !strings.Contains(err.Error(), "has not been read")) {
			t.Errorf("%s: %s=%s: %+v, %v; want it left alone: %v", tt.namespace, tt.label, tt.value, got, err, tt.skipped)
		}
	}
}
