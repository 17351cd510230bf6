package object

import (
	"strings"
	"testing"
)

func TestParseKind(t *testing.T) {
	for text, want := range map[string]Kind{
		"VirtualService": VirtualService, "virtualservice": VirtualService, "virtualservices": VirtualService, "vs": VirtualService, "VS": VirtualService,
		"virtualservices.networking.istio.io": VirtualService, "virtualservice.v1.networking.istio.io": VirtualService,
		"serviceentries": ServiceEntry, "workloadentries": WorkloadEntry, "gateways": Gateway, "gw": Gateway, "se": ServiceEntry, "we": WorkloadEntry,
		"dr": DestinationRule, "pa": PeerAuthentication, "svc": Service, "services": Service, "po": Pod, "pods": Pod, "cm": ConfigMap,
		"ns": Namespace, "sa": ServiceAccount, "endpointslices": EndpointSlice, "sidecars": Sidecar, "secrets": Secret,
	} {
		if got, err := ParseKind(text); err != nil || got != want {
			t.Errorf("ParseKind(%q) = %q, %v; want %q", text, got, err, want)
		}
	}
	for _, text := range []string{"", "gatewaies", "deployment", "v", ".networking.istio.io", "virtual service"} {
		if got, err := ParseKind(text); err == nil || !strings.Contains(err.Error(), "VirtualService") {
			t.Errorf("ParseKind(%q) = %q, %v; want an error that lists the kinds", text, got, err)
		}
	}
	for _, k := range Kinds() {
		if got, err := ParseKind(string(k)); err != nil || got != k {
			t.Errorf("ParseKind(%q) = %q, %v", k, got, err)
		}
	}
}
