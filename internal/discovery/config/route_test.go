package config_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/object"
)

const to = "route: [{destination: {host: a}}]"

// http is a VirtualService of one http route.
func http(body string, want ...string) rule {
	for i, w := range want {
		want[i] = strings.Replace(w, " .", " spec.http[0].", 1)
	}
	return rule{object.VirtualService, "{hosts: [a], http: [{" + body + "}]}", want}
}

func TestVirtualService(t *testing.T) {
	vs := func(body string, want ...string) rule { return rule{object.VirtualService, body, want} }
	runRules(t, []rule{
		vs("{hosts: [a, '*.b.com', 10.0.0.1], http: [{" + to + "}]}"),
		vs("{hosts: ['*', a, a, a_b!], http: [{"+to+"}]}", "E spec.hosts[0]: invalid host \"*\": it matches all", "E spec.hosts[3]: invalid host \"a_b!\"", "E spec.hosts[2]: duplicate \"a\""),
		vs("{hosts: ['*'], gateways: [x/y], http: [{" + to + "}]}"),
		vs("{hosts: [a], gateways: [mesh, x], exportTo: ['~'], http: [{"+to+"}]}", "E spec.exportTo[0]: invalid namespace \"~\""),
		vs("{hosts: [a], gateways: [mesh, a/b/c], http: [{"+to+"}]}", "E spec.gateways[1]: invalid gateway \"a/b/c\""),
		vs("{http: [{" + to + "}]}"),
		vs("{http: [{match: [{headers: {'@request.auth.claims.a': {exact: b}}}], " + to + "}]}"),
		vs("{gateways: [x], http: [{"+to+"}]}", "E spec.hosts: is empty"),
		vs("{http: [{delegate: {name: x}}]}", "E spec.http[0].delegate: is set in a delegate"),
		vs("{tls: [{match: [{sniHosts: [a]}], route: [{destination: {host: a}}]}], tcp: [{route: [{destination: {host: a}}]}]}", "E spec.tls: is set in a delegate", "E spec.tcp: is set in a delegate"),
		vs("{hosts: [a]}", "E spec: has no routes"),
		vs("{hosts: [a], tcp: [{match: [{port: 80, destinationSubnets: [x]}], route: [{destination: {host: a}}]}]}", "E spec.tcp[0].match[0].destinationSubnets[0]: invalid subnet \"x\""),
		vs("{hosts: [a], tcp: [{match: [{sourceSubnet: 10.0.0.0/8, sourceLabels: {app: b}}], route: [{destination: {host: a}}]}]}", "W spec.tcp[0].match[0].sourceSubnet: not applied at sidecars: a match with this condition is left out"),
		vs("{hosts: [a], gateways: [g], tcp: [{match: [{sourceLabels: {app: b}, sourceSubnet: 10.0.0.0/8, destinationSubnets: [10.1.0.0/16]}], route: [{destination: {host: a}}]}]}"),
		vs("{hosts: [a], gateways: [g], tcp: [{match: [{sourceSubnet: x}], route: [{destination: {host: a}}]}]}", "E spec.tcp[0].match[0].sourceSubnet: invalid subnet \"x\""),
		vs("{hosts: [a], gateways: [g], tcp: ["+manySubnets(40, 30)+"]}", "E spec: has 1271 combinations of destinationSubnets and sourceSubnets: want at most 1000 at gateways"),
		vs("{hosts: [a], gateways: [mesh], tcp: [" + manySubnets(1200, 0) + "]}"),
		vs("{hosts: [a], tls: [{match: [{}], route: []}]}", "E spec.tls[0].match[0].sniHosts: is empty", "E spec.tls[0].route: is empty"),
	})
}

// manySubnets is a tcp route with matches of many subnets.
func manySubnets(to, from int) string {
	var matches []string
	for i := range to {
		matches = append(matches, fmt.Sprintf("{destinationSubnets: [10.%d.%d.0/24]}", i/256, i%256))
	}
	for i := range from {
		matches = append(matches, fmt.Sprintf("{sourceSubnet: 10.0.%d.0/24}", i))
	}
	return "{match: [" + strings.Join(matches, ", ") + "], route: [{destination: {host: a}}]}"
}

func TestHTTPRoutes(t *testing.T) {
	const bad = "retries: {attempts: 1, "
	runRules(t, []rule{
		http("name: x", "E spec.http[0]: has no action"),
		http("redirect: {uri: /x}, "+to, "E .redirect: route is set too"),
		http("redirect: {uri: /x}, directResponse: {status: 200}", "E .directResponse: redirect is set too"),
		http("redirect: {uri: /x}, fault: {abort: {httpStatus: 500}}, rewrite: {uri: /}", "E .fault: conflicts with redirect", "E .rewrite: conflicts with redirect"),
		http("delegate: {name: x, namespace: y}"),
		http("delegate: {name: x}, "+to, "E .delegate: route is set too"),
		http("delegate: {namespace: a/b}", "E .delegate.name: invalid name \"\"", "E .delegate.namespace: invalid namespace \"a/b\""),
		http("route: [{destination: {}}]", "E .route[0].destination.host: is missing"),
		http("route: [{destination: {host: '*', subset: 'a b', port: {number: 0}}}]", "E .route[0].destination.host: invalid host \"*\"", "E .route[0].destination.subset: invalid subset name \"a b\"", "E .route[0].destination.port.number: invalid port 0"),
		http("route: [{destination: {host: a}, weight: 0}]"),
		http("route: [{destination: {host: a}, weight: 30}, {destination: {host: b}, weight: 30}]"),
		http("route: [{destination: {host: a}}, {destination: {host: b}, weight: 0}]", "E .route: invalid sum of weights 0"),
		http("route: [{destination: {host: a}, weight: -1}, {destination: {host: b}, weight: 2}]", "E .route[0].weight: invalid number -1"),
		http("timeout: 0s, "+to, "E .timeout: invalid duration 0s: want at least 1ms"),
		http("timeout: 1.0001s, "+to, "E .timeout: invalid duration 1.0001s: want whole"),
		http("retries: {attempts: 0}, " + to),
		http("retries: {attempts: 0, retryOn: 5xx}, "+to, "E .retries.attempts: is 0, which disables retries"),
		http(bad + "retryOn: '5xx, 503,cancelled', perTryTimeout: 1s}, " + to),
		http(bad+"retryOn: '5xx,6xx', perTryTimeout: 1us}, "+to, "E .retries.perTryTimeout: invalid duration 1µs", "E .retries.retryOn: invalid condition \"6xx\""),
		http("fault: {}, "+to, "E .fault: is empty"),
		http("fault: {delay: {percentage: {value: 101}}, abort: {grpcStatus: BAD}}, "+to, "E .fault.delay.percentage.value: invalid number 101", "E .fault.delay.fixedDelay: is missing", "E .fault.abort.grpcStatus: invalid gRPC status \"BAD\""),
		http("fault: {delay: {exponentialDelay: 1s}, abort: {http2Error: x}}, "+to, "E .fault.delay.exponentialDelay: not applied", "E .fault.abort.http2Error: not applied"),
		http("fault: {delay: {fixedDelay: 1s, percent: -1}, abort: {httpStatus: 99}}, "+to, "E .fault.delay.percent: invalid number -1", "E .fault.abort.httpStatus: invalid number 99"),
		http("rewrite: {}, "+to, "E .rewrite: is empty"),
		http("rewrite: {uri: /, uriRegexRewrite: {match: '(a)', rewrite: '\\2\\x\\'}}, "+to, "E .rewrite.uriRegexRewrite: uri is set too",
			"E .rewrite.uriRegexRewrite.rewrite: invalid group \\2: the expression has 1", "E .rewrite.uriRegexRewrite.rewrite: invalid escape \\x", "E .rewrite.uriRegexRewrite.rewrite: ends in"),
		http("rewrite: {uriRegexRewrite: {match: '('}}, "+to, "E .rewrite.uriRegexRewrite: needs match and rewrite"),
		http("rewrite: {uriRegexRewrite: {match: '(', rewrite: x}}, "+to, "E .rewrite.uriRegexRewrite.match: invalid regular expression"),
		http("redirect: {}", "E .redirect: is empty"),
		http("redirect: {uri: /, prefixRewrite: /x, scheme: ftp, port: 0, redirectCode: 200}", "E .redirect.prefixRewrite: uri is set", "E .redirect.scheme: invalid scheme \"ftp\"", "E .redirect.port: invalid port 0", "E .redirect.redirectCode: invalid status 200"),
		http("directResponse: {status: 100, body: {string: x}}", "E .directResponse.status: invalid number 100"),
		http("directResponse: {status: 200, body: {string: "+strings.Repeat("x", 1<<20+1)+"}}", "E .directResponse.body: invalid body of 1048577 bytes"),
		http("mirror: {host: a}, mirrors: [{destination: {host: '*'}, percentage: {value: -1}}], mirrorPercent: 101, "+to,
			"E .mirrors: mirror is set too", "E .mirrorPercent: invalid number 101", "E .mirrors[0].destination.host: invalid host \"*\"", "E .mirrors[0].percentage.value: invalid number -1"),
		http("corsPolicy: {allowOrigins: [{}, {regex: '['}], allowMethods: [GET, get], allowHeaders: ['a b'], exposeHeaders: [''], maxAge: 1500ms}, "+to,
			"E .corsPolicy.allowOrigins[0]: is empty; set", "E .corsPolicy.allowOrigins[1].regex: invalid regular expression", "E .corsPolicy.allowMethods[1]: invalid method \"get\"",
			"E .corsPolicy.allowHeaders[0]: invalid header name \"a b\"", "E .corsPolicy.exposeHeaders[0]: invalid header name \"\"", "E .corsPolicy.maxAge: invalid duration 1.5s"),
	})
}

func TestHTTPMatchesAndHeaders(t *testing.T) {
	m := func(body string, want ...string) rule {
		for i, w := range want {
			want[i] = strings.Replace(w, " .", " spec.http[0].match[0].", 1)
		}
		return rule{object.VirtualService, "{hosts: [a], http: [{match: [{" + body + "}], " + to + "}]}", want}
	}
	runRules(t, []rule{
		m("uri: {prefix: /}, scheme: {exact: http}, method: {regex: GET|PUT}, authority: {exact: a}, headers: {x-a: {}, ':path': {exact: /}}, queryParams: {q: {}}, port: 80, sourceLabels: {app: x}, gateways: [mesh], sourceNamespace: n"),
		m("uri: {}, method: {prefix: ''}", "E .uri: is empty", "E .method.prefix: is empty and matches everything"),
		m("uri: {regex: "+strings.Repeat("x", 1025)+"}", "E .uri.regex: invalid regular expression of 1025 bytes"),
		m("uri: {regex: ''}, authority: {regex: 'a(?=b)'}", "E .uri.regex: is empty", "E .authority.regex: invalid regular expression"),
		m("headers: {'a b': {exact: x}}, withoutHeaders: {'': {}}, queryParams: {'': {exact: x}}, port: 70000", "E .headers[a b]: invalid header name", "E .withoutHeaders[]: invalid header name", "E .queryParams: the name of a parameter is empty", "E .port: invalid port 70000"),
		m("headers: {'@request.auth.claims.x': {exact: y}}", "W .headers[@request.auth.claims.x]: claims are matched at gateways only"),
		m("headers: {'@request.auth.claims.x': {exact: y}}, gateways: [g]"),
		m("headers: {'@request.auth.claims.a.b': {exact: y}, '@request.auth.claims[a.b][c]': {exact: y}}, withoutHeaders: {'@request.auth.claims.a': {exact: y}}, gateways: [g]"),
		m("headers: {'@request.auth.claims': {exact: y}, '@request.auth.claims.a.': {exact: y}, '@request.auth.claims[a][]': {exact: y}, '@request.auth.claims[a': {exact: y}}, gateways: [g]",
			"E .headers[@request.auth.claims]: invalid claim", "E .headers[@request.auth.claims.a.]: invalid claim", "E .headers[@request.auth.claims[a]: invalid claim", "E .headers[@request.auth.claims[a][]]: invalid claim"),
		m("sourceLabels: {a b: x}, sourceNamespace: 'a.b', gateways: ['/']", "E .sourceLabels[a b]: invalid label name", "E .gateways[0]: invalid gateway \"/\"", "E .sourceNamespace: invalid namespace \"a.b\""),
		http("headers: {request: {set: {host: x, ':authority': y, x: '100%%', y: '%REQ(a:b)%'}, remove: [x]}, response: {add: {b: c}}}, " + to),
		http("headers: {request: {set: {':path': x}, add: {host: x, a b: '%X'}, remove: [':x']}, response: {set: {host: '100%'}}}, "+to,
			"E .headers.request.set[:path]: \":path\" cannot be changed", "E .headers.request.add[a b]: invalid header name \"a b\"", "E .headers.request.add[a b]: invalid value \"%X\"",
			"E .headers.request.add[host]: \"host\" cannot be changed", "E .headers.request.remove[0]: \":x\" cannot be changed", "E .headers.response.set[host]: \"host\" cannot be", "E .headers.response.set[host]: invalid value \"100%\""),
		http("route: [{destination: {host: a}, headers: {request: {set: {x: \"a\\nb\"}}}}]", "E .route[0].headers.request.set[x]: invalid value: it has a line break"),
	})
}
