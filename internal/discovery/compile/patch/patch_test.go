package patch_test

import (
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"
	"sigs.k8s.io/yaml"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/patch"
)

// read decodes YAML into a message.
func read[M proto.Message](t testing.TB, text string, m M) M {
	t.Helper()
	js, err := yaml.YAMLToJSON([]byte(text))
	if err == nil {
		err = protojson.Unmarshal(js, m)
	}
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return m
}

// parse reads patches as YAML, which must be good.
func parse(t testing.TB, specs ...string) (out []*patch.Patch) {
	t.Helper()
	for i, text := range specs {
		p, faults := patch.Parse(i, read(t, text, &networking.EnvoyFilter_EnvoyConfigObjectPatch{}))
		if p == nil || len(faults) > 0 {
			t.Fatalf("%s: %v", text, faults)
		}
		out = append(out, p)
	}
	return out
}

// became are results as text: "applied", "unmatched", or why a patch was refused.
func became(results []patch.Result) (out []string) {
	for _, r := range results {
		switch {
		case r.Refused != "":
			out = append(out, r.Refused)
		case r.Applied:
			out = append(out, "applied")
		default:
			out = append(out, "unmatched")
		}
	}
	return out
}

const (
	config = `"@type": type.googleapis.com/envoy.extensions.filters.http.`
	lua    = `{name: NAME, typed_config: {` + config + `lua.v3.Lua, default_source_code: {inline_string: "x"}}}`
)

func named(name string) string { return strings.Replace(lua, "NAME", name, 1) }

func TestParse(t *testing.T) {
	for _, tt := range []struct{ spec, want string }{
		{`{applyTo: CLUSTER, patch: {operation: MERGE, value: {connect_timeout: 1s, connectTimeot: 2s}}}`, `patch.value: unknown field "connectTimeot"`},
		{`{applyTo: CLUSTER, patch: {operation: MERGE, value: {connect_timeout: soon}}}`, `patch.value: invalid google.protobuf.Duration value "soon"`},
		{`{applyTo: CLUSTER, patch: {operation: ADD, value: {name: a, connect_timeout: -1s}}}`, `patch.value: invalid Cluster.ConnectTimeout: value must be greater than 0s`},
		{`{applyTo: CLUSTER, patch: {operation: ADD, value: {type: STATIC}}}`, `patch.value: invalid Cluster.Name: value length must be at least 1 runes`},
		{`{applyTo: LISTENER, patch: {operation: ADD, value: {name: a, address: {pipe: {path: "@a"}}}}}`, `patch.value: the listener has no filter chain; add one to filter_chains`},
		{`{applyTo: CLUSTER, patch: {operation: INSERT_FIRST, value: {name: a}}}`, `patch.operation: invalid value INSERT_FIRST for CLUSTER: want one of MERGE, MERGE_AND_REPLACE_LIST, ADD, REMOVE`},
		{`{applyTo: CLUSTER, patch: {operation: MERGE}}`, `patch.value: is empty; set the configuration to merge`},
		{`{applyTo: CLUSTER, match: {listener: {portNumber: 80}}, patch: {operation: REMOVE}}`, `match.listener: is not what CLUSTER is matched by; use cluster`},
		{`{applyTo: CLUSTER, match: {proxy: {proxyVersion: "("}}, patch: {operation: REMOVE}}`, `match.proxy.proxyVersion: invalid regular expression: error parsing regexp: missing closing ): ` + "`(`"},
		{`{applyTo: CLUSTER, match: {proxy: {metadata: {NAME: x, LABELS: b}}}, patch: {operation: REMOVE}}`, `(not applied) match.proxy.metadata: not applied: "LABELS" is no text, and matches no proxy; use workloadSelector`},
		{`{applyTo: CLUSTER, match: {proxy: {metadata: {PLATFORM_METADATA: b}}}, patch: {operation: REMOVE}}`, `(not applied) match.proxy.metadata: not applied: "PLATFORM_METADATA" is no text, and matches no proxy; use a variable ISTIO_META_… of the proxy`},
		{`{applyTo: CLUSTER, match: {proxy: {metadata: {ENVOY_EPOCH: "1"}}}, patch: {operation: REMOVE}}`, `(not applied) match.proxy.metadata: not applied: "ENVOY_EPOCH" is another one for each Envoy of a proxy, and matches none; remove it`},
		{`{applyTo: CLUSTER, match: {proxy: {metadata: {a: ` + strings.Repeat("b", 257) + `}}}, patch: {operation: REMOVE}}`, `(not applied) match.proxy.metadata: not applied: "a" is longer than 256 bytes, and matches no proxy; use a shorter one`},
		{`{applyTo: BOOTSTRAP, patch: {operation: MERGE, value: {stats_flush_interval: 9s}}}`, `(note) applyTo: takes effect at proxies whose agents have BOOTSTRAP_XDS_AGENT=true, when their Envoy is started or replaced`},
		{`{applyTo: BOOTSTRAP, patch: {operation: MERGE, value: {statsFlush: 9s}}}`, `patch.value: unknown field "statsFlush"`},
		{`{applyTo: BOOTSTRAP, patch: {operation: ADD, value: {}}}`, `patch.operation: invalid value ADD for BOOTSTRAP: want one of MERGE`},
		{`{applyTo: BOOTSTRAP, match: {cluster: {name: a}}, patch: {operation: MERGE, value: {stats_flush_interval: 9s}}}`, `match.cluster: is not what BOOTSTRAP is matched by; remove it
(note) applyTo: takes effect at proxies whose agents have BOOTSTRAP_XDS_AGENT=true, when their Envoy is started or replaced`},
		{`{applyTo: BOOTSTRAP, patch: {operation: MERGE, value: {node: {id: a}, stats_flush_interval: 9s, admin: {profile_path: a}}}}`, `patch.value.node: must not be changed: the agent says who the proxy is
patch.value.admin: must not be changed: the agent asks Envoy's admin interface`},
		{`{applyTo: BOOTSTRAP, patch: {operation: MERGE, value: {dynamic_resources: {}}}}`, `patch.value.dynamic_resources: must not be changed: Envoy gets its configuration from the agent`},
		{`{applyTo: EXTENSION_CONFIG, patch: {operation: ADD, value: {name: a}}}`, `patch.value: invalid TypedExtensionConfig.TypedConfig: value is required`},
		{`{applyTo: EXTENSION_CONFIG, patch: {operation: ADD, value: {name: a, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer}}}}`,
			`patch.value: invalid Buffer.MaxRequestBytes: value is required and must not be nil.`},
		{`{applyTo: EXTENSION_CONFIG, patch: {operation: ADD, value: {name: a, typed_config: {"@type": type.googleapis.com/udpa.type.v1.TypedStruct, type_url: type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer, value: {max: 9}}}}}`,
			`patch.value: typed_config: unknown field "max"`},
		{`{applyTo: EXTENSION_CONFIG, patch: {operation: MERGE, value: {name: a}}}`, `patch.operation: invalid value MERGE for EXTENSION_CONFIG: want one of ADD`},
		{`{applyTo: EXTENSION_CONFIG, match: {listener: {portNumber: 80}}, patch: {operation: ADD, value: {name: a, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}}}`,
			`(partly) match.listener: not applied: filters find an extension configuration by its name; remove it`},
		{`{patch: {operation: ADD, value: {}}}`, `applyTo: invalid value INVALID: want one of LISTENER, LISTENER_FILTER, FILTER_CHAIN, NETWORK_FILTER, HTTP_FILTER, ROUTE_CONFIGURATION, VIRTUAL_HOST, HTTP_ROUTE, CLUSTER, EXTENSION_CONFIG, BOOTSTRAP`},
		{`{applyTo: LISTENER, match: {context: WAYPOINT}, patch: {operation: REMOVE}}`, `(not applied) match.context: not applied: there are no waypoints; use SIDECAR_INBOUND`},
		{`{applyTo: LISTENER, match: {listener: {portName: http}}, patch: {operation: REMOVE}}`, `(not applied) match.listener.portName: not applied: listeners have no port names; use portNumber`},
		{`{applyTo: HTTP_FILTER, patch: {operation: REMOVE}}`, `match.listener.filterChain.filter.subFilter.name: is empty; set the name of the filter that the operation is for`},
		{`{applyTo: HTTP_FILTER, patch: {operation: INSERT_FIRST, value: {name: a, typed_config: {"@type": type.googleapis.com/no.such.Type}}}}`, `patch.value: unable to resolve "type.googleapis.com/no.such.Type": "not found"`},
		{`{applyTo: HTTP_FILTER, patch: {operation: INSERT_FIRST, value: {name: a, typed_config: {` + config + `lua.v3.Lua, none: 1}}}}`, `patch.value: unknown field "none"`},
		{`{applyTo: HTTP_FILTER, patch: {operation: INSERT_FIRST, value: {name: a, typed_config: {` + config + `buffer.v3.Buffer}}}}`, `patch.value: invalid Buffer.MaxRequestBytes: value is required and must not be nil.`},
		{`{applyTo: HTTP_FILTER, patch: {operation: INSERT_FIRST, value: {name: a, typed_config: {"@type": type.googleapis.com/xds.type.v3.TypedStruct, type_url: type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer, value: {none: 1}}}}}`, `patch.value: typed_config: unknown field "none"`},
		{`{applyTo: HTTP_FILTER, patch: {operation: INSERT_FIRST, value: {name: a, config_discovery: {config_source: {ads: {}}}}}}`,
			`patch.value: invalid HttpFilter.ConfigDiscovery: embedded message failed validation | caused by: invalid ExtensionConfigSource.TypeUrls: value must contain at least 1 item(s)`},
		{`{applyTo: HTTP_FILTER, patch: {operation: INSERT_FIRST, filterClass: STATS, value: ` + named("a") + `}}`, `(partly) patch.filterClass: not applied: INSERT_FIRST says where the filter is; remove it, or use ADD`},
		{`{applyTo: CLUSTER, patch: {operation: REMOVE, filterClass: STATS}}`, `(partly) patch.filterClass: not applied: it is for HTTP_FILTER and NETWORK_FILTER; remove it`},
		{`{applyTo: HTTP_FILTER, patch: {operation: ADD, filterClass: 9, value: ` + named("a") + `}}`, `patch.filterClass: invalid value 9: want AUTHN, AUTHZ or STATS`},
		{`{applyTo: HTTP_ROUTE, patch: {operation: INSERT_FIRST, value: {match: {prefix: /}}}}`, `patch.value: invalid Route.Action: value is required`},
	} {
		p, faults := patch.Parse(0, read(t, tt.spec, &networking.EnvoyFilter_EnvoyConfigObjectPatch{}))
		var got []string
		for _, f := range faults {
			got = append(got, []string{"", "(not applied) ", "(partly) ", "(note) "}[f.Severity]+f.Field+": "+f.Text)
		}
		if text := strings.Join(got, "\n"); text != tt.want {
			t.Errorf("%s\n got %s\nwant %s", tt.spec, text, tt.want)
		}
		if left := faults[0].Severity >= patch.Partly; (p != nil) != left {
			t.Errorf("%s: patch %v", tt.spec, p)
		}
	}
}

func TestClusters(t *testing.T) {
	const base = `{name: "outbound|80|v1|a.b", type: EDS, eds_cluster_config: {eds_config: {ads: {}}}, connect_timeout: 1.5s, circuit_breakers: {thresholds: [{max_retries: 1}]}}`
	for _, tt := range []struct {
		name, spec, want, became string
	}{
		{"by port", `{applyTo: CLUSTER, match: {cluster: {portNumber: 80}}, patch: {operation: MERGE, value: {connect_timeout: 2s}}}`, "2s", "applied"},
		{"by service", `{applyTo: CLUSTER, match: {context: SIDECAR_OUTBOUND, cluster: {service: a.b}}, patch: {operation: MERGE, value: {connect_timeout: 2s}}}`, "2s", "applied"},
		{"another subset", `{applyTo: CLUSTER, match: {cluster: {service: a.b, subset: v2}}, patch: {operation: MERGE, value: {connect_timeout: 2s}}}`, "1.5s", "unmatched"},
		{"another port", `{applyTo: CLUSTER, match: {cluster: {portNumber: 81}}, patch: {operation: MERGE, value: {connect_timeout: 2s}}}`, "1.5s", "unmatched"},
		{"another context", `{applyTo: CLUSTER, match: {context: SIDECAR_INBOUND}, patch: {operation: MERGE, value: {connect_timeout: 2s}}}`, "1.5s", "unmatched"},
		{"its name stays", `{applyTo: CLUSTER, patch: {operation: MERGE, value: {name: other, connect_timeout: 2s}}}`, "2s", "applied"},
		{"removed", `{applyTo: CLUSTER, match: {cluster: {name: "outbound|80|v1|a.b"}}, patch: {operation: REMOVE}}`, "", "applied"},
		{"invalid", `{applyTo: CLUSTER, patch: {operation: MERGE, value: {connect_timeout: -2s}}}`, "1.5s", "invalid Cluster.ConnectTimeout: value must be greater than 0s"},
		{"added twice", `{applyTo: CLUSTER, patch: {operation: ADD, value: {name: "outbound|80|v1|a.b"}}}`, "1.5s", `there is a cluster "outbound|80|v1|a.b"; use MERGE, or another name`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := read(t, base, &clusterv3.Cluster{})
			before := proto.CloneOf(c)
			got, results := patch.Cluster(c, c.Name, patch.Outbound, parse(t, tt.spec))
			if !proto.Equal(c, before) {
				t.Error("the cluster that was given has changed")
			}
			timeout := ""
			if got != nil {
				timeout = strings.TrimSuffix(got.ConnectTimeout.AsDuration().String(), "")
				if got.Name != c.Name {
					t.Errorf("name %q", got.Name)
				}
			}
			if timeout != tt.want || became(results)[0] != tt.became {
				t.Errorf("connect timeout %q, %q; want %q, %q", timeout, became(results)[0], tt.want, tt.became)
			}
		})
	}
	t.Run("lists get longer", func(t *testing.T) {
		got, _ := patch.Cluster(read(t, base, &clusterv3.Cluster{}), "outbound|80|v1|a.b", patch.Outbound,
			parse(t, `{applyTo: CLUSTER, patch: {operation: MERGE, value: {circuit_breakers: {thresholds: [{max_retries: 5}]}}}}`))
		if list := got.CircuitBreakers.Thresholds; len(list) != 2 || list[0].MaxRetries.Value != 1 || list[1].MaxRetries.Value != 5 {
			t.Errorf("thresholds %v", list)
		}
	})
	t.Run("lists are replaced", func(t *testing.T) {
		got, _ := patch.Cluster(read(t, base, &clusterv3.Cluster{}), "outbound|80|v1|a.b", patch.Outbound,
			parse(t, `{applyTo: CLUSTER, patch: {operation: MERGE_AND_REPLACE_LIST, value: {circuit_breakers: {thresholds: [{max_retries: 5}]}}}}`))
		if list := got.CircuitBreakers.Thresholds; len(list) != 1 || list[0].MaxRetries.Value != 5 || got.GetEdsClusterConfig() == nil {
			t.Errorf("thresholds %v", list)
		}
	})
	t.Run("added", func(t *testing.T) {
		got, results := patch.Cluster(nil, "added", patch.Outbound, parse(t,
			`{applyTo: CLUSTER, patch: {operation: ADD, value: {name: added, type: STATIC}}}`, `{applyTo: CLUSTER, patch: {operation: ADD, value: {name: other, type: STATIC}}}`,
			`{applyTo: CLUSTER, match: {cluster: {name: added}}, patch: {operation: MERGE, value: {connect_timeout: 2s}}}`))
		if got.GetName() != "added" || got.ConnectTimeout.AsDuration().Seconds() != 2 || strings.Join(became(results), ",") != "applied,unmatched,applied" {
			t.Errorf("%v, %q", got, became(results))
		}
	})
}

func TestTransportSockets(t *testing.T) {
	const tls = `{name: envoy.transport_sockets.tls, typed_config: {"@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext, MORE}}`
	socket := func(more string) string { return strings.Replace(tls, "MORE", more, 1) }
	spec := `{applyTo: CLUSTER, patch: {operation: MERGE, value: {transport_socket: ` + socket("sni: patched") + `}}}`
	for _, tt := range []struct{ name, cluster, has, not, became string }{
		{"of the same name", `{name: a, type: STATIC, transport_socket: ` + socket("max_session_keys: 7") + `}`, "patched", "", "applied"},
		{"of another name", `{name: a, type: STATIC, transport_socket: {name: raw}}`, "patched", "raw", "applied"},
		{"none", `{name: a, type: STATIC}`, "patched", "", "applied"},
		{"several", `{name: a, type: STATIC, transport_socket_matches: [{name: m, transport_socket: ` + socket("max_session_keys: 7") + `}, {name: other, transport_socket: {name: raw}}]}`, "patched", "", "applied"},
		{"several, none of the name", `{name: a, type: STATIC, transport_socket_matches: [{name: other, transport_socket: {name: raw}}]}`, "raw", "patched",
			`transport_socket: the cluster chooses one of several transport sockets, none of them named "envoy.transport_sockets.tls"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, results := patch.Cluster(read(t, tt.cluster, &clusterv3.Cluster{}), "a", patch.Outbound, parse(t, spec))
			text := protojson.Format(got)
			if !strings.Contains(text, tt.has) || tt.not != "" && strings.Contains(text, tt.not) || became(results)[0] != tt.became {
				t.Errorf("%s\n%q", text, became(results))
			}
			if strings.Contains(tt.cluster, "max_session_keys") && !strings.Contains(text, "maxSessionKeys") {
				t.Errorf("what was there is gone: %s", text)
			}
		})
	}
}

// listener is an inbound one with two ports; the filters of the first are HTTP's.
func listener(t testing.TB) *listenerv3.Listener {
	t.Helper()
	const manager = `{name: envoy.filters.network.http_connection_manager, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager, stat_prefix: a,
 route_config: {name: "inbound|8080||", virtual_hosts: [{name: h, domains: ["*"], routes: [{name: default, match: {prefix: /}, route: {cluster: c}}]}]},
 http_filters: [{name: envoy.filters.http.fault, typed_config: {` + config + `fault.v3.HTTPFault}}, {name: envoy.filters.http.router, typed_config: {` + config + `router.v3.Router}}]}}`
	return read(t, `{name: virtualInbound, address: {socket_address: {address: 0.0.0.0, port_value: 15006}}, listener_filters: [{name: tls}], filter_chains: [
{name: tls, filter_chain_match: {destination_port: 8080, transport_protocol: tls, application_protocols: [h2, http/1.1]}, filters: [`+manager+`]},
{name: plain, filter_chain_match: {destination_port: 8080, server_names: [a.example]}, filters: [`+manager+`]},
{name: tcp, filter_chain_match: {destination_port: 9000}, filters: [{name: envoy.filters.network.tcp_proxy, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy, stat_prefix: a, cluster: c}}]}]}`, &listenerv3.Listener{})
}

// shown is a listener in short: "chain=filter,filter(http filter,http filter) …".
func shown(t testing.TB, l *listenerv3.Listener) string {
	t.Helper()
	var out []string
	for _, fc := range l.GetFilterChains() {
		var filters []string
		for _, f := range fc.Filters {
			text := strings.TrimPrefix(f.Name, "envoy.filters.network.")
			h := &hcmv3.HttpConnectionManager{}
			if f.GetTypedConfig().MessageIs(h) {
				if err := f.GetTypedConfig().UnmarshalTo(h); err != nil {
					t.Fatal(err)
				}
				var names []string
				for _, hf := range h.HttpFilters {
					names = append(names, strings.TrimPrefix(hf.Name, "envoy.filters.http."))
				}
				text = "(" + strings.Join(names, ",") + ")"
			}
			filters = append(filters, text)
		}
		out = append(out, fc.Name+"="+strings.Join(filters, ","))
	}
	return strings.Join(out, " ")
}

func TestListeners(t *testing.T) {
	const same = "tls=(fault,router) plain=(fault,router) tcp=tcp_proxy"
	http := func(match, op, value string) string {
		return `{applyTo: HTTP_FILTER, match: {context: SIDECAR_INBOUND, listener: ` + match + `}, patch: {operation: ` + op + value + `}}`
	}
	sub := func(name string) string {
		return `{filterChain: {filter: {name: envoy.filters.network.http_connection_manager, subFilter: {name: ` + name + `}}}}`
	}
	network := func(match, op, value string) string {
		return `{applyTo: NETWORK_FILTER, match: {listener: ` + match + `}, patch: {operation: ` + op + value + `}}`
	}
	x := `, value: ` + named("x")
	echo := `, value: {name: echo, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.echo.v3.Echo}}`
	for _, tt := range []struct{ spec, want, became string }{
		{http(sub("envoy.filters.http.router"), "INSERT_BEFORE", x), "tls=(fault,x,router) plain=(fault,x,router) tcp=tcp_proxy", "applied"},
		{http(sub("envoy.router"), "INSERT_BEFORE", x), "tls=(fault,x,router) plain=(fault,x,router) tcp=tcp_proxy", "applied"},
		{http(sub("envoy.filters.http.fault"), "INSERT_AFTER", x), "tls=(fault,x,router) plain=(fault,x,router) tcp=tcp_proxy", "applied"},
		{http(`{portNumber: 8080}`, "INSERT_FIRST", x), "tls=(x,fault,router) plain=(x,fault,router) tcp=tcp_proxy", "applied"},
		{http(`{portNumber: 8080}`, "INSERT_BEFORE", x), "tls=(x,fault,router) plain=(x,fault,router) tcp=tcp_proxy", "applied"},
		{http(`{}`, "ADD", x), "tls=(fault,x,router) plain=(fault,x,router) tcp=tcp_proxy", "applied"},
		{http(`{}`, "INSERT_AFTER", x), same, `"x" would come after "envoy.filters.http.router", which is the last filter; use INSERT_BEFORE`},
		{http(`{portNumber: 9000}`, "INSERT_FIRST", x), same, "unmatched"},
		{http(sub("envoy.filters.http.cors"), "INSERT_FIRST", x), same, "unmatched"},
		{http(sub("envoy.filters.http.cors"), "INSERT_BEFORE", x), same, "unmatched"},
		{http(sub("envoy.filters.http.fault"), "REPLACE", x), "tls=(x,router) plain=(x,router) tcp=tcp_proxy", "applied"},
		{http(sub("envoy.filters.http.fault"), "REMOVE", ""), "tls=(router) plain=(router) tcp=tcp_proxy", "applied"},
		{http(sub("envoy.filters.http.router"), "REMOVE", ""), same, `the last filter, "envoy.filters.http.router", would be missing`},
		{http(`{filterChain: {transportProtocol: tls}}`, "INSERT_FIRST", x), "tls=(x,fault,router) plain=(fault,router) tcp=tcp_proxy", "applied"},
		{http(`{filterChain: {applicationProtocols: "h2, http/1.1"}}`, "INSERT_FIRST", x), "tls=(x,fault,router) plain=(fault,router) tcp=tcp_proxy", "applied"},
		{http(`{filterChain: {applicationProtocols: "h2,h3"}}`, "INSERT_FIRST", x), same, "unmatched"},
		{http(`{filterChain: {sni: a.example}}`, "INSERT_FIRST", x), "tls=(fault,router) plain=(x,fault,router) tcp=tcp_proxy", "applied"},
		{http(`{filterChain: {name: plain}}`, "INSERT_FIRST", x), "tls=(fault,router) plain=(x,fault,router) tcp=tcp_proxy", "applied"},
		{http(`{filterChain: {destinationPort: 9000}}`, "INSERT_FIRST", x), same, "unmatched"},
		{http(`{name: other}`, "INSERT_FIRST", x), same, "unmatched"},
		{http(`{filterChain: {filter: {name: envoy.filters.network.tcp_proxy}}}`, "INSERT_FIRST", x), same, "unmatched"},
		{http(sub("envoy.filters.http.fault"), "MERGE", x), same, "the value's typed_config is a envoy.extensions.filters.http.lua.v3.Lua, the configuration to merge it into is a envoy.extensions.filters.http.fault.v3.HTTPFault"},
		{network(`{filterChain: {filter: {name: envoy.filters.network.tcp_proxy}}}`, "INSERT_BEFORE", echo), "tls=(fault,router) plain=(fault,router) tcp=echo,tcp_proxy", "applied"},
		{network(`{filterChain: {filter: {name: envoy.filters.network.tcp_proxy}}}`, "INSERT_AFTER", echo), same, `"echo" would come after "envoy.filters.network.tcp_proxy", which is the last filter; use INSERT_BEFORE`},
		{network(`{portNumber: 9000, filterChain: {filter: {name: envoy.tcp_proxy}}}`, "REPLACE", echo), "tls=(fault,router) plain=(fault,router) tcp=echo", "applied"},
		{network(`{portNumber: 9000}`, "INSERT_FIRST", echo), "tls=(fault,router) plain=(fault,router) tcp=echo,tcp_proxy", "applied"},
		{network(`{filterChain: {filter: {name: envoy.filters.network.tcp_proxy}}}`, "MERGE", `, value: {typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy, max_connect_attempts: 0}}`),
			same, "invalid TcpProxy.MaxConnectAttempts: value must be greater than or equal to 1"},
		{`{applyTo: FILTER_CHAIN, match: {listener: {portNumber: 8080}}, patch: {operation: REMOVE}}`, "tcp=tcp_proxy", "applied"},
		{`{applyTo: FILTER_CHAIN, patch: {operation: REMOVE}}`, same, "the listener would have no filter chain; use REMOVE with applyTo LISTENER"},
		{`{applyTo: FILTER_CHAIN, patch: {operation: ADD, value: {name: more}}}`, same + " more=", "applied"},
		{`{applyTo: FILTER_CHAIN, match: {listener: {portNumber: 9000}}, patch: {operation: MERGE, value: {transport_socket_connect_timeout: 9s}}}`, same, "applied"},
		{`{applyTo: LISTENER, match: {listener: {portNumber: 15006}}, patch: {operation: MERGE, value: {name: other, per_connection_buffer_limit_bytes: 9}}}`, same, "applied"},
		{`{applyTo: LISTENER, match: {listener: {portNumber: 8080}}, patch: {operation: MERGE, value: {per_connection_buffer_limit_bytes: 9}}}`, same, "unmatched"},
		{`{applyTo: LISTENER, patch: {operation: REMOVE}}`, "", "applied"},
		{`{applyTo: LISTENER, match: {context: SIDECAR_OUTBOUND}, patch: {operation: REMOVE}}`, same, "unmatched"},
		{`{applyTo: LISTENER_FILTER, match: {listener: {listenerFilter: tls}}, patch: {operation: INSERT_BEFORE, value: {name: pp}}}`, same, "applied"},
		{`{applyTo: HTTP_ROUTE, match: {routeConfiguration: {portNumber: 8080}}, patch: {operation: INSERT_FIRST, value: {match: {path: /x}, direct_response: {status: 204}}}}`, same, "applied"},
		{`{applyTo: HTTP_ROUTE, match: {routeConfiguration: {portNumber: 80}}, patch: {operation: INSERT_FIRST, value: {match: {path: /x}, direct_response: {status: 204}}}}`, same, "unmatched"},
	} {
		l := listener(t)
		got, results := patch.Listener(l, l.Name, patch.Inbound, parse(t, tt.spec))
		if !proto.Equal(l, listener(t)) {
			t.Errorf("%s: the listener that was given has changed", tt.spec)
		}
		if text := shown(t, got); text != tt.want || became(results)[0] != tt.became {
			t.Errorf("%s\n got %s, %q\nwant %s, %q", tt.spec, text, became(results)[0], tt.want, tt.became)
		}
		if tt.became == "applied" == proto.Equal(l, got) {
			t.Errorf("%s: %s, and the listener is equal: %t", tt.spec, tt.became, proto.Equal(l, got))
		}
		if got != nil && got.Name != l.Name {
			t.Errorf("%s: name %q", tt.spec, got.Name)
		}
	}
}

// A patch that is refused leaves the others in force.
func TestARefusedPatchIsLeftOut(t *testing.T) {
	first := `{applyTo: HTTP_FILTER, patch: {operation: INSERT_FIRST, value: ` + named("x") + `}}`
	l := listener(t)
	got, results := patch.Listener(l, l.Name, patch.Inbound, parse(t, first, strings.Replace(first, "INSERT_FIRST", "INSERT_AFTER", 1), strings.Replace(first, "name: x", "name: z", 1)))
	if text := shown(t, got); text != "tls=(z,x,fault,router) plain=(z,x,fault,router) tcp=tcp_proxy" || results[1].Refused == "" || !results[0].Applied || !results[2].Applied {
		t.Errorf("%s, %q", text, became(results))
	}
}

// hosts is a route configuration in short: "host[route,route] …".
func hosts(rc *routev3.RouteConfiguration) string {
	var out []string
	for _, h := range rc.VirtualHosts {
		var routes []string
		for _, r := range h.Routes {
			routes = append(routes, r.Name)
		}
		out = append(out, h.Name+"["+strings.Join(routes, ",")+"]")
	}
	return strings.Join(out, " ")
}

func TestRoutes(t *testing.T) {
	const base = `{name: "NAME", virtual_hosts: [{name: "a:80", domains: [a, a.b], routes: [{name: r, match: {prefix: /r}, redirect: {}}, {name: default, match: {prefix: /}, route: {cluster: c, timeout: 1s}}]}, {name: allow_any, domains: ["*"], routes: [{name: any, match: {prefix: /}, route: {cluster: p}}]}]}`
	const same = "a:80[r,default] allow_any[any]"
	route := `, value: {name: new, match: {path: /new}, direct_response: {status: 204}}}}`
	for _, tt := range []struct {
		in                       patch.Context
		name, spec, want, became string
	}{
		{patch.Outbound, "80", `{applyTo: ROUTE_CONFIGURATION, match: {routeConfiguration: {portNumber: 80}}, patch: {operation: MERGE, value: {request_headers_to_remove: [x]}}}`, same, "applied"},
		{patch.Outbound, "h.example:80", `{applyTo: ROUTE_CONFIGURATION, match: {routeConfiguration: {portNumber: 80}}, patch: {operation: MERGE, value: {request_headers_to_remove: [x]}}}`, same, "applied"},
		{patch.Outbound, "81", `{applyTo: ROUTE_CONFIGURATION, match: {routeConfiguration: {portNumber: 80}}, patch: {operation: MERGE, value: {request_headers_to_remove: [x]}}}`, same, "unmatched"},
		{patch.Outbound, "80", `{applyTo: VIRTUAL_HOST, match: {routeConfiguration: {vhost: {name: "a:80"}}}, patch: {operation: MERGE, value: {require_tls: ALL}}}`, same, "applied"},
		{patch.Outbound, "80", `{applyTo: VIRTUAL_HOST, match: {routeConfiguration: {vhost: {domainName: a.b}}}, patch: {operation: REMOVE}}`, "allow_any[any]", "applied"},
		{patch.Outbound, "80", `{applyTo: VIRTUAL_HOST, match: {routeConfiguration: {name: "80"}}, patch: {operation: ADD, value: {name: extra, domains: [c]}}}`, same + " extra[]", "applied"},
		{patch.Outbound, "80", `{applyTo: VIRTUAL_HOST, patch: {operation: ADD, value: {name: extra, domains: ["*"]}}}`, same, `the domain "*" would be in two virtual hosts, or twice in one`},
		{patch.Outbound, "80", `{applyTo: VIRTUAL_HOST, patch: {operation: ADD, value: {name: allow_any, domains: [c]}}}`, same, `there would be two virtual hosts "allow_any"`},
		{patch.Outbound, "80", `{applyTo: HTTP_ROUTE, match: {routeConfiguration: {vhost: {name: "a:80"}}}, patch: {operation: INSERT_FIRST` + route, "a:80[new,r,default] allow_any[any]", "applied"},
		{patch.Outbound, "80", `{applyTo: HTTP_ROUTE, match: {routeConfiguration: {vhost: {name: "a:80", route: {name: r}}}}, patch: {operation: INSERT_AFTER` + route, "a:80[r,new,default] allow_any[any]", "applied"},
		{patch.Outbound, "80", `{applyTo: HTTP_ROUTE, match: {routeConfiguration: {vhost: {name: "a:80"}}}, patch: {operation: ADD` + route, "a:80[r,default,new] allow_any[any]", "applied"},
		{patch.Outbound, "80", `{applyTo: HTTP_ROUTE, match: {routeConfiguration: {vhost: {route: {action: REDIRECT}}}}, patch: {operation: REMOVE}}`, "a:80[default] allow_any[any]", "applied"},
		{patch.Outbound, "80", `{applyTo: HTTP_ROUTE, match: {routeConfiguration: {vhost: {route: {action: DIRECT_RESPONSE}}}}, patch: {operation: REMOVE}}`, same, "unmatched"},
		{patch.Outbound, "80", `{applyTo: HTTP_ROUTE, match: {routeConfiguration: {vhost: {route: {action: ROUTE}}}}, patch: {operation: MERGE, value: {route: {timeout: 9s}}}}`, same, "applied"},
		{patch.Outbound, "80", `{applyTo: HTTP_ROUTE, match: {context: GATEWAY}, patch: {operation: REMOVE}}`, same, "unmatched"},
		{patch.Gateway, "https.443.web.gw.a.shop", `{applyTo: VIRTUAL_HOST, match: {context: GATEWAY, routeConfiguration: {portNumber: 443, portName: web, gateway: shop/gw.a, vhost: {name: "a:80"}}}, patch: {operation: REMOVE}}`, "allow_any[any]", "applied"},
		{patch.Gateway, "https.443.web.gw.shop", `{applyTo: VIRTUAL_HOST, match: {context: GATEWAY, routeConfiguration: {gateway: other/gw}}, patch: {operation: REMOVE}}`, same, "unmatched"},
		{patch.Gateway, "http.8080", `{applyTo: VIRTUAL_HOST, match: {context: GATEWAY, routeConfiguration: {portNumber: 8080, vhost: {name: "a:80"}}}, patch: {operation: REMOVE}}`, "allow_any[any]", "applied"},
	} {
		rc := read(t, strings.Replace(base, "NAME", tt.name, 1), &routev3.RouteConfiguration{})
		before := proto.CloneOf(rc)
		got, results := patch.RouteConfiguration(rc, tt.in, parse(t, tt.spec))
		if !proto.Equal(rc, before) {
			t.Errorf("%s: the routes that were given have changed", tt.spec)
		}
		if hosts(got) != tt.want || became(results)[0] != tt.became {
			t.Errorf("%s\n got %s, %q\nwant %s, %q", tt.spec, hosts(got), became(results)[0], tt.want, tt.became)
		}
		if tt.became == "applied" == proto.Equal(rc, got) {
			t.Errorf("%s: %s, and the routes are equal: %t", tt.spec, tt.became, proto.Equal(rc, got))
		}
	}
}

// The port of a router's routes is that of its listener, or that of a server, which listens at another.
func TestPortsOfServers(t *testing.T) {
	p := *parse(t, `{applyTo: VIRTUAL_HOST, match: {context: GATEWAY, routeConfiguration: {portNumber: 80}}, patch: {operation: REMOVE}}`)[0]
	if p.TouchesRoutes("http.8080", patch.Gateway) || !p.TouchesRoutes("http.80", patch.Gateway) || p.ServerPort() != 80 {
		t.Error("without a listener for the port")
	}
	p.Listening = []uint32{8080}
	if !p.TouchesRoutes("http.8080", patch.Gateway) || p.TouchesRoutes("http.8081", patch.Gateway) {
		t.Error("with a listener at 8080 for the port")
	}
}

func TestVirtualHosts(t *testing.T) {
	const base = `{name: "80/a:80", domains: [a], routes: [{name: default, match: {prefix: /}, route: {cluster: c}}]}`
	for _, tt := range []struct{ spec, want, became string }{
		{`{applyTo: VIRTUAL_HOST, match: {routeConfiguration: {vhost: {name: "a:80"}}}, patch: {operation: MERGE, value: {name: b, require_tls: ALL}}}`, "80/a:80[default]", "applied"},
		{`{applyTo: VIRTUAL_HOST, match: {routeConfiguration: {vhost: {name: "a:80"}}}, patch: {operation: REPLACE, value: {name: b, domains: [a]}}}`, "80/a:80[]", "applied"},
		{`{applyTo: HTTP_ROUTE, match: {routeConfiguration: {portNumber: 80, vhost: {name: "a:80"}}}, patch: {operation: INSERT_FIRST, value: {name: new, match: {path: /}, direct_response: {status: 204}}}}`, "80/a:80[new,default]", "applied"},
		{`{applyTo: HTTP_ROUTE, match: {routeConfiguration: {portNumber: 81, vhost: {name: "a:80"}}}, patch: {operation: REMOVE}}`, "80/a:80[default]", "unmatched"},
		{`{applyTo: VIRTUAL_HOST, match: {routeConfiguration: {vhost: {name: "a:80"}}}, patch: {operation: REMOVE}}`, "", "applied"},
		{`{applyTo: ROUTE_CONFIGURATION, patch: {operation: MERGE, value: {request_headers_to_remove: [x]}}}`, "80/a:80[default]", "unmatched"},
	} {
		h := read(t, base, &routev3.VirtualHost{})
		got, results := patch.VirtualHost(h, "80", patch.Outbound, parse(t, tt.spec))
		rc := &routev3.RouteConfiguration{}
		if got != nil {
			rc.VirtualHosts = append(rc.VirtualHosts, got)
		}
		if hosts(rc) != tt.want || became(results)[0] != tt.became {
			t.Errorf("%s\n got %s, %q\nwant %s, %q", tt.spec, hosts(rc), became(results)[0], tt.want, tt.became)
		}
	}
}

// FuzzPatches decodes any patch and applies it to a listener, a route configuration and a cluster: nothing panics, and what comes
// out is valid.
func FuzzPatches(f *testing.F) {
	for _, text := range []string{
		`{"applyTo": "CLUSTER", "patch": {"operation": "MERGE", "value": {"connect_timeout": "1s", "transport_socket": {"name": "raw"}}}}`,
		`{"applyTo": "HTTP_FILTER", "match": {"listener": {"portNumber": 8080}}, "patch": {"operation": "ADD", "value": {"name": "x", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua"}}}}`,
		`{"applyTo": "NETWORK_FILTER", "patch": {"operation": "MERGE", "value": {"name": "envoy.filters.network.tcp_proxy", "typed_config": {"@type": "type.googleapis.com/udpa.type.v1.TypedStruct", "type_url": "x", "value": {}}}}}`,
		`{"applyTo": "HTTP_ROUTE", "match": {"routeConfiguration": {"vhost": {"name": "h"}}}, "patch": {"operation": "INSERT_FIRST", "value": {"match": {"path": "/x"}, "direct_response": {"status": 204}}}}`,
		`{"applyTo": "LISTENER_FILTER", "patch": {"operation": "REPLACE", "value": {"name": "tls"}}}`,
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		spec := &networking.EnvoyFilter_EnvoyConfigObjectPatch{}
		if protojson.Unmarshal([]byte(text), spec) != nil {
			return
		}
		p, faults := patch.Parse(0, spec)
		if p == nil {
			if len(faults) == 0 {
				t.Fatal("neither a patch nor what is wrong with it")
			}
			return
		}
		list := []*patch.Patch{p}
		l := listener(t)
		if l, _ = patch.Listener(l, l.Name, patch.Inbound, list); l != nil && l.Validate() != nil {
			t.Errorf("invalid listener: %v", l.Validate())
		}
		rc := read(t, `{name: "80", virtual_hosts: [{name: h, domains: [a], routes: [{match: {prefix: /}, route: {cluster: c}}]}]}`, &routev3.RouteConfiguration{})
		if rc, _ = patch.RouteConfiguration(rc, patch.Outbound, list); rc.Validate() != nil {
			t.Errorf("invalid routes: %v", rc.Validate())
		}
		c := read(t, `{name: "outbound|80||a.b", type: STATIC}`, &clusterv3.Cluster{})
		if c, _ = patch.Cluster(c, c.Name, patch.Outbound, list); c != nil && c.Validate() != nil {
			t.Errorf("invalid cluster: %v", c.Validate())
		}
	})
}
