package config_test

import (
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/object"
)

// policy is a DestinationRule with one traffic policy. A want such as "E .tls: …" is relative to it.
func policy(body string, want ...string) rule {
	for i, w := range want {
		want[i] = strings.Replace(w, " .", " spec.trafficPolicy.", 1)
	}
	return rule{object.DestinationRule, "{host: a, trafficPolicy: {" + body + "}}", want}
}

func TestDestinationRule(t *testing.T) {
	dr := func(body string, want ...string) rule { return rule{object.DestinationRule, body, want} }
	runRules(t, []rule{
		dr("{host: '*.a.svc', subsets: [{name: v1, labels: {version: v1}}, {name: v2}], exportTo: [., x]}"),
		dr("{host: 'a b', workloadSelector: {matchLabels: {'-': x}}}", "E spec.host: invalid host \"a b\"", "E spec.workloadSelector.matchLabels[-]: invalid label name"),
		dr("{subsets: [{name: v1}, {name: v1}, {name: v.1, labels: {a: 'b c'}}]}", "E spec.host: is missing", "E spec.subsets[2].name: invalid subset name \"v.1\"",
			"E spec.subsets[2].labels[a]: invalid label value \"b c\"", "E spec.subsets[1].name: duplicate \"v1\""),
		dr("{host: a, subsets: [{name: v1, trafficPolicy: {outlierDetection: {interval: 0s}}}]}", "E spec.subsets[0].trafficPolicy.outlierDetection.interval: invalid duration 0s"),
		policy("portLevelSettings: [{port: {number: 80}}, {port: {number: 80}, tls: {mode: MUTUAL}}, {}]", "E .portLevelSettings[1].tls: mode MUTUAL needs", "E .portLevelSettings[2].port.number: invalid port 0",
			"E .portLevelSettings[1].port.number: duplicate 80"),
		policy("connectionPool: {tcp: {maxConnections: -1, connectTimeout: 0s, tcpKeepalive: {time: 1us}}, http: {maxRetries: -1, idleTimeout: 0.0001s, useClientProtocol: true, h2UpgradePolicy: UPGRADE}}",
			"E .connectionPool.tcp.maxConnections: invalid number -1", "E .connectionPool.tcp.connectTimeout: invalid duration 0s", "E .connectionPool.tcp.tcpKeepalive.time: invalid duration 1µs",
			"E .connectionPool.http.maxRetries: invalid number -1", "E .connectionPool.http.idleTimeout: invalid duration 100µs", "E .connectionPool.http.useClientProtocol: conflicts with"),
		policy("outlierDetection: {maxEjectionPercent: 101, minHealthPercent: -1, consecutiveErrors: 5, consecutiveLocalOriginFailures: 5}", "E .outlierDetection.maxEjectionPercent: invalid number 101",
			"E .outlierDetection.minHealthPercent: invalid number -1", "E .outlierDetection.consecutiveLocalOriginFailures: needs splitExternal", "W .outlierDetection.consecutiveErrors: not applied"),
		policy("retryBudget: {percent: 101, budgetInterval: 0s}, tunnel: {protocol: GET, targetHost: a, targetPort: 70000}, proxyProtocol: {}", "E .retryBudget.percent: invalid number 101", "E .retryBudget.budgetInterval: invalid duration 0s",
			"E .tunnel.protocol: invalid protocol \"GET\"", "E .tunnel.targetPort: invalid port 70000"),
	})
}

func TestClientTLS(t *testing.T) {
	runRules(t, []rule{
		policy("tls: {mode: DISABLE}"), policy("tls: {mode: ISTIO_MUTUAL, sni: x, subjectAltNames: [y]}"), policy("tls: {mode: SIMPLE, credentialName: x}"),
		policy("tls: {mode: MUTUAL, clientCertificate: /c, privateKey: /k, caCertificates: /r}"), policy("tls: {mode: MUTUAL, credentialName: x}"),
		policy("tls: {mode: MUTUAL, clientCertificate: /c}", "E .tls: mode MUTUAL needs clientCertificate and privateKey"),
		policy("tls: {mode: ISTIO_MUTUAL, caCertificates: /r}", "E .tls: mode ISTIO_MUTUAL uses the mesh's cert"),
		policy("tls: {mode: SIMPLE, privateKey: /k, credentialName: x, subjectAltNames: ['']}", "W .tls.privateKey: not applied: mode SIMPLE", "E .tls.credentialName: files are set too", "E .tls.subjectAltNames[0]: is empty"),
		policy("tls: {mode: SIMPLE, insecureSkipVerify: true, caCertificates: /r}", "E .tls.insecureSkipVerify: conflicts with"),
		policy("tls: {mode: SIMPLE, insecureSkipVerify: true, caCrl: /r}", "E .tls.insecureSkipVerify: conflicts with caCertificates, caCrl"),
		policy("tls: {mode: ISTIO_MUTUAL, insecureSkipVerify: true}", "W .tls.insecureSkipVerify: not applied: with mode ISTIO_MUTUAL"),
		policy("tls: {mode: ISTIO_MUTUAL, caCrl: /r}", "E .tls.caCrl: mode ISTIO_MUTUAL uses the mesh's roots"),
		policy("tls: {mode: DISABLE, sni: x, caCertificates: /r}", "W .tls.caCertificates: not applied: mode DISABLE sends plaintext", "W .tls.sni: not applied: mode DISABLE"),
		policy("tls: {mode: SIMPLE, sni: 'a b'}", "E .tls.sni: invalid server name \"a b\""), policy("tls: {mode: SIMPLE, sni: "+strings.Repeat("a", 256)+"}", "E .tls.sni: invalid server name"),
		policy("tls: {mode: SIMPLE, sni: outbound_.80_.v1_.web.shop.svc.cluster.local}"),
	})
}

func TestLoadBalancer(t *testing.T) {
	hash := func(body string, want ...string) rule {
		for i, w := range want {
			want[i] = strings.Replace(w, " .", " .loadBalancer.consistentHash", 1)
		}
		return policy("loadBalancer: {consistentHash: {"+body+"}}", want...)
	}
	locality := func(body string, want ...string) rule {
		for i, w := range want {
			want[i] = strings.Replace(w, " .", " .loadBalancer.localityLbSetting", 1)
		}
		return policy("outlierDetection: {interval: 1s}, loadBalancer: {localityLbSetting: {"+body+"}}", want...)
	}
	runRules(t, []rule{
		policy("loadBalancer: {simple: ROUND_ROBIN, warmup: {duration: 1s, minimumPercent: 5, aggression: 1}}"),
		policy("loadBalancer: {warmupDurationSecs: 1s, warmup: {minimumPercent: 101, aggression: 0.5}}", "E .loadBalancer.warmup: warmupDurationSecs is set",
			"E .loadBalancer.warmup.duration: is missing", "E .loadBalancer.warmup.minimumPercent: invalid number 101", "E .loadBalancer.warmup.aggression: invalid aggression 0.5"),
		policy("loadBalancer: {simple: RANDOM, zoneAwareLbSetting: {enabled: true, minClusterSize: 1}}"),
		policy("loadBalancer: {zoneAwareLbSetting: {failover: [{from: a, to: b}]}}", "W .loadBalancer.zoneAwareLbSetting: failover needs outlierDetection:"),
		policy("outlierDetection: {}, loadBalancer: {zoneAwareLbSetting: {failover: [{from: a, to: a}], failoverPriority: [topology.kubernetes.io/zone, version=v1], minClusterSize: 0}, localityLbSetting: {}}",
			"E .loadBalancer.zoneAwareLbSetting.failover[0].to: is the same as from", "E .loadBalancer.zoneAwareLbSetting.failoverPriority[0]: invalid label \"topology.kubernetes.io/zone\": regions and zones are always ranked",
			"E .loadBalancer.zoneAwareLbSetting.minClusterSize: invalid size 0", "E .loadBalancer.zoneAwareLbSetting: localityLbSetting is set too"),
		policy("loadBalancer: {consistentHash: {useSourceIp: true}, zoneAwareLbSetting: {}}", "W .loadBalancer.zoneAwareLbSetting: zones are not applied: only ROUND_ROBIN"),
		hash("httpHeaderName: ':path'"), hash("useSourceIp: true, minimumRingSize: 1024"), hash("httpCookie: {name: c, ttl: 0s}, maglev: {tableSize: 65537}"),
		hash("", "E .: has no hash key"), hash("httpHeaderName: 'a b'", "E ..httpHeaderName: invalid header name \"a b\""), hash("httpQueryParameterName: ''", "E ..httpQueryParameterName: is empty"),
		hash("httpCookie: {name: '', ttl: -1s}", "E ..httpCookie.name: invalid cookie name \"\"", "E ..httpCookie.ttl: invalid duration -1s"),
		hash("useSourceIp: true, ringHash: {minimumRingSize: 9000000}", "E ..ringHash.minimumRingSize: invalid size 9000000"),
		hash("useSourceIp: true, maglev: {tableSize: 65536}", "E ..maglev.tableSize: invalid size 65536: want a prime number"),
		policy("loadBalancer: {localityLbSetting: {failover: [{from: a, to: b}]}}", "W .loadBalancer.localityLbSetting: failover needs outlierDetection:"),
		locality("distribute: [{from: a/b/*, to: {a/b/c: 60, '*': 40}}]"), locality("failoverPriority: [topology.istio.io/network, a=b], failover: [{from: a, to: b}]"),
		locality("distribute: [{from: a/*/b, to: {a: 50, b/c/d/e: 0}}, {from: a/*/b, to: {'': 100}}], failover: [{from: a, to: a}, {from: a/b, to: c}]", "E .: distribute and failover are mutually exclusive",
			"E ..distribute[0].from: invalid locality \"a/*/b\"", "E ..distribute[0].to[b/c/d/e]: invalid locality \"b/c/d/e\"", "E ..distribute[0].to[b/c/d/e]: invalid weight 0", "E ..distribute[0].to: invalid sum of weights 50",
			"E ..distribute[1].from: invalid locality \"a/*/b\"", "E ..distribute[1].to[]: invalid locality \"\"", "E ..distribute[1].from: duplicate \"a/*/b\"", "E ..failover[0].to: is the same as from", "E ..failover[1].from: invalid region \"a/b\""),
		locality("failoverPriority: [a b]", "E ..failoverPriority[0][a b]: invalid label name"),
	})
}
