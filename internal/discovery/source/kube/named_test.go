package kube

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/pilothouse/pilothouse/internal/object"
)

// at is the time of a test without a clock.
var at = time.Unix(1_000_000_000, 0)

func policyObject(name string) object.Object {
	return object.Object{Key: key(object.BackendTLSPolicy, name), Spec: &gatewayv1.BackendTLSPolicySpec{Validation: gatewayv1.BackendTLSPolicyValidation{
		CACertificateRefs: []gatewayv1.LocalObjectReference{{Kind: "ConfigMap", Name: gatewayv1.ObjectName(name)}},
	}}}
}

func configMap(name, value string) string {
	return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + name + ", namespace: shop}\ndata: {ca.crt: " + value + "}\n"
}

func tlsPolicy(name, configMap string) string {
	return "apiVersion: gateway.networking.k8s.io/v1\nkind: BackendTLSPolicy\nmetadata: {name: " + name + ", namespace: shop}\n" +
		"spec: {targetRefs: [{group: '', kind: Service, name: a}], validation: {hostname: a.com, caCertificateRefs: [{group: '', kind: ConfigMap, name: " + configMap + "}]}}\n"
}

// data is what the ConfigMap of a name has, "" if it is not there.
func (r *run) data(name string) string {
	if o, ok := r.state[key(object.ConfigMap, name)]; ok {
		return o.Spec.(*object.ConfigMapSpec).Data["ca.crt"]
	}
	return ""
}

// Gateways name ConfigMaps, too: those that the certificates of their clients are verified with, of any namespace.
func TestConfigMapsThatGatewaysName(t *testing.T) {
	namespace := gatewayv1.Namespace("other")
	validation := func(name string, ns *gatewayv1.Namespace) gatewayv1.TLSConfig {
		return gatewayv1.TLSConfig{Validation: &gatewayv1.FrontendTLSValidation{CACertificateRefs: []gatewayv1.ObjectReference{{Kind: "ConfigMap", Name: gatewayv1.ObjectName(name), Namespace: ns}, {Kind: "Secret", Name: "no"}}}}
	}
	g := object.Object{Key: key(object.KubernetesGateway, "g"), Spec: &gatewayv1.GatewaySpec{TLS: &gatewayv1.GatewayTLSConfig{Frontend: &gatewayv1.FrontendTLSConfig{
		Default: validation("a", nil), PerPort: []gatewayv1.TLSPortConfig{{Port: 1, TLS: validation("b", &namespace)}, {Port: 2}},
	}}}}
	want := []object.Key{{Kind: object.ConfigMap, Namespace: g.Key.Namespace, Name: "a"}, {Kind: object.ConfigMap, Namespace: "other", Name: "b"}}
	if got := mapsOf(&g); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	g.Spec = &gatewayv1.GatewaySpec{}
	if got := mapsOf(&g); got != nil {
		t.Errorf("without certificates of clients: %v", got)
	}
}

// A ConfigMap is read while a policy names it: with the first batch, when it changes, and until no policy does. A policy comes with what it names.
func TestConfigMapsThatPoliciesName(t *testing.T) {
	f := newFake(t)
	f.define(object.BackendTLSPolicy)
	for _, name := range []string{"a", "b", "other"} {
		f.put(t, configMap(name, "one"))
	}
	f.put(t, tlsPolicy("p", "a"))
	r := start(t, options(f))
	r.until("the sync", func() bool { return r.synced })
	r.mu.Lock()
	if r.data("a") != "one" || r.data("b") != "" || r.data("other") != "" {
		t.Errorf("with the first batch: %v", r.state)
	}
	r.mu.Unlock()
	f.put(t, configMap("a", "two"))
	r.until("the change", func() bool { return r.data("a") == "two" })
	f.delete(key(object.ConfigMap, "a"))
	r.until("the removal", func() bool { return r.data("a") == "" })
	f.put(t, configMap("a", "three"))
	r.until("the ConfigMap again", func() bool { return r.data("a") == "three" })

	// Another one is named, which cannot be read at first: the old policy and ConfigMap stay in force until it can.
	f.refuseWith(func(q *http.Request) int {
		if strings.HasSuffix(q.URL.Path, "/configmaps/b") {
			return http.StatusServiceUnavailable
		}
		return 0
	})
	f.put(t, tlsPolicy("p", "b"))
	r.until("attempts to read it", func() bool { return f.count("list /api/v1/namespaces/shop/configmaps/b") > 3 })
	r.mu.Lock()
	if r.changes[key(object.BackendTLSPolicy, "p")] != 1 || r.data("a") != "three" {
		t.Errorf("before it is read: %v, removed %v", r.state, r.removed)
	}
	r.mu.Unlock()
	f.refuseWith(nil)
	r.until("the other ConfigMap and the policy", func() bool { return r.data("b") == "one" && r.changes[key(object.BackendTLSPolicy, "p")] == 2 })
	f.put(t, service("s", 80)) // what is not needed any more goes with the next change
	r.until("the first ConfigMap is gone", func() bool { return r.data("a") == "" })
	r.until("no delay", func() bool { _, behind := r.source.Behind(); return !behind })
	f.undefine(object.BackendTLSPolicy)
	r.until("all are gone", func() bool { return r.data("b") == "" })
}

// A ConfigMap that must not be read is a problem, and delays nothing else.
func TestAConfigMapThatMustNotBeRead(t *testing.T) {
	f := newFake(t)
	f.define(object.BackendTLSPolicy)
	f.put(t, configMap("a", "one"))
	f.put(t, tlsPolicy("p", "a"))
	f.refuseWith(func(q *http.Request) int {
		if strings.Contains(q.URL.Path, "/configmaps/a") {
			return http.StatusForbidden
		}
		return 0
	})
	o := options(f)
	o.Remembered = []object.Object{{Key: key(object.ConfigMap, "a"), Spec: &object.ConfigMapSpec{Data: map[string]string{"ca.crt": "before"}}}}
	r := start(t, o)
	r.until("the sync", func() bool { return r.synced && r.has(key(object.BackendTLSPolicy, "p"))() })
	r.until("the problem", func() bool {
		return slices.ContainsFunc(r.problems, func(p object.Problem) bool {
			return strings.Contains(p.Text, "ConfigMap shop/a cannot be read") && strings.Contains(p.Text, "stay in force")
		})
	})
	r.mu.Lock()
	if r.data("a") != "before" {
		t.Errorf("what is remembered: %v", r.state)
	}
	r.mu.Unlock()
	f.refuseWith(nil)
	r.until("it is read", func() bool { return r.data("a") == "one" })
	r.until("no problem", r.says(""))
}

// There is a limit to what policies may have read.
func TestNamedConfigMapsAreLimited(t *testing.T) {
	m := newMerger("here", 0, nil, at)
	for i := range maxNamed + 3 {
		name := "c" + strings.Repeat("x", i)
		o := policyObject(name)
		m.put(entry{key: o.Key, object: &o})
	}
	begun, ended := m.follow(at)
	if len(begun) != maxNamed || len(ended) != 0 {
		t.Fatalf("%d are read, %d not any more", len(begun), len(ended))
	}
	m.remove(policyObject("c").Key)
	begun, ended = m.follow(at)
	if len(begun) != 1 || len(ended) != 1 || len(m.named.of) != maxNamed+2 {
		t.Errorf("after one has gone: %d more are read, %d not any more, %d are named", len(begun), len(ended), len(m.named.of))
	}
}
