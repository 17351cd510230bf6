package decode_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/discovery/source/decode"
	"github.com/pilothouse/pilothouse/internal/object"
)

func TestKindsThatAreNotRead(t *testing.T) {
	for _, tt := range []struct{ version, kind, want string }{
		{"security.istio.io/v1beta1", "RequestAuthentications", `error RequestAuthentication n/a: kind: unknown kind "RequestAuthentications"; did you mean RequestAuthentication? This document is NOT enforced`},
		{"telemetry.istio.io/v1", "Telemetries", `warning Telemetry n/a: kind: unknown kind "Telemetries"; did you mean Telemetry?`},
		{"extensions.istio.io/v1alpha1", "WasmPlugins", `warning WasmPlugin n/a: kind: unknown kind "WasmPlugins"; did you mean WasmPlugin?`},
		{"install.istio.io/v1alpha1", "IstioOperator", "warning IstioOperator n/a: objects of this kind"},
		{"gateway.networking.k8s.io/v1", "HTTPRoutes", "warning HTTPRoute n/a: kind: unknown kind \"HTTPRoutes\"; did you mean HTTPRoute?"},
		{"gateway.networking.k8s.io/v1", "KubernetesGateway", "warning Kubernetes Gateway n/a: kind: unknown kind"},
		{"networking.istio.io/v1", "Teapot", `warning Teapot n/a: kind: unknown kind "Teapot" of networking.istio.io`},
		{"networking.istio.io/v1", "VirtualServices", `warning VirtualService n/a: kind: unknown kind "VirtualServices"; did you mean VirtualService?`},
		{"networking.istio.io/v1", "Virtualservice", `warning VirtualService n/a: kind: unknown kind "Virtualservice"; did you mean VirtualService?`},
		{"networking.istio.io/v1", "VirtualSevice", `warning VirtualService n/a: kind: unknown kind "VirtualSevice"; did you mean VirtualService?`},
		{"networking.istio.io/v1", "DestinationRules", `warning DestinationRule n/a: kind: unknown kind "DestinationRules"; did you mean DestinationRule?`},
		{"networking.istio.io/v1", "ServiceEntries", `warning ServiceEntry n/a: kind: unknown kind "ServiceEntries"; did you mean ServiceEntry?`},
		{"security.istio.io/v1", "Peerauthentication", `error PeerAuthentication n/a: kind: unknown kind "Peerauthentication"; did you mean PeerAuthentication? This document is NOT enforced`},
		{"security.istio.io/v1", "PeerAuthentications", `error PeerAuthentication n/a: kind: unknown kind "PeerAuthentications"; did you mean PeerAuthentication?`},
		{"security.istio.io/v1", "AuthorizationPolicies", `error AuthorizationPolicy n/a: kind: unknown kind "AuthorizationPolicies"; did you mean AuthorizationPolicy? This document is NOT enforced`},
		{"network.istio.io/v1", "VirtualService", `warning VirtualService n/a: apiVersion: "network.istio.io/v1" has no kind VirtualService; did you mean networking.istio.io/v1?`},
		{"istio.io/v1", "VirtualService", `warning VirtualService n/a: apiVersion: "istio.io/v1" has no kind VirtualService; did you mean networking.istio.io/v1?`},
		{"networking.istio.io", "DestinationRule", `warning DestinationRule n/a: apiVersion: "networking.istio.io" has no kind DestinationRule; did you mean networking.istio.io/v1?`},
		{"v1", "VirtualService", `warning VirtualService n/a: apiVersion: "v1" has no kind VirtualService; did you mean networking.istio.io/v1?`},
		{"networking.k8s.io/v1", "VirtualService", `warning VirtualService n/a: apiVersion: "networking.k8s.io/v1" has no kind VirtualService; did you mean`},
		{"security.istio.io/v1", "DestinationRule", `warning DestinationRule n/a: apiVersion: "security.istio.io/v1" has no kind DestinationRule; did you mean networking.istio.io/v1?`},
		{"networking.istio.io/v1", "PeerAuthentication", `error PeerAuthentication n/a: apiVersion: "networking.istio.io/v1" has no kind PeerAuthentication; did you mean security.istio.io/v1?`},
		{"securty.istio.io/v1", "PeerAuthentication", `error PeerAuthentication n/a: apiVersion: "securty.istio.io/v1" has no kind PeerAuthentication; did you mean security.istio.io/v1?`},
		{"securty.istio.io/v1", "PeerAuthentications", `error PeerAuthentication n/a: kind: "securty.istio.io/v1" has no kind "PeerAuthentications"; did you mean PeerAuthentication of security.istio.io/v1?`},
		{"networking.istio.io/v1", "Service", `warning Service n/a: apiVersion: "networking.istio.io/v1" has no kind Service; did you mean v1?`},
		{"core/v1", "Service", `warning Service n/a: apiVersion: "core/v1" has no kind Service; did you mean v1?`},
		{"v1", "Services", `warning Service n/a: kind: unknown kind "Services"; did you mean Service?`},
		{"v1", "EndpointSlice", `warning EndpointSlice n/a: apiVersion: "v1" has no kind EndpointSlice; did you mean discovery.k8s.io/v1?`},
		{"discovery.k8s.io/v1", "Endpointslices", `warning EndpointSlice n/a: kind: unknown kind "Endpointslices"; did you mean EndpointSlice?`},
		{"apps/v1", "Deploiment", `warning Deploiment n/a: kind: unknown kind "Deploiment"; did you mean Deployment? This document has no effect`},
		{"batch/v1", "Jobs", `warning Jobs n/a: kind: unknown kind "Jobs"; did you mean Job?`},
		{"v1", "Deployment", `warning Deployment n/a: apiVersion: "v1" has no kind Deployment; did you mean apps/v1?`},
		{"extensions/v1beta1", "DaemonSet", `warning DaemonSet n/a: apiVersion: "extensions/v1beta1" has no kind DaemonSet; did you mean apps/v1?`},
		{"apps/v1", "ControllerRevision", ""},
		{"apps/v1", "Deployment", ""},
		{"rbac.authorization.k8s.io/v1", "Role", ""},
		{"v1", "PersistentVolume", ""},
		{"v1", "Endpoints", ""},
		{"v1", "PodTemplate", ""},
		{"v1", "PersistentVolumeClaim", ""},
		{"networking.k8s.io/v1", "NetworkPolicy", ""},
		{"serving.knative.dev/v1", "Service", ""},
		{"gateway.solo.io/v1", "VirtualService", ""},
		{"appmesh.k8s.aws/v1beta2", "VirtualService", ""},
		{"policy.linkerd.io/v1alpha1", "AuthorizationPolicy", ""},
		{"batch/v1", "Job", ""},
	} {
		const good = "\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: after}\n"
		r := decode.Documents("f.yaml", fmt.Appendf(nil, "apiVersion: %s\nkind: %s\nmetadata: {name: a, namespace: n}\nspec: {}%s", tt.version, tt.kind, good))
		if len(r.Problems) != 1 || len(r.Objects) != 1 || !r.Whole() {
			t.Fatalf("%s %s: %+v", tt.version, tt.kind, r)
		}
		p := r.Problems[0]
		got, want := strings.Replace(p.Severity.String()+" "+p.Error(), "f.yaml:1: ", "", 1), tt.want
		if want == "" {
			want = "info f.yaml: 1 object of a kind that the mesh does not use is ignored: " + tt.kind
		}
		if !strings.HasPrefix(got, want) {
			t.Errorf("%s %s:\ngot  %s\nwant %s", tt.version, tt.kind, got, want)
		}
		if skipped := len(r.Skipped) == 1; skipped != (tt.want == "") {
			t.Errorf("%s %s: skipped %v", tt.version, tt.kind, r.Skipped)
		}
	}
}

func TestSkippedObjectsAreCounted(t *testing.T) {
	var text strings.Builder
	for i := range 40 {
		fmt.Fprintf(&text, "---\napiVersion: apps/v1\nkind: Kind%d\nmetadata: {name: a}\n", i%20)
	}
	r := decode.Documents("f.yaml", []byte(text.String()))
	if len(r.Problems) != 1 || r.Problems[0].Text != "40 objects of kinds that the mesh does not use are ignored: Kind0, Kind1, Kind2, Kind3, Kind4, …" || r.Problems[0].Severity != object.Info {
		t.Errorf("%+v", r.Problems)
	}
}
