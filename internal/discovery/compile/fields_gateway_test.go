package compile_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/pilothouse/pilothouse/internal/discovery/config"
	"github.com/pilothouse/pilothouse/internal/discovery/model"
	"github.com/pilothouse/pilothouse/internal/discovery/source/decode"
	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
)

// gatewayFieldExceptions are the fields of the Gateway API that change nothing and are not spoken of, with the reason.
var gatewayFieldExceptions = map[string]string{
	"HTTPRoute.rules.name": "it is only a name: for people, and for policies that name a section, of which there are none",
	"GRPCRoute.rules.name": "the same",
	"TLSRoute.rules.name":  "the same",
	"TCPRoute.rules.name":  "the same",
	"UDPRoute.rules.name":  "the same",
}

// TestEveryFieldOfTheGatewayAPIIsAppliedOrNamed is TestEveryFieldIsAppliedOrNamed for the Gateway API, whose kinds are Go structs: every field of
// each is in one of the bases, and a change of it changes what proxies get or what the status says, or a verdict names it.
func TestEveryFieldOfTheGatewayAPIIsAppliedOrNamed(t *testing.T) {
	for kind, bases := range gatewayFieldBases {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			c := newGatewayFieldCheck(t, kind)
			seen, fine := map[string]bool{}, map[string]bool{}
			for _, base := range bases {
				c.walk(base, seen, fine)
			}
			for _, path := range structPaths(reflect.TypeOf(decode.GatewaySpec(kind)), string(kind)) {
				switch excepted := gatewayFieldExceptions[path] != ""; {
				case !seen[path]:
					t.Errorf("%s: no base has it", path)
				case excepted && fine[path]:
					t.Errorf("%s: the exception is not needed any more: remove it", path)
				case !excepted && !fine[path]:
					t.Errorf("%s: it changes nothing, and no verdict names it", path)
				}
			}
		})
	}
}

// structPaths are the paths of the fields of a struct that are no structs themselves.
func structPaths(typ reflect.Type, path string) (out []string) {
	for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice {
		typ = typ.Elem()
	}
	if typ.Kind() != reflect.Struct {
		return []string{path}
	}
	for i := range typ.NumField() {
		f := typ.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if at := path + "." + name; strings.Contains(options, "inline") || name == "" {
			out = append(out, structPaths(f.Type, path)...)
		} else {
			out = append(out, structPaths(f.Type, at)...)
		}
	}
	return out
}

// gatewayFieldCheck tries the fields of one kind.
type gatewayFieldCheck struct {
	t      *testing.T
	kind   object.Kind
	world  *world
	nodes  []mesh.Node
	status *incr.Rule[object.Key, *object.GatewayStatus]
}

func newGatewayFieldCheck(t *testing.T, kind object.Kind) *gatewayFieldCheck {
	c := &gatewayFieldCheck{t: t, kind: kind, world: newWorld()}
	c.world.apply(t, strings.ReplaceAll(gatewayFieldMesh, "ROOT", strings.ReplaceAll(strings.TrimSpace(otherRoot), "\n", "\n    ")))
	c.status = incr.Derive(c.world.graph, model.LevelCompile, "statuses of fields", c.world.model.GatewayStatus)
	c.nodes = []mesh.Node{proxy(t, "router~10.99.0.4~gw-1.shop~shop.svc.cluster.local", "app=gw"), proxy(t, "sidecar~10.99.0.5~client-1.shop~shop.svc.cluster.local", "app=client")}
	return c
}

// gatewayFieldResult is what an object leads to.
type gatewayFieldResult struct {
	out      map[string]string
	verdicts []config.Verdict
}

// try returns what a spec leads to; false if it cannot be decoded.
func (c *gatewayFieldCheck) try(tree any) (r gatewayFieldResult, ok bool) {
	text, err := json.Marshal(tree)
	if err != nil {
		c.t.Fatal(err)
	}
	spec := decode.GatewaySpec(c.kind)
	if json.Unmarshal(text, spec) != nil {
		return r, false
	}
	key := object.Key{Kind: c.kind, Namespace: "shop", Name: "subject"}
	o := object.Object{Key: key, Spec: spec}
	r.verdicts = config.Validate(o)
	c.world.model.Apply([]object.Change{{Key: key, Object: &o}})
	c.world.graph.Run()
	c.world.classes = map[mesh.Class]bool{}
	r.out = map[string]string{}
	for i, n := range c.nodes {
		for k, v := range c.world.bytes(c.world.join(n)) {
			r.out[fmt.Sprintf("%d %s %s", i, k.Kind.TypeURL(), k.Name)] = string(v)
		}
	}
	status, err := json.Marshal(c.status.Want(key))
	if err != nil {
		c.t.Fatal(err)
	}
	c.status.Unwant(key)
	r.out["status"] = string(status)
	return r, true
}

// refused reports whether the spec is rejected: then it is no input of the compiler.
func refused(verdicts []config.Verdict) bool {
	return slices.ContainsFunc(verdicts, func(v config.Verdict) bool { return v.Severity == object.Error })
}

// named reports whether a verdict names a field, or what has it, or a part of it, as not applied.
func named(verdicts []config.Verdict, path string) bool {
	for _, v := range verdicts {
		at := strings.TrimPrefix(index.ReplaceAllString(v.Field, ""), "spec")
		if notApplied(v) && (path == at || strings.HasPrefix(path, at+".") || strings.HasPrefix(at, path+".")) {
			return true
		}
	}
	return false
}

// walk changes each leaf of a base, and notes which fields are in it and which changes were seen.
func (c *gatewayFieldCheck) walk(base string, seen, fine map[string]bool) {
	var tree any
	if err := yaml.Unmarshal([]byte(base), &tree); err != nil {
		c.t.Fatal(err)
	}
	before, ok := c.try(tree)
	if !ok {
		c.t.Fatalf("it cannot be decoded: %s", base)
	}
	var leaves func(at any, path string, set func(any, bool))
	leaves = func(at any, path string, set func(value any, keep bool)) {
		switch at := at.(type) {
		case map[string]any:
			for name, v := range maps.Clone(at) {
				leaves(v, path+"."+name, func(value any, keep bool) {
					if at[name] = value; !keep {
						delete(at, name)
					}
				})
			}
			if len(at) > 0 && seen[path] || isOptions(path) {
				c.leaf(tree, before, at, path, set, seen, fine)
			}
		case []any:
			for i, v := range at {
				leaves(v, path, func(value any, keep bool) {
					if keep {
						at[i] = value
					}
				})
			}
			if len(at) > 0 {
				if _, whole := at[0].(map[string]any); !whole {
					c.leaf(tree, before, at, path, set, seen, fine)
				}
			}
		default:
			c.leaf(tree, before, at, path, set, seen, fine)
		}
	}
	leaves(tree, string(c.kind), func(any, bool) {})
	if again, _ := c.try(tree); !maps.Equal(again.out, before.out) {
		c.t.Errorf("the same gives something else, so that nothing is shown by a difference: %s", base)
	}
}

// isOptions reports whether a field is a map of strings.
func isOptions(path string) bool {
	for _, end := range []string{".options", ".matchLabels", ".labels", ".annotations"} {
		if strings.HasSuffix(path, end) {
			return true
		}
	}
	return false
}

// leaf tries other values of one field, and none.
func (c *gatewayFieldCheck) leaf(tree any, before gatewayFieldResult, old any, path string, set func(any, bool), seen, fine map[string]bool) {
	seen[path] = true
	rest := strings.TrimPrefix(path, string(c.kind))
	if named(before.verdicts, rest) {
		fine[path] = true
	}
	var values []any
	switch old := old.(type) {
	case string:
		values = []any{old + "x", "other", "a", "b", "http", "https"}
		for _, v := range []string{
			"Exact", "PathPrefix", "RegularExpression", "ReplaceFullPath", "ReplacePrefixMatch", "RequestHeaderModifier", "CORS", "Hostname", "IPAddress", "URI", "HTTP", "TCP", "Passthrough", "All", "Same", "Exists", "GET", "5s", "TCPRoute", "Service", "AllowInsecureFallback",
		} {
			values = append(values, v)
		}
	case bool:
		values = []any{!old}
	case float64:
		values = []any{old + 1, old - 1}
	}
	for i := -1; i < len(values) && !fine[path]; i++ {
		if i < 0 {
			set(nil, false)
		} else {
			set(values[i], true)
		}
		if after, ok := c.try(tree); ok && (!refused(after.verdicts) || refused(before.verdicts)) {
			fine[path] = !maps.Equal(after.out, before.out) || named(after.verdicts, rest)
		}
	}
	set(old, true)
}

const gatewayFieldMesh = `
apiVersion: v1
kind: Service
metadata: {name: gw, namespace: shop}
spec: {clusterIP: 10.96.1.9, selector: {app: gw}, ports: [{name: http, port: 80}, {name: https, port: 443}, {name: tls, port: 8443}, {name: tcp, port: 9000}]}
---
apiVersion: v1
kind: Service
metadata: {name: a, namespace: shop}
spec: {clusterIP: 10.96.1.1, ports: [{name: http, port: 80}, {name: grpc, port: 81}, {name: tcp, port: 90}, {name: udp, port: 53, protocol: UDP}]}
---
apiVersion: v1
kind: Service
metadata: {name: b, namespace: shop}
spec: {clusterIP: 10.96.1.2, ports: [{name: http, port: 80}, {name: grpc, port: 81}, {name: tcp, port: 90}, {name: udp, port: 53, protocol: UDP}]}
---
apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {tier: one}}
---
apiVersion: v1
kind: Namespace
metadata: {name: other, labels: {tier: two}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: roots, namespace: shop}
data:
  ca.crt: |
    ROOT
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: api, namespace: shop}
spec:
  gatewayClassName: istio
  addresses: [{type: Hostname, value: gw.shop.svc.cluster.local}]
  allowedListeners: {namespaces: {from: Same}}
  listeners:
  - {name: http, port: 80, protocol: HTTP}
  - {name: tls, port: 8443, protocol: TLS, tls: {mode: Passthrough}}
  - {name: tcp, port: 9000, protocol: TCP}
  - {name: udp, port: 5300, protocol: UDP}
---
apiVersion: gateway.networking.k8s.io/v1
kind: ListenerSet
metadata: {name: near, namespace: shop}
spec: {parentRef: {name: subject}, listeners: [{name: near, port: 80, protocol: HTTP, hostname: near.example.org}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: ListenerSet
metadata: {name: far, namespace: other}
spec: {parentRef: {name: subject, namespace: shop}, listeners: [{name: far, port: 80, protocol: HTTP, hostname: far.example.org}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: sets, namespace: shop}
spec: {parentRefs: [{kind: ListenerSet, name: subject}], hostnames: [set.example.com], rules: [{backendRefs: [{name: b, port: 80}]}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: sets, namespace: other}
spec: {parentRefs: [{kind: ListenerSet, name: subject, namespace: shop}], hostnames: [far.example.com], rules: [{filters: [{type: RequestRedirect, requestRedirect: {scheme: https}}]}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: near, namespace: shop}
spec: {parentRefs: [{name: subject}, {name: api}], hostnames: [near.example.com], rules: [{backendRefs: [{name: b, port: 80}]}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: far, namespace: other}
spec: {parentRefs: [{name: subject, namespace: shop}], hostnames: [far.example.com], rules: [{filters: [{type: RequestRedirect, requestRedirect: {scheme: https}}]}]}
---
apiVersion: v1
kind: Service
metadata: {name: secure, namespace: shop}
spec: {clusterIP: 10.96.1.3, ports: [{name: https, port: 443}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: BackendTLSPolicy
metadata: {name: secure, namespace: shop}
spec: {targetRefs: [{group: "", kind: Service, name: secure}], validation: {hostname: secure.example.com, wellKnownCACertificates: System}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: secure, namespace: shop}
spec: {parentRefs: [{name: subject}], hostnames: [secure.example.com], rules: [{backendRefs: [{name: secure, port: 443}]}]}
`

// gatewayFilters are all filters with all of their fields.
const gatewayFilters = `
- {type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: x-a, value: a}], add: [{name: x-b, value: b}], remove: [x-c]}}
- {type: ResponseHeaderModifier, responseHeaderModifier: {set: [{name: x-a, value: a}], add: [{name: x-b, value: b}], remove: [x-c]}}
- {type: RequestMirror, requestMirror: {backendRef: {group: "", kind: Service, name: b, namespace: shop, port: 80}, percent: 50}}
- {type: RequestMirror, requestMirror: {backendRef: {name: b, port: 80}, fraction: {numerator: 2, denominator: 50}}}
`

const gatewayHTTPFilters = gatewayFilters + `
- {type: CORS, cors: {allowOrigins: ["https://a.com"], allowCredentials: true, allowMethods: [GET], allowHeaders: [x-a], exposeHeaders: [x-b], maxAge: 10}}
- {type: URLRewrite, urlRewrite: {hostname: a.com, path: {type: ReplacePrefixMatch, replacePrefixMatch: /c}}}
`

const gatewayOtherFilters = `
- {type: ExternalAuth, externalAuth: {protocol: HTTP, backendRef: {group: "", kind: Service, name: b, namespace: shop, port: 80}, grpc: {allowedHeaders: [a]}, http: {path: /a, allowedHeaders: [a], allowedResponseHeaders: [b]}, forwardBody: {maxSize: 10}}}
- {type: ExtensionRef, extensionRef: {group: a.b, kind: C, name: d}}
`

const gatewayRedirects = `
- {type: RequestRedirect, requestRedirect: {scheme: https, hostname: a.com, port: 8080, statusCode: 301, path: {type: ReplaceFullPath, replaceFullPath: /b}}}
`

// gatewayFieldRule is a rule with filters, those of its backend too.
func gatewayFieldRule(filters, ofBackend, more string) string {
	indent := func(text, by string) string { return strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n"+by) }
	return "- matches: [{path: {type: PathPrefix, value: /a}}]\n  filters:\n  " + indent(filters, "  ") + "\n  backendRefs:\n  - name: a\n    port: 80\n    filters:\n    " + indent(ofBackend, "    ") + "\n" + more
}

const gatewayFieldParents = `parentRefs: [{group: gateway.networking.k8s.io, kind: Gateway, namespace: shop, name: api, sectionName: SECTION, port: PORT}]
useDefaultGateways: All
`

func parentsOf(section, port string) string {
	return strings.NewReplacer("SECTION", section, "PORT", port).Replace(gatewayFieldParents)
}

const gatewayFieldSession = "sessionPersistence: {sessionName: a, absoluteTimeout: 1h, type: Cookie, cookieConfig: {lifetimeType: Permanent}}"

// gatewayFieldBases are specs in which the fields of each kind can have an effect.
var gatewayFieldBases = map[object.Kind][]string{
	object.HTTPRoute: {
		parentsOf("http", "80") + `
hostnames: [a.example.com]
rules:
- name: one
  matches: [{path: {type: Exact, value: /a}, method: POST, headers: [{type: Exact, name: x-a, value: b}], queryParams: [{type: Exact, name: q, value: r}]}]
  timeouts: {request: 10s, backendRequest: 2s}
  retry: {codes: [503], attempts: 3, backoff: 100ms}
  ` + gatewayFieldSession + `
  backendRefs: [{group: "", kind: Service, name: a, namespace: shop, port: 80, weight: 3}, {name: b, port: 80, weight: 2}]
`,
		"parentRefs: [{name: api}]\nrules:\n" + gatewayFieldRule(gatewayHTTPFilters, gatewayFilters, ""),
		"parentRefs: [{name: api}]\nrules:\n" + gatewayFieldRule(gatewayOtherFilters, gatewayOtherFilters, ""),
		"parentRefs: [{name: api}]\nrules:\n" + gatewayFieldRule(gatewayFilters, gatewayHTTPFilters, ""),
		"parentRefs: [{name: api}]\nrules:\n" + gatewayFieldRule(gatewayFilters, gatewayRedirects, ""),
		"parentRefs: [{name: api}]\nrules: [{matches: [{path: {value: /a}}], filters: [" + strings.TrimPrefix(strings.TrimSpace(gatewayRedirects), "- ") + "]}]",
		"parentRefs: [{name: api}]\nrules: [{matches: [{path: {value: /a}}], filters: [{type: RequestRedirect, requestRedirect: {path: {type: ReplacePrefixMatch, replacePrefixMatch: /b, replaceFullPath: /c}}}]}]",
		"parentRefs: [{name: api}]\nrules: [{matches: [{path: {value: /a}}], filters: [{type: URLRewrite, urlRewrite: {path: {type: ReplaceFullPath, replaceFullPath: /b, replacePrefixMatch: /c}}}], backendRefs: [{name: a, port: 80}]}]",
		"parentRefs: [{name: api}]\nrules: [{backendRefs: [{name: a, port: 80, filters: [" +
			"{type: URLRewrite, urlRewrite: {path: {type: ReplaceFullPath, replaceFullPath: /b}}}, {type: RequestRedirect, requestRedirect: {path: {type: ReplacePrefixMatch, replacePrefixMatch: /b}}}]}]}]",
		"parentRefs: [{group: '', kind: Service, name: a, port: 80}]\nrules: [{backendRefs: [{name: b, port: 80}]}]",
	},
	object.GRPCRoute: {
		parentsOf("http", "80") + `
hostnames: [a.example.com]
rules:
- name: one
  matches: [{method: {type: Exact, service: a.B, method: C}, headers: [{type: Exact, name: x-a, value: b}]}]
  ` + gatewayFieldSession + `
  backendRefs: [{group: "", kind: Service, name: a, namespace: shop, port: 81, weight: 3}, {name: b, port: 81, weight: 2}]
`,
		"parentRefs: [{name: api}]\nrules:\n- " + strings.TrimPrefix(strings.ReplaceAll(gatewayFieldRule(gatewayFilters, gatewayFilters, ""), "matches: [{path: {type: PathPrefix, value: /a}}]\n", "name: a\n"), "- "),
		"parentRefs: [{name: api}]\nrules: [{filters: [{type: ExtensionRef, extensionRef: {group: a.b, kind: C, name: d}}], backendRefs: [{name: a, port: 81, filters: [{type: ExtensionRef, extensionRef: {group: a.b, kind: C, name: d}}]}]}]",
	},
	object.TLSRoute: {
		parentsOf("tls", "8443") + "hostnames: [a.example.com]\nrules: [{name: a, backendRefs: [{group: '', kind: Service, name: a, namespace: shop, port: 90, weight: 3}, {name: b, port: 90, weight: 2}]}]",
	},
	object.TCPRoute: {
		parentsOf("tcp", "9000") + "rules: [{name: a, backendRefs: [{group: '', kind: Service, name: a, namespace: shop, port: 90, weight: 3}, {name: b, port: 90, weight: 2}]}]",
	},
	object.UDPRoute: {
		parentsOf("udp", "5300") + "rules: [{name: a, backendRefs: [{group: '', kind: Service, name: a, namespace: shop, port: 53, weight: 3}, {name: b, port: 53, weight: 2}]}]",
	},
	object.BackendTLSPolicy: {
		`
targetRefs: [{group: "", kind: Service, name: b, sectionName: http}]
validation: {hostname: a.com, caCertificateRefs: [{group: "", kind: ConfigMap, name: roots}], subjectAltNames: [{type: Hostname, hostname: b.com}, {type: URI, uri: "a://b"}]}
options: {a.b/c: d}
`,
		"targetRefs: [{group: '', kind: Service, name: b}]\nvalidation: {hostname: a.com, wellKnownCACertificates: System}",
	},
	object.ListenerSet: {
		`
parentRef: {group: gateway.networking.k8s.io, kind: Gateway, namespace: shop, name: api}
listeners:
- {name: http, port: 80, protocol: HTTP, hostname: "*.example.com", allowedRoutes: {namespaces: {from: Selector, selector: {matchLabels: {tier: one}}}, kinds: [{group: gateway.networking.k8s.io, kind: HTTPRoute}]}}
- {name: https, port: 443, protocol: HTTPS, tls: {mode: Terminate, certificateRefs: [{group: "", kind: Secret, name: a, namespace: shop}], options: {a.b/c: d}}}
- {name: tls, port: 8444, protocol: TLS, tls: {mode: Terminate, certificateRefs: [{name: a}]}}
`,
		`
parentRef: {name: api}
listeners:
- {name: http, port: 80, protocol: HTTP, hostname: "*.example.com", allowedRoutes: {namespaces: {from: Selector, selector: {matchExpressions: [{key: tier, operator: In, values: [two]}]}}}}
`,
	},
	object.KubernetesGateway: {
		`
gatewayClassName: istio
addresses: [{type: Hostname, value: gw.shop.svc.cluster.local}]
allowedListeners: {namespaces: {from: Selector, selector: {matchLabels: {tier: one}}}}
defaultScope: All
tls: {backend: {clientCertificateRef: {group: "", kind: Secret, name: a, namespace: shop}}}
infrastructure: {labels: {a: b}, annotations: {a: b}, parametersRef: {group: "", kind: ConfigMap, name: a}}
listeners:
- {name: http, port: 80, protocol: HTTP, hostname: "*.example.com", allowedRoutes: {namespaces: {from: Selector, selector: {matchLabels: {tier: one}}}, kinds: [{group: gateway.networking.k8s.io, kind: HTTPRoute}]}}
- {name: https, port: 443, protocol: HTTPS, tls: {mode: Terminate, certificateRefs: [{group: "", kind: Secret, name: a, namespace: shop}], options: {a.b/c: d}}}
- {name: tls, port: 8443, protocol: TLS, tls: {mode: Terminate, certificateRefs: [{name: a}]}}
`,
		`
gatewayClassName: istio
addresses: [{type: Hostname, value: gw.shop.svc.cluster.local}]
allowedListeners: {namespaces: {from: Selector, selector: {matchExpressions: [{key: tier, operator: In, values: [two]}]}}}
tls: {frontend: {default: {validation: {caCertificateRefs: [{group: "", kind: ConfigMap, name: roots, namespace: shop}], mode: AllowValidOnly}}, perPort: [{port: 443, tls: {validation: {caCertificateRefs: [{group: "", kind: ConfigMap, name: roots, namespace: shop}], mode: AllowInsecureFallback}}}]}}
listeners:
- {name: http, port: 80, protocol: HTTP, allowedRoutes: {namespaces: {from: Selector, selector: {matchExpressions: [{key: tier, operator: In, values: [two]}]}}}}
- {name: https, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: a}]}}
- {name: more, port: 8443, protocol: HTTPS, hostname: more.example.org, tls: {certificateRefs: [{name: a}]}}
`,
	},
}
