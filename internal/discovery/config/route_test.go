package config_test

import (
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
		vs("{hosts: ['*', a, a, a_b!], http: [{"+to+"}]}", "E spec.hosts[0]: \"*\" would take every request", "E spec.hosts[3]: \"a_b!\" is no host", "E spec.hosts[2]: \"a\" is given twice"),
		vs("{hosts: ['*'], gateways: [x/y], http: [{"+to+"}]}", "W spec.gateways: not used yet: gateways are not served"),
		vs("{hosts: [a], gateways: [mesh, x], exportTo: ['~'], http: [{"+to+"}]}", "E spec.exportTo[0]: \"~\" is no namespace"),
		vs("{hosts: [a], gateways: [mesh, a/b/c], http: [{"+to+"}]}", "E spec.gateways[1]: \"a/b/c\" is no gateway"),
		vs("{http: [{"+to+"}]}", "W spec.hosts: is empty: the object is for others"),
		vs("{gateways: [x], http: [{"+to+"}]}", "E spec.hosts: is empty"),
		vs("{hosts: [a]}", "E spec: has no routes"),
		vs("{hosts: [a], tcp: [{match: [{port: 80, destinationSubnets: [x]}], route: [{destination: {host: a}}]}]}", "W spec.tcp[0]: not used yet", "E spec.tcp[0].match[0].destinationSubnets[0]: \"x\" is neither"),
		vs("{hosts: [a], tls: [{match: [{}], route: []}]}", "W spec.tls[0]: not used yet", "E spec.tls[0].match[0].sniHosts: is empty", "E spec.tls[0].route: is empty"),
	})
}

func TestHTTPRoutes(t *testing.T) {
	const bad = "retries: {attempts: 1, "
	runRules(t, []rule{
		http("name: x", "E spec.http[0]: says nothing to do"),
		http("redirect: {uri: /x}, "+to, "E .redirect: route is given too"),
		http("redirect: {uri: /x}, directResponse: {status: 200}", "E .directResponse: redirect is given too"),
		http("redirect: {uri: /x}, fault: {abort: {httpStatus: 500}}, rewrite: {uri: /}", "E .fault: cannot go with a redirect", "E .rewrite: cannot go with a redirect"),
		http("delegate: {name: x}", "W .delegate: not used yet"),
		http("route: [{destination: {}}]", "E .route[0].destination.host: is missing"),
		http("route: [{destination: {host: '*.a', subset: 'a b', port: {number: 0}}}]", "E .route[0].destination.host: \"*.a\" is no host to send to", "E .route[0].destination.subset: \"a b\"", "E .route[0].destination.port.number: 0 is no port"),
		http("route: [{destination: {host: a}, weight: 0}]"),
		http("route: [{destination: {host: a}, weight: 30}, {destination: {host: b}, weight: 30}]"),
		http("route: [{destination: {host: a}}, {destination: {host: b}, weight: 0}]", "E .route: the weights add up to 0"),
		http("route: [{destination: {host: a}, weight: -1}, {destination: {host: b}, weight: 2}]", "E .route[0].weight: -1 is negative"),
		http("timeout: 0s, "+to, "E .timeout: 0s is too short; give at least 1ms"),
		http("timeout: 1.0001s, "+to, "E .timeout: 1.0001s has parts of a millisecond"),
		http("retries: {attempts: 0}, " + to),
		http("retries: {attempts: 0, retryOn: 5xx}, "+to, "E .retries.attempts: is 0, which turns retries off"),
		http(bad + "retryOn: '5xx, 503,cancelled', perTryTimeout: 1s}, " + to),
		http(bad+"retryOn: '5xx,6xx', perTryTimeout: 1us}, "+to, "E .retries.perTryTimeout: 1µs is too short", "E .retries.retryOn: \"6xx\" is no condition"),
		http("fault: {}, "+to, "E .fault: injects nothing"),
		http("fault: {delay: {percentage: {value: 101}}, abort: {grpcStatus: BAD}}, "+to, "E .fault.delay.percentage.value: 101 is out of range", "E .fault.delay.fixedDelay: is missing", "E .fault.abort.grpcStatus: \"BAD\""),
		http("fault: {delay: {exponentialDelay: 1s}, abort: {http2Error: x}}, "+to, "E .fault.delay.exponentialDelay: is not supported", "E .fault.abort.http2Error: is not supported"),
		http("fault: {delay: {fixedDelay: 1s, percent: -1}, abort: {httpStatus: 99}}, "+to, "E .fault.delay.percent: -1 is out of range", "E .fault.abort.httpStatus: 99 is out of range"),
		http("rewrite: {}, "+to, "E .rewrite: rewrites nothing"),
		http("rewrite: {uri: /, uriRegexRewrite: {match: '(a)', rewrite: '\\2\\x\\'}}, "+to, "E .rewrite.uriRegexRewrite: uri is given too",
			"E .rewrite.uriRegexRewrite.rewrite: \\2 has no group; the expression has 1", "E .rewrite.uriRegexRewrite.rewrite: \\x means nothing", "E .rewrite.uriRegexRewrite.rewrite: ends in"),
		http("rewrite: {uriRegexRewrite: {match: '('}}, "+to, "E .rewrite.uriRegexRewrite: needs match and rewrite"),
		http("rewrite: {uriRegexRewrite: {match: '(', rewrite: x}}, "+to, "E .rewrite.uriRegexRewrite.match: error parsing regexp"),
		http("redirect: {}", "E .redirect: leads nowhere else"),
		http("redirect: {uri: /, prefixRewrite: /x, scheme: ftp, port: 0, redirectCode: 200}", "E .redirect.prefixRewrite: uri is given", "E .redirect.scheme: \"ftp\"", "E .redirect.port: 0 is no port", "E .redirect.redirectCode: 200 is none"),
		http("directResponse: {status: 100, body: {string: x}}", "E .directResponse.status: 100 is out of range"),
		http("directResponse: {status: 200, body: {string: "+strings.Repeat("x", 1<<20+1)+"}}", "E .directResponse.body: has 1048577 bytes"),
		http("mirror: {host: a}, mirrors: [{destination: {host: '*'}, percentage: {value: -1}}], mirrorPercent: 101, "+to,
			"E .mirrors: mirror is given too", "E .mirrorPercent: 101 is out of range", "E .mirrors[0].destination.host: \"*\" is no host", "E .mirrors[0].percentage.value: -1 is out"),
		http("corsPolicy: {allowOrigins: [{}, {regex: '['}], allowMethods: [GET, get], allowHeaders: ['a b'], exposeHeaders: [''], maxAge: 1500ms}, "+to,
			"E .corsPolicy.allowOrigins[0]: nothing to match", "E .corsPolicy.allowOrigins[1].regex: error parsing", "E .corsPolicy.allowMethods[1]: \"get\" is none of",
			"E .corsPolicy.allowHeaders[0]: \"a b\" is no header's name", "E .corsPolicy.exposeHeaders[0]: \"\" is no header's name", "E .corsPolicy.maxAge: 1.5s is not in whole seconds"),
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
		m("uri: {}, method: {prefix: ''}", "E .uri: nothing to match", "E .method.prefix: is empty and matches everything"),
		m("uri: {regex: "+strings.Repeat("x", 1025)+"}", "E .uri.regex: the regular expression has 1025 characters"),
		m("uri: {regex: ''}, authority: {regex: 'a(?=b)'}", "E .uri.regex: is empty", "E .authority.regex: error parsing regexp"),
		m("headers: {'a b': {exact: x}}, withoutHeaders: {'': {}}, queryParams: {'': {exact: x}}, port: 70000", "E .headers[a b]: is no header's name", "E .withoutHeaders[]: is no header's name", "E .queryParams: a parameter has no name", "E .port: 70000 is no port"),
		m("headers: {'@request.auth.claims.x': {exact: y}}", "W .headers[@request.auth.claims.x]: not used yet"),
		m("sourceLabels: {a b: x}, sourceNamespace: 'a.b', gateways: ['/']", "E .sourceLabels[a b]: is no label's name", "E .gateways[0]: \"/\" is no gateway", "E .sourceNamespace: \"a.b\" is no namespace"),
		http("headers: {request: {set: {host: x, ':authority': y, x: '100%%', y: '%REQ(a:b)%'}, remove: [x]}, response: {add: {b: c}}}, " + to),
		http("headers: {request: {set: {':path': x}, add: {host: x, a b: '%X'}, remove: [':x']}, response: {set: {host: '100%'}}}, "+to,
			"E .headers.request.set[:path]: \":path\" cannot be changed", "E .headers.request.add[a b]: \"a b\" is no header's name", "E .headers.request.add[a b]: \"%X\" holds a % that begins",
			"E .headers.request.add[host]: \"host\" cannot be changed", "E .headers.request.remove[0]: \":x\" cannot be changed", "E .headers.response.set[host]: \"host\" cannot be", "E .headers.response.set[host]: \"100%\" holds a %"),
		http("route: [{destination: {host: a}, headers: {request: {set: {x: \"a\\nb\"}}}}]", "E .route[0].headers.request.set[x]: the value holds a line break"),
	})
}
