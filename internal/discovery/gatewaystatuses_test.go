package discovery

import (
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/credentials"
	"github.com/pilothouse/pilothouse/internal/pki"
)

const gatewayAPIObjects = `
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop}
spec:
  gatewayClassName: istio
  listeners:
  - {name: http, port: 80, protocol: HTTP, hostname: "*.example.com"}
  - {name: again, port: 80, protocol: HTTP, hostname: "*.example.com"}
  - {name: https, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: a, namespace: other}]}}
  - {name: quick, port: 443, protocol: UDP} # no conflict: datagrams are no connections
  - {name: slow, port: 443, protocol: UDP}
---
apiVersion: gateway.networking.k8s.io/v1
kind: UDPRoute
metadata: {name: udp, namespace: shop}
spec:
  parentRefs: [{name: edge, sectionName: quick}, {name: edge, sectionName: https}]
  rules: [{backendRefs: [{name: reviews, port: 9080}]}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: web, namespace: shop}
spec:
  parentRefs: [{name: edge}, {name: edge, sectionName: nosuch}]
  hostnames: [web.example.org]
  rules: [{backendRefs: [{name: nosuch, port: 80}, {name: reviews, port: 9080}]}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: TCPRoute
metadata: {name: tcp, namespace: bank}
spec:
  parentRefs: [{name: edge, namespace: shop, sectionName: http}]
  rules: [{backendRefs: [{name: reviews, namespace: shop, port: 9080}]}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: foreign, namespace: shop}
spec: {gatewayClassName: example, listeners: [{name: https, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: a, namespace: other}]}}]}
`

// Without a cluster, the problems of the configuration have what is wrong by the conditions of the Gateway API, and follow what they
// depend on.
func TestConditionsOfTheGatewayAPIAreProblems(t *testing.T) {
	p := start(t)
	p.emit(shop+"---"+gatewayAPIObjects, true)
	text := func() string {
		var out []string
		for _, e := range p.objects() {
			// Secrets are judged a little later: see the next test.
			if strings.HasPrefix(e.Text, "not ") && !strings.HasPrefix(e.Text, "not applied") && !strings.HasSuffix(e.Text, "no such Secret") {
				out = append(out, e.Severity+" "+e.Object+" "+e.Field+": "+e.Text)
			}
		}
		return strings.Join(out, "\n") + "\n"
	}
	got := text()
	for _, want := range []string{
		"KubernetesGateway shop/edge spec.listeners[again]: not Accepted: HostnameConflict: listener http has the same hostname on port 80\n",
		"KubernetesGateway shop/edge spec.listeners[https]: not ResolvedRefs: RefNotPermitted: no ReferenceGrant in namespace other permits Secret a\n",
		"HTTPRoute shop/web spec.parentRefs[edge]: not Accepted: NoMatchingParent: ",
		"HTTPRoute shop/web spec.parentRefs[edge]: not ResolvedRefs: BackendNotFound: there is no Service nosuch in namespace shop\n",
		"KubernetesGateway shop/edge spec.listeners[slow]: not Accepted: HostnameConflict: listener quick has the same hostname on port 443\n",
		"UDPRoute shop/udp spec.parentRefs[edge]: not Accepted: NotAllowedByListeners: no listener takes routes of kind UDPRoute", "UDPRoute shop/udp spec.parentRefs[edge]: not ResolvedRefs: BackendNotFound: Service reviews of namespace shop has no port 9080 of UDP\n",
		"TCPRoute bank/tcp spec.parentRefs[edge]: not Accepted: NotAllowedByListeners: ", "TCPRoute bank/tcp spec.parentRefs[edge]: not ResolvedRefs: RefNotPermitted: ",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("want %q among\n%s", want, got)
		}
	}
	if strings.Contains(got, "foreign") {
		t.Errorf("another controller's Gateway is judged:\n%s", got)
	}
	p.emit(strings.NewReplacer("- {name: again, port: 80,", "- {name: again, port: 81,", "hostnames: [web.example.org]", "hostnames: [web.example.com]", ", {name: edge, sectionName: nosuch}", "", "{name: nosuch, port: 80}, ", "",
		"- {name: slow, port: 443", "- {name: slow, port: 444", ", {name: edge, sectionName: https}", "", "[{backendRefs: [{name: reviews, port: 9080}]}]", "[]").Replace(gatewayAPIObjects)+`
---
apiVersion: gateway.networking.k8s.io/v1beta1
kind: ReferenceGrant
metadata: {name: a, namespace: other}
spec: {from: [{group: gateway.networking.k8s.io, kind: Gateway, namespace: shop}], to: [{group: "", kind: Secret}]}
`, true)
	if got := text(); strings.Contains(got, "shop/") {
		t.Errorf("after an edit:\n%s", got)
	}
}

// ListenerSets are judged with their Gateway: whether it lets them in, which listeners conflict with earlier ones, and which Secrets are permitted to
// them. A grant to the Gateway is none to its ListenerSets, and labels of namespaces decide at once.
func TestConditionsOfListenerSets(t *testing.T) {
	p := start(t)
	text := func() string {
		var out []string
		for _, e := range p.objects() {
			if strings.HasPrefix(e.Text, "not ") && !strings.HasPrefix(e.Text, "not applied") && !strings.HasSuffix(e.Text, "no such Secret") {
				out = append(out, e.Object+" "+e.Field+": "+e.Text)
			}
		}
		return strings.Join(out, "\n") + "\n"
	}
	const objects = shop + `---
apiVersion: v1
kind: Namespace
metadata: {name: bank, labels: {listeners: LABEL}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop}
spec:
  gatewayClassName: istio
  allowedListeners: {namespaces: {from: Selector, selector: {matchLabels: {listeners: allowed}}}}
  listeners:
  - {name: http, port: 80, protocol: HTTP, hostname: a.example.com}
  - {name: https, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: a, namespace: vault}]}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: ListenerSet
metadata: {name: bank, namespace: bank}
spec:
  parentRef: {name: edge, namespace: shop}
  listeners:
  - {name: own, port: 80, protocol: HTTP, hostname: b.example.com}
  - {name: taken, port: 80, protocol: HTTP, hostname: a.example.com}
  - {name: tcp, port: 80, protocol: TCP}
  - {name: https, port: 443, protocol: HTTPS, hostname: b.example.com, tls: {certificateRefs: [{name: a, namespace: vault}]}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: ListenerSet
metadata: {name: foreign, namespace: bank}
spec: {parentRef: {name: nosuch}, listeners: [{name: a, port: 80, protocol: HTTP}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: web, namespace: bank}
spec:
  parentRefs: [{kind: ListenerSet, name: bank, sectionName: own}, {kind: ListenerSet, name: bank, sectionName: taken}]
  hostnames: [b.example.com, a.example.com]
---
apiVersion: gateway.networking.k8s.io/v1
kind: ReferenceGrant
metadata: {name: a, namespace: vault}
spec: {from: [{group: gateway.networking.k8s.io, kind: KIND, namespace: shop}, {group: gateway.networking.k8s.io, kind: KIND, namespace: bank}], to: [{group: "", kind: Secret}]}
`
	for name, tt := range map[string]struct {
		label, kind string
		want, no    []string
	}{
		"let in": {"allowed", "Gateway", []string{
			"ListenerSet bank/bank spec.listeners[taken]: not Accepted: HostnameConflict: listener http has the same hostname on port 80\n",
			"ListenerSet bank/bank spec.listeners[tcp]: not Accepted: ProtocolConflict: listener http has another protocol on port 80\n",
			"ListenerSet bank/bank spec.listeners[https]: not ResolvedRefs: RefNotPermitted: no ReferenceGrant in namespace vault permits Secret a\n",
			"HTTPRoute bank/web spec.parentRefs[bank]: not Accepted: NoMatchingParent: the listener is not served: it conflicts with another one\n",
		}, []string{"listeners[own]", "bank/foreign", "NotAllowed", "Gateway shop/edge"}},
		"granted": {"allowed", "ListenerSet", []string{"Gateway shop/edge spec.listeners[https]: not ResolvedRefs: RefNotPermitted"}, []string{"ListenerSet bank/bank spec.listeners[https]"}},
		"not let in": {"no", "Gateway", []string{
			"ListenerSet bank/bank spec: not Accepted: NotAllowed: spec.allowedListeners of Gateway shop/edge does not allow ListenerSets of namespace bank\n",
			"HTTPRoute bank/web spec.parentRefs[bank]: not Accepted: NoMatchingParent: Gateway shop/edge does not allow the ListenerSet\n",
		}, []string{"Conflict"}},
	} {
		p.emit(strings.NewReplacer("LABEL", tt.label, "KIND", tt.kind).Replace(objects), true)
		got := text()
		for _, want := range tt.want {
			if !strings.Contains(got, want) {
				t.Errorf("%s: want %q among\n%s", name, want, got)
			}
		}
		for _, no := range tt.no {
			if strings.Contains(got, no) {
				t.Errorf("%s: %q is among\n%s", name, no, got)
			}
		}
	}
}

// A Secret that a listener names and that cannot be its certificate is a problem of the Gateway until it can.
func TestSecretsThatCannotBeUsedAreProblemsOfTheirGateways(t *testing.T) {
	p := start(t)
	judge := func() string {
		p.server.loop.ask(p.server.loop.judgeSecrets)
		var out []string
		for _, e := range p.objects() {
			out = append(out, e.Field+": "+e.Text)
		}
		return strings.Join(out, "\n")
	}
	p.emit(shop+`---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop}
spec: {gatewayClassName: istio, listeners: [{name: https, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: a}]}}]}
`, true)
	const problem = "spec.listeners[https]: not ResolvedRefs: InvalidCertificateRef: Secret a in namespace shop: "
	if got := judge(); !strings.Contains(got, problem+"there is no such Secret") {
		t.Errorf("want %q in\n%s", problem, got)
	}
	p.server.loop.ask(func() { p.server.loop.secrets.Reject("shop", "a", "tls.crt: no certificate") })
	if got := judge(); !strings.Contains(got, problem+"tls.crt: no certificate") {
		t.Errorf("want %q in\n%s", problem, got)
	}
	p.server.loop.ask(func() {
		p.server.loop.secrets.Put("shop", "a", &credentials.Credential{Chain: []byte("chain"), Version: "1"})
	})
	if got := judge(); strings.Contains(got, problem) {
		t.Errorf("a Secret that can be used is a problem:\n%s", got)
	}
}

// conditions are what the page of objects says of those of a kind in namespace shop, a line each.
func (p *plane) conditions(kind string) string {
	var out []string
	for _, e := range p.objects() {
		if name, is := strings.CutPrefix(e.Object, kind+" shop/"); is {
			out = append(out, name+" "+e.Field+": "+e.Text)
		}
	}
	return strings.Join(out, "\n")
}

// What is wrong with the certificates that those of clients are to be verified with is a condition of each listener that has them, and only there.
func TestConditionsOfClientCertificates(t *testing.T) {
	p := start(t)
	text := func() string { return p.conditions("KubernetesGateway") }
	const objects = shop + `---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop}
spec:
  gatewayClassName: istio
  tls:
    frontend:
      default: {validation: {caCertificateRefs: [{group: "", kind: ConfigMap, name: roots}, {group: "", kind: Secret, name: roots}]}}
      perPort: [{port: 8443, tls: {validation: {caCertificateRefs: [{group: "", kind: ConfigMap, name: roots, namespace: other}]}}}, {port: 9443, tls: {}}]
  listeners:
  - {name: a, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: x}]}}
  - {name: b, port: 8443, protocol: HTTPS, tls: {certificateRefs: [{name: x}]}}
  - {name: c, port: 9443, protocol: HTTPS, tls: {certificateRefs: [{name: x}]}}
  - {name: d, port: 10443, protocol: TLS, tls: {certificateRefs: [{name: x}]}}
`
	p.emit(objects, true)
	got := text()
	for _, want := range []string{
		"edge spec.listeners[a]: not Accepted: NoValidCACertificate: there is no ConfigMap roots with the key ca.crt in namespace shop",
		"edge spec.listeners[a]: not ResolvedRefs: InvalidCACertificateRef: there is no ConfigMap roots",
		"edge spec.listeners[b]: not Accepted: NoValidCACertificate: no ReferenceGrant in namespace other permits ConfigMap roots", "edge spec.listeners[b]: not ResolvedRefs: RefNotPermitted",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("want %q among\n%s", want, got)
		}
	}
	for _, other := range []string{"[c]: not Accepted", "[d]: not Accepted"} {
		if strings.Contains(got, other) {
			t.Errorf("%q among\n%s", other, got)
		}
	}
	p.emit(objects+"---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: roots, namespace: shop}\ndata:\n  ca.crt: |\n    "+strings.ReplaceAll(rootPEM(t), "\n", "\n    ")+"\n", true)
	if got := text(); strings.Contains(got, "[a]: not Accepted") || !strings.Contains(got, "[a]: not ResolvedRefs: InvalidCACertificateKind: Secret roots: want a ConfigMap") {
		t.Errorf("with one of two valid references:\n%s", got)
	}
}

// What is wrong with a BackendTLSPolicy is a condition of it at each Gateway with a route to its Service, and only there; of two for one Service
// the older one counts.
func TestConditionsOfBackendTLSPolicies(t *testing.T) {
	p := start(t)
	text := func() string { return p.conditions("BackendTLSPolicy") }
	const objects = shop + `---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop}
spec: {gatewayClassName: istio, listeners: [{name: http, port: 80, protocol: HTTP}]}
---
apiVersion: v1
kind: Service
metadata: {name: tls, namespace: shop}
spec: {ports: [{name: https, port: 443}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: tls, namespace: shop}
spec: {parentRefs: [{name: edge}], rules: [{backendRefs: [{name: tls, port: 443}, {name: nosuch, port: 443}]}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: BackendTLSPolicy
metadata: {name: a, namespace: shop}
spec: {targetRefs: [{group: "", kind: Service, name: tls}], validation: {hostname: a.com, caCertificateRefs: [{group: "", kind: ConfigMap, name: roots}, {group: x, kind: Y, name: z}]}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: BackendTLSPolicy
metadata: {name: b, namespace: shop}
spec: {targetRefs: [{group: "", kind: Service, name: tls}], validation: {hostname: a.com, wellKnownCACertificates: System}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: BackendTLSPolicy
metadata: {name: c, namespace: shop}
spec: {targetRefs: [{group: "", kind: Service, name: tls, sectionName: nosuch}], validation: {hostname: a.com, wellKnownCACertificates: x.y/z}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: BackendTLSPolicy
metadata: {name: d, namespace: shop}
spec: {targetRefs: [{group: "", kind: Service, name: nosuch}], validation: {hostname: a.com, wellKnownCACertificates: System}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: BackendTLSPolicy
metadata: {name: e, namespace: shop}
spec: {targetRefs: [{group: "", kind: Service, name: tls, sectionName: nosuch}], validation: {hostname: a.com, wellKnownCACertificates: System}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: BackendTLSPolicy
metadata: {name: unused, namespace: shop}
spec: {targetRefs: [{group: "", kind: Service, name: other}], validation: {hostname: a.com, caCertificateRefs: [{group: "", kind: ConfigMap, name: nosuch}]}}
`
	p.emit(objects, true)
	got := text()
	for _, want := range []string{
		"a spec: not Accepted: NoValidCACertificate: there is no ConfigMap roots", "a spec: not ResolvedRefs: InvalidCACertificateRef: there is no ConfigMap roots with the key ca.crt in namespace shop",
		"b spec: not Accepted: Conflicted: the older BackendTLSPolicy a counts for Service tls", "c spec: not Accepted: Invalid: unknown wellKnownCACertificates",
		"d spec: not Accepted: TargetNotFound: there is no Service nosuch", "e spec: not Accepted: TargetNotFound: Service tls has no port named nosuch",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("want %q among\n%s", want, got)
		}
	}
	if strings.Contains(got, "unused") {
		t.Errorf("a policy is judged to whose Service no Gateway has a route:\n%s", got)
	}
	p.emit(objects+"---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: roots, namespace: shop}\ndata:\n  ca.crt: |\n    "+strings.ReplaceAll(rootPEM(t), "\n", "\n    ")+"\n", true)
	if got := text(); strings.Contains(got, "a spec: not Accepted") || !strings.Contains(got, "a spec: not ResolvedRefs: InvalidKind: Y z: want a ConfigMap") {
		t.Errorf("with one of two valid certificates:\n%s", got)
	}
}

// rootPEM is a self-signed certificate of a CA.
func rootPEM(t *testing.T) string {
	t.Helper()
	key, err := pki.GenerateKey("")
	if err != nil {
		t.Fatal(err)
	}
	of := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "root"}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, of, of, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// What is wrong with the certificate that a Gateway presents to backends is a condition of it, and so is that its Pods present that of an older Gateway.
func TestConditionsOfTheCertificateForBackends(t *testing.T) {
	p := start(t)
	judge := func() string {
		p.server.loop.ask(p.server.loop.judgeSecrets)
		return p.conditions("KubernetesGateway")
	}
	gateway := func(name, age, address, ref string) string {
		return `---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: ` + name + `, namespace: shop, creationTimestamp: "2026-01-0` + age + `T00:00:00Z"}
spec:
  gatewayClassName: istio
  addresses: [{type: Hostname, value: ` + address + `}]
  tls: {backend: {clientCertificateRef: {` + ref + `}}}
  listeners: [{name: http, port: 80, protocol: HTTP, hostname: ` + name + `.example.com}]
`
	}
	objects := shop + gateway("absent", "1", "one", "name: absent") + gateway("kind", "1", "two", "kind: ConfigMap, name: a") + gateway("foreign", "1", "three", "name: a, namespace: vault") +
		gateway("first", "1", "four", "name: a") + gateway("same", "2", "four", "name: a") + gateway("late", "3", "four.shop.svc.cluster.local", "name: b") + gateway("apart", "3", "five", "name: b")
	p.emit(objects, true)
	p.server.loop.ask(func() {
		p.server.loop.secrets.Put("shop", "a", &credentials.Credential{Chain: []byte("chain"), Version: "1"})
		p.server.loop.secrets.Put("shop", "b", &credentials.Credential{Chain: []byte("chain"), Version: "1"})
	})
	got := judge()
	for _, want := range []string{
		"absent spec: not ResolvedRefs: InvalidClientCertificateRef: Secret absent in namespace shop: there is no such Secret", "kind spec: not ResolvedRefs: InvalidClientCertificateRef: ConfigMap a of group",
		"foreign spec: not ResolvedRefs: RefNotPermitted: no ReferenceGrant in namespace vault permits Secret a", "late spec: not ResolvedRefs: ClientCertificateConflict: the Pods of the Gateway present the client certificate of the older Gateway first",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("want %q among\n%s", want, got)
		}
	}
	for _, other := range []string{"first spec: not ResolvedRefs", "same spec: not ResolvedRefs", "apart spec: not ResolvedRefs", "spec: not Accepted"} {
		if strings.Contains(got, other) {
			t.Errorf("%q among\n%s", other, got)
		}
	}
	p.emit(objects+`---
apiVersion: gateway.networking.k8s.io/v1
kind: ReferenceGrant
metadata: {name: a, namespace: vault}
spec: {from: [{group: gateway.networking.k8s.io, kind: Gateway, namespace: shop}], to: [{group: "", kind: Secret}]}
`, true)
	if got := judge(); !strings.Contains(got, "foreign spec: not ResolvedRefs: InvalidClientCertificateRef: Secret a in namespace vault: there is no such Secret") {
		t.Errorf("with a ReferenceGrant:\n%s", got)
	}
}
