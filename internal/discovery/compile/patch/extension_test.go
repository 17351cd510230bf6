package patch

import (
	"slices"
	"strings"
	"testing"

	extensions "istio.io/api/extensions/v1alpha1"
)

func TestPlaceOf(t *testing.T) {
	const own = wasmPluginPrefix + "n.a"
	short := map[string]string{"peer": "envoy.filters.http.header_to_metadata", "jwt": "envoy.filters.http.jwt_authn", "authz": "envoy.filters.http.ext_authz", "rbac": "envoy.filters.http.rbac", "own": own}
	for _, tt := range []struct {
		phase     Phase
		have, got string
	}{
		{extensions.TrafficExtension_AUTHN, "router", "NEW router"},
		{extensions.TrafficExtension_AUTHN, "peer own authz jwt rbac cors router", "peer own NEW authz jwt rbac cors router"},
		{extensions.TrafficExtension_AUTHN, "own cors router", "own NEW cors router"},
		{extensions.TrafficExtension_AUTHZ, "peer own authz jwt own rbac cors router", "peer own authz jwt own NEW rbac cors router"},
		{extensions.TrafficExtension_AUTHZ, "peer own rbac cors router", "peer own NEW rbac cors router"},
		{extensions.TrafficExtension_AUTHZ, "own router", "own NEW router"},
		{extensions.TrafficExtension_STATS, "peer jwt own rbac own cors router", "peer jwt own rbac own NEW cors router"},
		{extensions.TrafficExtension_STATS, "own cors router", "own NEW cors router"},
		{extensions.TrafficExtension_UNSPECIFIED, "own cors router", "own cors NEW router"},
		{extensions.TrafficExtension_UNSPECIFIED, "router", "NEW router"},
	} {
		var names []string
		for _, n := range strings.Fields(tt.have) {
			if long, ok := short[n]; ok {
				n = long
			}
			names = append(names, n)
		}
		list := strings.Fields(tt.have)
		got := strings.Join(slices.Insert(list, (&Place{Phase: tt.phase}).placeOf(names), "NEW"), " ")
		if got != tt.got {
			t.Errorf("%s: %s, want %s", tt.phase, got, tt.got)
		}
	}
}
