package config_test

import (
	"testing"

	"github.com/pilothouse/pilothouse/internal/object"
)

func TestGatewayAPIRules(t *testing.T) {
	runRules(t, []rule{
		{object.GatewayClass, "{controllerName: istio.io/gateway-controller}", nil},
		{object.GatewayClass, "{parametersRef: {group: a, kind: B, name: c}}", []string{"E spec.controllerName: is missing", "W spec.parametersRef: not applied"}},
		{object.KubernetesGateway, "{gatewayClassName: istio, addresses: [{type: Hostname, value: a}], listeners: [{name: a, port: 80, protocol: HTTP, hostname: '*.a.com', allowedRoutes: {namespaces: {from: All}, kinds: [{kind: HTTPRoute}]}}, {name: b, port: 443, protocol: TLS, tls: {mode: Passthrough}}, {name: c, port: 9, protocol: TCP}]}", nil},
		{object.KubernetesGateway, "{infrastructure: {labels: {a: b}}, allowedListeners: {namespaces: {from: Some, selector: {matchExpressions: [{operator: X}]}}}, tls: {backend: {clientCertificateRef: {kind: ConfigMap, name: a}}}, defaultScope: All, addresses: [{value: 1.2.3.4}], listeners: []}", []string{
			"E spec.gatewayClassName: is missing", "I spec.infrastructure: applied to what is made", "E spec.allowedListeners.namespaces.from: invalid value", "E spec.allowedListeners.namespaces.selector.matchExpressions[0].operator: invalid operator", "W spec.tls.backend.clientCertificateRef: not applied: a certificate of kind \"ConfigMap\"", "W spec.defaultScope: not applied", "I spec.addresses[0]: asked of the load balancer",
		}},
		{object.KubernetesGateway, "{gatewayClassName: istio, infrastructure: {parametersRef: {group: a, kind: B, name: c}}, listeners: []}", []string{"W spec.infrastructure.parametersRef: not applied: want a ConfigMap"}},
		{object.KubernetesGateway, "{gatewayClassName: istio, infrastructure: {labels: {a: b}}, addresses: [{type: Hostname, value: a}, {value: 1.2.3.4}], listeners: []}", []string{"W spec.infrastructure: not applied: the Gateway is served", "W spec.addresses[1]: not applied"}},
		{object.KubernetesGateway, "{gatewayClassName: istio, addresses: [{type: IPAddress}, {value: 1.2.3.4}, {value: '2001:db8::1'}], listeners: []}", []string{
			"I spec.addresses[0]: asked of", "I spec.addresses[1]: asked of", "W spec.addresses[2]: not applied: one address can be asked of a load balancer, and 1.2.3.4 is;",
		}},
		{object.KubernetesGateway, "{gatewayClassName: istio, addresses: [{type: example.com/x, value: a}, {value: 1.2.3.4}], listeners: []}", []string{
			"W spec.addresses[0]: not applied: unknown type \"example.com/x\"", "W spec.addresses[1]: not applied: only an address of type Hostname",
		}},
		{object.KubernetesGateway, "{gatewayClassName: istio, tls: {backend: {clientCertificateRef: {name: a, namespace: b}}}, addresses: [{type: Hostname, value: a}], listeners: []}", nil},
		{object.KubernetesGateway, "{gatewayClassName: istio, tls: {backend: {clientCertificateRef: {name: a/b}}}, addresses: [{type: Hostname, value: a}], listeners: []}", []string{"E spec.tls.backend.clientCertificateRef: invalid reference to a Secret"}},
		{object.KubernetesGateway, "{gatewayClassName: istio, tls: {frontend: {default: {validation: {caCertificateRefs: []}}}}, listeners: []}", []string{"E spec.tls.frontend.default.validation.caCertificateRefs: is missing"}},
		{object.KubernetesGateway, "{gatewayClassName: istio, tls: {frontend: {default: {}, perPort: [{port: 443, tls: {validation: {mode: AllowInsecureFallback, caCertificateRefs: [{group: '', kind: ConfigMap, name: a}, {group: '', kind: Secret, name: a}]}}}, {port: 443, tls: {}}, {port: 8443, tls: {validation: {mode: x, caCertificateRefs: [{group: '', kind: ConfigMap, name: a/b}]}}}]}}, listeners: [{name: a, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: a}]}}]}", []string{
			"W spec.tls.frontend.perPort[0].tls.validation.mode: clients without a certificate are let in", "W spec.tls.frontend.perPort[0].tls.validation.caCertificateRefs[1]: not applied: certificates of kind",
			"E spec.tls.frontend.perPort[2].tls.validation.mode: invalid mode \"x\"", "E spec.tls.frontend.perPort[2].tls.validation.caCertificateRefs[0]: invalid reference", "W spec.tls.frontend.perPort[2].port: the Gateway has no listener of protocol HTTPS at port 8443",
			"E spec.tls.frontend.perPort[1].port: duplicate port 443",
		}},
		{object.KubernetesGateway, "{gatewayClassName: istio, listeners: [{name: a, port: 0, protocol: SCTP, hostname: 1.2.3.4}, {name: a, port: 70000, protocol: foo}, {port: 1, protocol: HTTP, tls: {}}, {name: d, port: 1, protocol: HTTPS}]}", []string{
			"E spec.listeners[0].port: invalid port 0", "E spec.listeners[0].hostname: invalid host name", "W spec.listeners[0].protocol: not applied: unknown protocol",
			"E spec.listeners[1].port: invalid port 70000", "W spec.listeners[1].protocol: not applied: unknown protocol", "E spec.listeners[2].name: is missing", "E spec.listeners[2].tls: a listener of protocol HTTP has none",
			"E spec.listeners[3].tls: is missing", `E spec.listeners[1].name: duplicate name "a"`,
		}},
		{object.KubernetesGateway, "{gatewayClassName: istio, listeners: [{name: a, port: 1, protocol: HTTPS, tls: {mode: Passthrough, options: {a.b/c: d}}}, {name: b, port: 2, protocol: TLS, tls: {mode: x}}, {name: c, port: 3, protocol: HTTPS, tls: {}}, {name: d, port: 4, protocol: TLS, tls: {certificateRefs: [{name: a}, {name: b, group: x.y, kind: Z}, {name: b/c}]}}]}", []string{
			"E spec.listeners[0].tls.mode: Passthrough is for protocol TLS", "W spec.listeners[0].tls.options: not applied", "E spec.listeners[1].tls.mode: invalid mode", "W spec.listeners[2].tls.certificateRefs: not applied: without a certificate",
			"W spec.listeners[3].tls.certificateRefs[1]: not applied: a certificate of kind", "E spec.listeners[3].tls.certificateRefs[2]: invalid reference to a Secret",
		}},
		{object.KubernetesGateway, "{gatewayClassName: istio, listeners: [{name: a, port: 1, protocol: HTTP, allowedRoutes: {kinds: [{kind: SCTPRoute}], namespaces: {from: Selector}}}, {name: b, port: 1, protocol: HTTP, allowedRoutes: {namespaces: {from: x, selector: {matchExpressions: [{key: a, operator: y}]}}}}]}", []string{
			"W spec.listeners[0].allowedRoutes.kinds[0]: not applied", "E spec.listeners[0].allowedRoutes.namespaces.selector: is missing",
			"E spec.listeners[1].allowedRoutes.namespaces.from: invalid value", "E spec.listeners[1].allowedRoutes.namespaces.selector.matchExpressions[0].operator: invalid operator",
		}},
		{object.HTTPRoute, "{parentRefs: [{name: a, sectionName: b, port: 80}], hostnames: [a.com], rules: [{matches: [{path: {value: /a}, method: GET, headers: [{name: a, value: b}]}], timeouts: {request: 1m30s}, backendRefs: [{name: a, port: 80}]}]}", nil},
		{object.HTTPRoute, "{useDefaultGateways: All, parentRefs: [{name: ''}, {name: a, port: 0}, {group: '', kind: Service, name: a}, {kind: Foo, name: a}], hostnames: ['*']}", []string{
			"W spec.useDefaultGateways: not applied", "E spec.parentRefs[0].name: is missing", "E spec.parentRefs[1].port: invalid port", "W spec.parentRefs[3]: not applied", "E spec.hostnames[0]: invalid host name",
		}},
		{object.HTTPRoute, "{rules: [{matches: [{path: {type: Exact, value: a}, headers: [{name: '', value: b}, {name: a, type: x, value: b}], queryParams: [{name: a, type: RegularExpression, value: '('}]}, {path: {type: x}}, {path: {type: RegularExpression, value: '['}}]}]}", []string{
			"E spec.rules[0].matches[0].path.value: invalid path", "E spec.rules[0].matches[0].headers[0].name: is missing", "E spec.rules[0].matches[0].headers[1].type: invalid type", "E spec.rules[0].matches[0].queryParams[0].value: invalid regular expression",
			"E spec.rules[0].matches[1].path.type: invalid type", "E spec.rules[0].matches[2].path.value: invalid regular expression",
		}},
		{object.HTTPRoute, "{rules: [{timeouts: {request: 1d, backendRequest: '5'}, retry: {codes: [200], backoff: x}, sessionPersistence: {}, backendRefs: [{name: a}, {kind: Foo, name: a}, {name: '', port: 99999, weight: -1}]}]}", []string{
			"E spec.rules[0].backendRefs[0].port: is missing", "W spec.rules[0].backendRefs[1]: not applied", "E spec.rules[0].backendRefs[2].port: invalid port", "E spec.rules[0].backendRefs[2].weight: invalid weight", "E spec.rules[0].backendRefs[2].name: is missing",
			"E spec.rules[0].timeouts.request: invalid duration", "E spec.rules[0].timeouts.backendRequest: invalid duration", "E spec.rules[0].retry.backoff: invalid duration", "E spec.rules[0].retry.codes[0]: invalid status", "W spec.rules[0].sessionPersistence: not applied",
		}},
		{object.HTTPRoute, "{rules: [{filters: [{type: ExternalAuth}, {type: foo}, {type: CORS}, {type: RequestRedirect, requestRedirect: {scheme: ftp, statusCode: 200, port: 0, path: {type: ReplaceFullPath}}}, {type: URLRewrite, urlRewrite: {path: {type: x}}}, {type: RequestMirror, requestMirror: {backendRef: {name: a}, percent: 101}}], backendRefs: [{name: a, port: 1, filters: [{type: URLRewrite, urlRewrite: {}}]}]}]}", []string{
			"W spec.rules[0].filters[0]: not applied", "E spec.rules[0].filters[1].type: unknown type", "E spec.rules[0].filters[2]: the filter of type CORS has no settings", "E spec.rules[0].filters[3].requestRedirect.scheme", "E spec.rules[0].filters[3].requestRedirect.statusCode",
			"E spec.rules[0].filters[3].requestRedirect.port", "E spec.rules[0].filters[3].requestRedirect.path.replaceFullPath: is missing", "E spec.rules[0].filters[4].urlRewrite.path.type", "E spec.rules[0].filters[5].requestMirror.backendRef.port: is missing",
			"E spec.rules[0].filters[5].requestMirror.percent", "E spec.rules[0].filters: RequestRedirect and URLRewrite", "E spec.rules[0].filters[3]: a rule that redirects", "W spec.rules[0].backendRefs[0].filters[0]: not applied",
		}},
		{object.HTTPRoute, "{rules: [{matches: [{path: {type: Exact, value: /a}}], filters: [{type: URLRewrite, urlRewrite: {path: {type: ReplacePrefixMatch, replacePrefixMatch: /b}}}]}]}", []string{"E spec.rules[0].filters[0]: ReplacePrefixMatch needs"}},
		{object.GRPCRoute, "{rules: [{matches: [{method: {service: a.B}}], filters: [{type: RequestHeaderModifier, requestHeaderModifier: {remove: [a]}}], backendRefs: [{name: a, port: 1}]}]}", nil},
		{object.GRPCRoute, "{rules: [{matches: [{method: {type: RegularExpression, service: '(', method: '['}, headers: [{name: a, type: b}]}], filters: [{type: ExtensionRef}], sessionPersistence: {}, backendRefs: [{name: a, port: 1, filters: [{type: RequestMirror, requestMirror: {backendRef: {name: a, port: 1}}}]}]}]}", []string{
			"E spec.rules[0].matches[0].method.service", "E spec.rules[0].matches[0].method.method", "E spec.rules[0].matches[0].headers[0].type", "W spec.rules[0].filters[0]: not applied", "W spec.rules[0].backendRefs[0].filters[0]: not applied",
		}},
		{object.HTTPRoute, "{parentRefs: [{name: a}, {group: '', kind: Service, name: a}], rules: [{sessionPersistence: {sessionName: 'a b', type: Foo, absoluteTimeout: 1d}, backendRefs: [{name: a, port: 1}, {name: b, port: 1}, {name: c, port: 1, weight: 0}]}, {sessionPersistence: {type: Header, cookieConfig: {}, absoluteTimeout: 1h}}, {sessionPersistence: {cookieConfig: {lifetimeType: Permanent}}}, {sessionPersistence: {cookieConfig: {lifetimeType: x}}}]}", []string{
			"W spec.rules[0].sessionPersistence: not applied between workloads", "W spec.rules[0].sessionPersistence: not applied to the choice between the 2 backends", "E spec.rules[0].sessionPersistence.sessionName: invalid name",
			"E spec.rules[0].sessionPersistence.type: invalid type", "E spec.rules[0].sessionPersistence.absoluteTimeout: invalid duration", "W spec.rules[1].sessionPersistence: not applied between", "E spec.rules[1].sessionPersistence.cookieConfig: is for type Cookie",
			"W spec.rules[1].sessionPersistence.absoluteTimeout: not applied", "W spec.rules[2].sessionPersistence: not applied between", "E spec.rules[2].sessionPersistence.absoluteTimeout: is missing", "W spec.rules[3].sessionPersistence: not applied between",
			"E spec.rules[3].sessionPersistence.cookieConfig.lifetimeType: invalid type",
		}},
		{object.GRPCRoute, "{parentRefs: [{name: a}], rules: [{sessionPersistence: {type: Header, sessionName: x-session}, backendRefs: [{name: a, port: 1}]}, {sessionPersistence: {absoluteTimeout: 1h, cookieConfig: {lifetimeType: Permanent}}, backendRefs: [{name: a, port: 1}]}]}", nil},
		{object.TLSRoute, "{hostnames: [a.com], rules: [{backendRefs: [{name: a, port: 1}]}, {backendRefs: [{name: a}]}]}", []string{"E spec.rules: 2 rules: want one", "E spec.rules[1].backendRefs[0].port: is missing"}},
		{object.ListenerSet, "{parentRef: {name: a, namespace: b}, listeners: [{name: a, port: 1, protocol: HTTP}]}", nil},
		{object.ListenerSet, "{parentRef: {kind: Service, name: a}}", []string{"W spec.parentRef: not applied: a parent of kind", "E spec.listeners: is empty"}},
		{object.ListenerSet, "{parentRef: {name: a/b}, listeners: [{name: a, port: 0, protocol: HTTP}, {name: a, port: 1, protocol: SCTP, allowedRoutes: {namespaces: {from: Selector}}}]}", []string{
			"E spec.parentRef: invalid reference", "E spec.listeners[0].port: invalid port 0", "W spec.listeners[1].protocol: not applied", "E spec.listeners[1].allowedRoutes.namespaces.selector: is missing", `E spec.listeners[1].name: duplicate name "a"`,
		}},
		{object.ListenerSet, "{listeners: [{name: a, port: 1, protocol: HTTP}]}", []string{"E spec.parentRef.name: is missing"}},
		{object.TCPRoute, "{rules: [{backendRefs: [{name: a, port: 1}]}, {}]}", []string{"E spec.rules: 2 rules: want one"}},
		{object.UDPRoute, "{parentRefs: [{group: '', kind: Service, name: a}], rules: [{backendRefs: [{name: a}]}, {}]}", []string{
			"W spec.parentRefs[0]: not applied: routes of this kind are served at Gateways only", "E spec.rules: 2 rules: want one", "E spec.rules[0].backendRefs[0].port: is missing",
		}},
		{object.ReferenceGrant, "{from: [{group: a, kind: B, namespace: c}], to: [{group: '', kind: Service}]}", nil},
		{object.ReferenceGrant, "{from: [{kind: B}], to: [{}]}", []string{"E spec.from[0]: kind or namespace is missing", "E spec.to[0].kind: is missing"}},
		{object.BackendTLSPolicy, "{targetRefs: [{group: '', kind: Service, name: a}, {group: '', kind: Service, name: a, sectionName: b}], validation: {hostname: a.com, caCertificateRefs: [{group: '', kind: ConfigMap, name: a}], subjectAltNames: [{type: Hostname, hostname: a.com}, {type: URI, uri: 'a://b'}]}}", nil},
		{object.BackendTLSPolicy, "{validation: {hostname: '*.a.com'}}", []string{"E spec.targetRefs: is missing", "W spec.validation.hostname: invalid host name", "W spec.validation: want caCertificateRefs, or"}},
		{object.BackendTLSPolicy, "{targetRefs: [{group: a, kind: Service, name: b}, {group: '', kind: Service, name: c}, {group: '', kind: Service, name: c}], validation: {hostname: a.com, wellKnownCACertificates: a.b/c, subjectAltNames: [{type: Hostname, uri: 'a://b'}, {type: URI, uri: 'a://b', hostname: a.com}]}, options: {a.b/c: d}}", []string{
			"W spec.targetRefs[0]: not applied: a target of kind", "W spec.targetRefs[2]: not applied: it is there already", "W spec.validation.wellKnownCACertificates: unknown value", "W spec.validation.subjectAltNames[0]: type", "W spec.validation.subjectAltNames[1].hostname: not applied", "W spec.options: not applied",
		}},
		{object.BackendTLSPolicy, "{targetRefs: [{group: '', kind: Service, name: a}], validation: {hostname: a.com, wellKnownCACertificates: System, caCertificateRefs: [{group: '', kind: Secret, name: a}]}}", []string{"W spec.validation: want either", "W spec.validation.caCertificateRefs[0]: not applied"}},
	})
}
