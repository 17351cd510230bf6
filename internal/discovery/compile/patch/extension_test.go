package patch

import (
	"slices"
	"strings"
	"testing"

	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	extensions "istio.io/api/extensions/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
)

// TestPlaceOf: filters of extensions with a phase (e-…) and of patches with a class (c-…) come where these say, among the control plane's own and each
// other, in whatever order they are inserted.
func TestPlaceOf(t *testing.T) {
	short := map[string]string{"peer": "envoy.filters.http.header_to_metadata", "jwt": "envoy.filters.http.jwt_authn", "authz": "envoy.filters.http.ext_authz", "rbac": "envoy.filters.http.rbac"}
	phases := map[string]Phase{"e-authn": extensions.TrafficExtension_AUTHN, "e-authz": extensions.TrafficExtension_AUTHZ, "e-stats": extensions.TrafficExtension_STATS, "e-last": extensions.TrafficExtension_UNSPECIFIED}
	classes := map[string]networking.EnvoyFilter_Patch_FilterClass{
		"c-authn": networking.EnvoyFilter_Patch_AUTHN, "c-authz": networking.EnvoyFilter_Patch_AUTHZ, "c-stats": networking.EnvoyFilter_Patch_STATS, "c-last": networking.EnvoyFilter_Patch_UNSPECIFIED,
	}
	for _, tt := range []struct{ have, insert, got string }{
		{"router", "e-authn", "e-authn router"},
		{"peer authz jwt rbac cors router", "e-authn1 e-authn2", "peer e-authn1 e-authn2 authz jwt rbac cors router"},
		{"peer authz jwt rbac cors router", "e-authn e-authz", "peer e-authn authz jwt e-authz rbac cors router"},
		{"cors router", "e-authn1 e-authn2 e-authz1 e-authz2", "e-authn1 e-authn2 e-authz1 e-authz2 cors router"},
		{"peer rbac cors router", "e-authn e-authz", "peer e-authn e-authz rbac cors router"},
		{"peer jwt rbac cors router", "e-authz e-stats1 e-stats2", "peer jwt e-authz rbac e-stats1 e-stats2 cors router"},
		{"cors router", "e-authn e-stats", "e-authn e-stats cors router"},
		{"cors router", "e-authn e-last", "e-authn cors e-last router"},
		{"router", "e-last", "e-last router"},

		{"router", "c-authn", "c-authn router"},
		{"peer jwt rbac cors router", "c-last c-stats c-authz c-authn", "peer jwt c-authn rbac c-authz c-stats cors c-last router"},
		{"peer jwt rbac cors router", "c-authn c-authz c-stats c-last", "peer jwt c-authn rbac c-authz c-stats cors c-last router"},
		{"peer jwt rbac cors router", "c-authn1 c-authn2 c-authz1 c-authz2", "peer jwt c-authn1 c-authn2 rbac c-authz1 c-authz2 cors router"},
		{"authz jwt cors router", "c-authn c-authz", "authz jwt c-authn c-authz cors router"},
		{"cors router", "c-stats c-authz c-authn", "c-authn c-authz c-stats cors router"},
		{"cors router", "c-authn c-authz c-stats", "c-authn c-authz c-stats cors router"},
		{"peer jwt rbac cors router", "e-authn e-authz e-stats c-stats c-authz c-authn", "peer e-authn jwt c-authn e-authz rbac c-authz e-stats c-stats cors router"},
		{"cors router", "e-authn e-authz e-stats c-stats c-authz c-authn", "e-authn c-authn e-authz c-authz e-stats c-stats cors router"},
	} {
		names := func(text string) (out []string) {
			for _, n := range strings.Fields(text) {
				if long, ok := short[n]; ok {
					n = long
				}
				out = append(out, n)
			}
			return out
		}
		var patches []*Patch
		for _, name := range names(tt.insert) {
			kind := strings.TrimRight(name, "0123456789")
			p := &Patch{Value: &hcmv3.HttpFilter{Name: name}, Class: classes[kind]}
			if phase, ok := phases[kind]; ok {
				p.Place = &Place{Phase: phase}
			}
			patches = append(patches, p)
		}
		ranks, list := ranksOf(patches), names(tt.have)
		for _, p := range patches {
			at := ranks.place(p, list)
			if p.Place != nil {
				at = ranks.placeOf(p.Place, list)
			}
			list = slices.Insert(list, at, p.name())
		}
		if want := names(tt.got); !slices.Equal(list, want) {
			t.Errorf("%s in %s: %q, want %q", tt.insert, tt.have, list, want)
		}
	}
}
