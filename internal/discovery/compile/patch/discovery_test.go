package patch_test

import (
	"fmt"
	"slices"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	networking "istio.io/api/networking/v1alpha3"
	"sigs.k8s.io/yaml"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/patch"
)

// What a filter takes from another control plane is not expected of this one.
func TestSourcesOfConfigurations(t *testing.T) {
	const filter = `{applyTo: HTTP_FILTER, patch: {operation: INSERT_FIRST, value: {name: a, config_discovery: {type_urls: [x], config_source: %s}}}}`
	here := []patch.Discovery{{Name: "a"}}
	for source, want := range map[string][]patch.Discovery{
		`{ads: {}}`: here,
		`{api_config_source: {api_type: GRPC, transport_api_version: V3, grpc_services: [{envoy_grpc: {cluster_name: xds-grpc}}]}}`: here,
		`{api_config_source: {api_type: GRPC, transport_api_version: V3, grpc_services: [{envoy_grpc: {cluster_name: other}}]}}`:    nil,
		`{path_config_source: {path: /a}}`: nil,
	} {
		spec := &networking.EnvoyFilter_EnvoyConfigObjectPatch{}
		text, err := yaml.YAMLToJSON(fmt.Appendf(nil, filter, source))
		if err == nil {
			err = protojson.Unmarshal(text, spec)
		}
		if err != nil {
			t.Fatal(err)
		}
		p, faults := patch.Parse(0, spec)
		if len(faults) > 0 || !slices.Equal(p.Discovers, want) {
			t.Errorf("%s: %v, %v, want %v", source, p, faults, want)
		}
	}
}
