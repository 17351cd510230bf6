package authz_test

import (
	"fmt"
	"strings"
	"testing"

	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	meshv1 "istio.io/api/mesh/v1alpha1"
	"sigs.k8s.io/yaml"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/authz"
	"github.com/pilothouse/pilothouse/internal/discovery/config"
	"github.com/pilothouse/pilothouse/internal/mesh"

	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_authz/v3" // the types of the filters
)

func fromYAML(t *testing.T, text string, to proto.Message) {
	t.Helper()
	j, err := yaml.YAMLToJSON([]byte(text))
	if err == nil {
		err = protojson.Unmarshal(j, to)
	}
	if err != nil {
		t.Fatal(err)
	}
}

const (
	httpProvider = `{name: http-az, envoyExtAuthzHttp: {service: shop/data.shop.svc.cluster.local, port: 5432, timeout: 2s, pathPrefix: /check, failOpen: true, statusOnError: "503",
  includeRequestHeadersInCheck: [x-a, "x-pre-*"], includeAdditionalHeadersInCheck: {x-add: v}, includeRequestBodyInCheck: {maxRequestBytes: 4096, allowPartialMessage: true, packAsBytes: true},
  headersToUpstreamOnAllow: [x-up, "x-upp-*"], headersToDownstreamOnAllow: [set-cookie], headersToDownstreamOnDeny: [content-type, "x-d*"]}}`
	grpcProvider = `{name: grpc-az, envoyExtAuthzGrpc: {service: web.shop.svc.cluster.local, port: 7070, timeout: 1s, includeRequestBodyInCheck: {maxRequestBytes: 10}}}`
	askHTTP      = `{action: CUSTOM, provider: {name: http-az}, rules: [{to: [{operation: {paths: ["/api/*"]}}], from: [{source: {namespaces: [shop]}}]}]}`
	askGRPC      = `{action: CUSTOM, provider: {name: grpc-az}, rules: [{to: [{operation: {ports: ["9000", "8080"]}}]}]}`
	askGRPCMore  = `{action: CUSTOM, provider: {name: grpc-az}, rules: [{to: [{operation: {methods: [GET]}}]}]}`
)

func authorizers(t *testing.T) map[string]authz.Authorizer {
	t.Helper()
	out := map[string]authz.Authorizer{"broken": {Fault: "the reason"}}
	for name, text := range map[string]string{"data.shop.svc.cluster.local 5432": httpProvider, "web.shop.svc.cluster.local 7070": grpcProvider} {
		host, port, _ := strings.Cut(name, " ")
		p := &meshv1.MeshConfig_ExtensionProvider{}
		fromYAML(t, text, p)
		out[p.Name] = authz.Authorizer{Provider: p, Host: host, Cluster: "outbound|" + port + "||" + host}
	}
	return out
}

// The filters are those that Istio's control plane has been seen to send.
func TestExternalAuthorizationIsIstios(t *testing.T) {
	for name, c := range map[string]struct {
		policies  string
		http, tcp []string
		needs     mesh.Capability
	}{
		"HTTP": {askHTTP, []string{`
name: envoy.filters.http.rbac
typed_config:
  '@type': type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC
  shadow_rules:
    action: DENY
    policies:
      istio-ext-authz-http-az-ns[shop]-policy[p0]-rule[0]:
        permissions: [{and_rules: {rules: [{or_rules: {rules: [{url_path: {path: {prefix: /api/}}}]}}]}}]
        principals: [{and_ids: {ids: [{or_ids: {ids: [{authenticated: {principal_name: {safe_regex: {regex: .*/ns/shop/.*}}}}]}}]}}]
  shadow_rules_stat_prefix: istio_ext_authz_
`, `
name: envoy.filters.http.ext_authz
typed_config:
  '@type': type.googleapis.com/envoy.extensions.filters.http.ext_authz.v3.ExtAuthz
  http_service:
    server_uri: {uri: 'http://data.shop.svc.cluster.local', cluster: outbound|5432||data.shop.svc.cluster.local, timeout: 2s}
    path_prefix: /check
    authorization_request: {headers_to_add: [{key: x-add, value: v}]}
    authorization_response:
      allowed_upstream_headers: {patterns: [{exact: x-up, ignore_case: true}, {prefix: x-upp-, ignore_case: true}]}
      allowed_client_headers: {patterns: [{exact: content-type, ignore_case: true}, {prefix: x-d, ignore_case: true}]}
      allowed_client_headers_on_success: {patterns: [{exact: set-cookie, ignore_case: true}]}
  transport_api_version: V3
  failure_mode_allow: true
  with_request_body: {max_request_bytes: 4096, allow_partial_message: true, pack_as_bytes: true}
  status_on_error: {code: ServiceUnavailable}
  filter_enabled_metadata:
    filter: envoy.filters.http.rbac
    path: [{key: istio_ext_authz_shadow_effective_policy_id}]
    value: {string_match: {prefix: istio-ext-authz-http-az}}
  allowed_headers: {patterns: [{exact: x-a, ignore_case: true}, {prefix: x-pre-, ignore_case: true}]}
`}, nil, mesh.ExtAuthz},
		"gRPC": {askGRPC + " | " + askGRPCMore, []string{`
name: envoy.filters.http.rbac
typed_config:
  '@type': type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC
  shadow_rules:
    action: DENY
    policies:
      istio-ext-authz-grpc-az-ns[shop]-policy[p0]-rule[0]:
        permissions: [{and_rules: {rules: [{or_rules: {rules: [{destination_port: 9000}, {destination_port: 8080}]}}]}}]
        principals: [{and_ids: {ids: [{any: true}]}}]
      istio-ext-authz-grpc-az-ns[shop]-policy[p1]-rule[0]:
        permissions: [{and_rules: {rules: [{or_rules: {rules: [{header: {name: ':method', string_match: {exact: GET}}}]}}]}}]
        principals: [{and_ids: {ids: [{any: true}]}}]
  shadow_rules_stat_prefix: istio_ext_authz_
`, `
name: envoy.filters.http.ext_authz
typed_config:
  '@type': type.googleapis.com/envoy.extensions.filters.http.ext_authz.v3.ExtAuthz
  grpc_service:
    envoy_grpc: {cluster_name: outbound|7070||web.shop.svc.cluster.local, authority: web.shop.svc.cluster.local}
    timeout: 1s
  transport_api_version: V3
  with_request_body: {max_request_bytes: 10}
  filter_enabled_metadata:
    filter: envoy.filters.http.rbac
    path: [{key: istio_ext_authz_shadow_effective_policy_id}]
    value: {string_match: {prefix: istio-ext-authz-grpc-az}}
`}, []string{`
name: envoy.filters.network.rbac
typed_config:
  '@type': type.googleapis.com/envoy.extensions.filters.network.rbac.v3.RBAC
  shadow_rules:
    action: DENY
    policies:
      istio-ext-authz-grpc-az-ns[shop]-policy[p0]-rule[0]:
        permissions: [{and_rules: {rules: [{or_rules: {rules: [{destination_port: 9000}, {destination_port: 8080}]}}]}}]
        principals: [{and_ids: {ids: [{any: true}]}}]
      istio-ext-authz-grpc-az-ns[shop]-policy[p1]-rule[0]:
        permissions: [{and_rules: {rules: [{any: true}]}}]
        principals: [{and_ids: {ids: [{any: true}]}}]
  shadow_rules_stat_prefix: istio_ext_authz_
  stat_prefix: tcp.
`, `
name: envoy.filters.network.ext_authz
typed_config:
  '@type': type.googleapis.com/envoy.extensions.filters.network.ext_authz.v3.ExtAuthz
  stat_prefix: tcp.
  grpc_service:
    envoy_grpc: {cluster_name: outbound|7070||web.shop.svc.cluster.local, authority: web.shop.svc.cluster.local}
    timeout: 1s
  transport_api_version: V3
  filter_enabled_metadata:
    filter: envoy.filters.network.rbac
    path: [{key: istio_ext_authz_shadow_effective_policy_id}]
    value: {string_match: {prefix: istio-ext-authz-grpc-az}}
`}, mesh.ExtAuthz | mesh.NetworkExtAuthz},
	} {
		f := authz.Build(policiesOf(t, c.policies), trustDomains, authorizers(t), nil)
		if f.Fault != "" || f.Needs != c.needs|mesh.RBAC|mesh.NetworkRBAC {
			t.Errorf("%s: fault %q, needs %b", name, f.Fault, f.Needs)
		}
		var got []proto.Message
		for _, m := range f.HTTP {
			got = append(got, m)
		}
		for _, m := range f.TCP {
			got = append(got, m)
		}
		if len(f.HTTP) != len(c.http) || len(f.TCP) != len(c.tcp) {
			t.Fatalf("%s: %d and %d filters: %v", name, len(f.HTTP), len(f.TCP), got)
		}
		for i, text := range append(c.http, c.tcp...) {
			want := got[i].ProtoReflect().New().Interface()
			if fromYAML(t, text, want); !proto.Equal(got[i], want) {
				t.Errorf("%s: filter %d is\n%s\nwant\n%s", name, i, protojson.Format(got[i]), protojson.Format(want))
			}
		}
	}
}

// What cannot be asked is denied, with Istio's name of the rule, for TCP connections, too.
func TestUnusableAuthorizersDeny(t *testing.T) {
	for name, c := range map[string]struct{ policies, fault string }{
		"no such provider":                       {`{action: CUSTOM, provider: {name: missing}, rules: [{}]}`, `there is no provider "missing"`},
		"a broken one":                           {`{action: CUSTOM, provider: {name: broken}, rules: [{}]}`, "the reason"},
		"two of them":                            {askHTTP + " | " + askGRPC, "the providers grpc-az, http-az: want one"},
		"one whose name is the start of another": {strings.ReplaceAll(askGRPC, "grpc-az", "grpc") + " | " + askGRPC, "the providers grpc, grpc-az: want one"},
	} {
		f := authz.Build(policiesOf(t, c.policies), trustDomains, authorizers(t), nil)
		if !strings.Contains(f.Fault, c.fault) || f.Cluster != "" || len(f.Custom) == 0 || len(f.HTTP) != 1 || len(f.TCP) != 1 || f.Needs != mesh.RBAC|mesh.NetworkRBAC {
			t.Errorf("%s: %+v", name, f)
			continue
		}
		for _, m := range []proto.Message{f.HTTP[0], f.TCP[0]} {
			if text := protojson.Format(m); !strings.Contains(text, "-deny-due-to-bad-CUSTOM-action") || strings.Contains(text, "shadowRules\"") {
				t.Errorf("%s: %s", name, text)
			}
		}
	}
}

// A status that Envoy cannot answer with is refused before it makes a listener invalid.
func TestStatusesAreEnvoys(t *testing.T) {
	for code := range 1000 {
		_, verdicts := config.MeshConfig(fmt.Sprintf(`{extensionProviders: [{name: a, envoyExtAuthzGrpc: {service: a.example, port: 80, statusOnError: "%d"}}]}`, code))
		if _, known := typev3.StatusCode_name[int32(code)]; (known && code >= 200) == config.Rejected(verdicts) {
			t.Errorf("status %d: %v", code, verdicts)
		}
	}
}
