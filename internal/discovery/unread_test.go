package discovery

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/test/wait"
)

const unread = `apiVersion: security.istio.io/v1
kind: RequestAuthentications
metadata: {name: only-reviews, namespace: shop}
spec: {}
---
apiVersion: install.istio.io/v1alpha1
kind: IstioOperator
metadata: {name: mesh, namespace: shop}
---
apiVersion: networking.istio.io/v1
kind: VirtualServices
metadata: {name: reviews, namespace: shop}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: reviews, namespace: shop}
`

// The error is on the debug page, in the log and in a metric.
func TestPoliciesThatAreNotEnforcedAreErrors(t *testing.T) {
	var log wait.Output
	p := start(t, func(o *Options) { o.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	p.emit(shop+"---\n"+unread, true)
	want := []objectEntry{
		{Object: "RequestAuthentication shop/only-reviews", Severity: "error", Field: "kind", Text: "NOT enforced"},
		{Object: "IstioOperator shop/mesh", Severity: "warning", Text: "has no effect"},
		{Object: "VirtualService shop/reviews", Severity: "warning", Field: "kind", Text: "did you mean VirtualService?"},
		{Severity: "info", Text: "1 object of a kind that the mesh does not use is ignored: Deployment"},
	}
	got := p.objects()
	if len(got) != len(want) {
		t.Fatalf("objects %+v", got)
	}
	for i, w := range want {
		if g := got[i]; g.Object != w.Object || g.Severity != w.Severity || g.Field != w.Field || !strings.Contains(g.Text, w.Text) || g.Origin == "" {
			t.Errorf("entry %+v, want %+v", g, w)
		}
	}
	for _, w := range []string{"level=ERROR msg=\"configuration is not applied", "NOT enforced", "level=WARN msg=\"configuration has no effect", "IstioOperator shop/mesh"} {
		if !strings.Contains(log.String(), w) {
			t.Errorf("the log lacks %s:\n%s", w, log.String())
		}
	}
	if strings.Contains(log.String(), "Deployment") {
		t.Errorf("the log tells of what belongs to others:\n%s", log.String())
	}
	_, metrics := p.get(p.addr.Monitoring, "/metrics")
	for _, w := range []string{
		`pilothouse_config_problems{kind="RequestAuthentication",severity="error"} 1`, `pilothouse_config_problems{kind="IstioOperator",severity="warning"} 1`,
		`pilothouse_config_problems{kind="VirtualService",severity="warning"} 1`, `pilothouse_config_problems{kind="",severity="error"} 0`,
	} {
		if !strings.Contains(metrics, w) {
			t.Errorf("metrics lack %s", w)
		}
	}
	if strings.Contains(metrics, `severity="info"`) {
		t.Error("what belongs to others is counted as a problem")
	}
	p.batch(object.Batch{Problems: []object.Problem{}})
	if got := p.objects(); len(got) != 0 {
		t.Errorf("objects after the repair: %+v", got)
	}
	_, metrics = p.get(p.addr.Monitoring, "/metrics")
	if strings.Contains(metrics, "RequestAuthentication") {
		t.Error("the metric outlives the problem")
	}
}
