package saved_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/pilothouse/pilothouse/internal/discovery/jwks"
	"github.com/pilothouse/pilothouse/internal/discovery/saved"
	"github.com/pilothouse/pilothouse/internal/discovery/source/decode"
	"github.com/pilothouse/pilothouse/internal/object"
)

var written = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// allKinds returns an object of every kind that is saved, with every field of the Kubernetes specs
// set, so that the tests notice a field that is renamed or omitted.
func allKinds(t testing.TB) []object.Object {
	t.Helper()
	meta := object.Meta{
		Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"x/y": "z"}, Created: written.Add(-time.Hour),
		Generation: 7, ResourceVersion: "12",
	}
	var all []object.Object
	for i, k := range object.Kinds() {
		o := object.Object{
			Key: object.Key{Kind: k, Namespace: "shop", Name: "n"}, Meta: meta, Origin: object.Origin{File: "dir/a b.yaml", Line: i},
		}
		switch k {
		case object.Namespace:
			o.Namespace = ""
		case object.GatewayClass:
			o.Namespace = ""
		case object.IngressClass:
			o.Namespace, o.Spec = "", &object.IngressClassSpec{}
		case object.Ingress:
			o.Spec = &object.IngressSpec{}
		case object.Node:
			o.Namespace, o.Spec = "", &object.NodeSpec{}
		case object.Secret:
			continue
		case object.Service:
			o.Spec = &object.ServiceSpec{}
		case object.EndpointSlice:
			o.Spec = &object.EndpointSliceSpec{}
		case object.Pod:
			o.Spec, o.Saved = &object.PodSpec{}, written.Add(-time.Minute)
		case object.ConfigMap:
			o.Spec = &object.ConfigMapSpec{}
		}
		if o.Spec != nil {
			fill(t, reflect.ValueOf(o.Spec).Elem())
		}
		all = append(all, o)
	}
	res := decode.Documents("istio.yaml", []byte(istio))
	if len(res.Problems) > 0 {
		t.Fatal(res.Problems)
	}
	for i := range all {
		if all[i].Kind == object.WorkloadEntry {
			all[i].Healthy = &object.Health{Message: "no database"}
		}
		for _, o := range res.Objects {
			if all[i].Kind == o.Kind {
				all[i].Spec = o.Spec
			}
		}
	}
	remote := all[slices.IndexFunc(all, func(o object.Object) bool { return o.Kind == object.Service })]
	remote.Key.Cluster = "two"
	return append(all, remote)
}

const istio = `
{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {name: n}, spec: {hosts: [a.example.com], ports: [{number: 443, name: tls, protocol: TLS}], resolution: DNS}}
---
{apiVersion: networking.istio.io/v1, kind: WorkloadEntry, metadata: {name: n}, spec: {address: 10.0.0.1, labels: {a: b}}}
---
{apiVersion: networking.istio.io/v1, kind: WorkloadGroup, metadata: {name: n}, spec: {template: {serviceAccount: a}, probe: {tcpSocket: {port: 80}}}}
---
{apiVersion: networking.istio.io/v1, kind: VirtualService, metadata: {name: n}, spec: {hosts: [a], http: [{timeout: 5s, route: [{destination: {host: a}, weight: 100}]}]}}
---
{apiVersion: networking.istio.io/v1, kind: DestinationRule, metadata: {name: n}, spec: {host: a, trafficPolicy: {loadBalancer: {simple: RANDOM}}}}
---
{apiVersion: security.istio.io/v1, kind: PeerAuthentication, metadata: {name: n}, spec: {selector: {matchLabels: {a: b}}, mtls: {mode: STRICT}, portLevelMtls: {80: {mode: DISABLE}}}}
---
{apiVersion: security.istio.io/v1, kind: AuthorizationPolicy, metadata: {name: n}, spec: {action: DENY, rules: [{to: [{operation: {methods: [GET]}}]}]}}
---
{apiVersion: security.istio.io/v1, kind: RequestAuthentication, metadata: {name: n}, spec: {selector: {matchLabels: {a: b}}, jwtRules: [{issuer: a, jwks: '{}', fromCookies: [c]}]}}
---
{apiVersion: telemetry.istio.io/v1, kind: Telemetry, metadata: {name: n}, spec: {accessLogging: [{match: {mode: CLIENT}, providers: [{name: envoy}], disabled: false, filter: {expression: "true"}}]}}
---
{apiVersion: networking.istio.io/v1, kind: Sidecar, metadata: {name: n}, spec: {egress: [{hosts: ["./*"]}]}}
---
{apiVersion: networking.istio.io/v1alpha3, kind: EnvoyFilter, metadata: {name: n}, spec: {priority: -1, configPatches: [{applyTo: CLUSTER, patch: {operation: MERGE, value: {connect_timeout: 1s, name: a}}}]}}
---
{apiVersion: networking.istio.io/v1, kind: Gateway, metadata: {name: n}, spec: {selector: {a: b}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ["*"]}]}}
---
{apiVersion: networking.istio.io/v1beta1, kind: ProxyConfig, metadata: {name: n}, spec: {selector: {matchLabels: {a: b}}, concurrency: 0, environmentVariables: {A: b, C: d}, image: {imageType: debug}}}
---
{apiVersion: gateway.networking.k8s.io/v1, kind: GatewayClass, metadata: {name: n}, spec: {controllerName: a/b}}
---
{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: n}, spec: {gatewayClassName: istio, listeners: [{name: a, port: 80, protocol: HTTP, hostname: a.example.com}]}}
---
{apiVersion: gateway.networking.k8s.io/v1, kind: ListenerSet, metadata: {name: n}, spec: {parentRef: {name: n}, listeners: [{name: a, port: 80, protocol: HTTP, hostname: b.example.com}]}}
---
{apiVersion: gateway.networking.k8s.io/v1, kind: HTTPRoute, metadata: {name: n}, spec: {parentRefs: [{name: n}], rules: [{timeouts: {request: 5s}, backendRefs: [{name: a, port: 80}]}]}}
---
{apiVersion: gateway.networking.k8s.io/v1, kind: GRPCRoute, metadata: {name: n}, spec: {rules: [{matches: [{method: {service: a.B}}]}]}}
---
{apiVersion: gateway.networking.k8s.io/v1, kind: TLSRoute, metadata: {name: n}, spec: {hostnames: [a.example.com], rules: [{backendRefs: [{name: a, port: 443}]}]}}
---
{apiVersion: gateway.networking.k8s.io/v1, kind: TCPRoute, metadata: {name: n}, spec: {rules: [{backendRefs: [{name: a, port: 90}]}]}}
---
{apiVersion: gateway.networking.k8s.io/v1, kind: UDPRoute, metadata: {name: n}, spec: {rules: [{backendRefs: [{name: a, port: 53}]}]}}
---
{apiVersion: gateway.networking.k8s.io/v1, kind: ReferenceGrant, metadata: {name: n}, spec: {from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: a}], to: [{group: "", kind: Service}]}}
---
{apiVersion: gateway.networking.k8s.io/v1, kind: BackendTLSPolicy, metadata: {name: n}, spec: {targetRefs: [{group: "", kind: Service, name: a}], validation: {hostname: a.example.com, wellKnownCACertificates: System}}}
---
{apiVersion: extensions.istio.io/v1alpha1, kind: WasmPlugin, metadata: {name: n}, spec: {selector: {matchLabels: {a: b}}, url: "https://a.example.com/a.wasm", sha256: aa, phase: AUTHZ, priority: 0, pluginConfig: {c: 1}, vmConfig: {env: [{name: A, valueFrom: HOST}]}, match: [{mode: SERVER, ports: [{number: 80}]}]}}
---
{apiVersion: extensions.istio.io/v1alpha1, kind: TrafficExtension, metadata: {name: n}, spec: {phase: STATS, lua: {inlineCode: "function envoy_on_request(h) end"}}}
`

// fill sets every field of v, recursively.
func fill(t testing.TB, v reflect.Value) {
	t.Helper()
	if v.Type() == reflect.TypeFor[netip.Addr]() {
		v.Set(reflect.ValueOf(netip.MustParseAddr("fd00::1")))
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString("text")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Uint32:
		v.SetUint(4242)
	case reflect.Struct:
		for i := range v.NumField() {
			fill(t, v.Field(i))
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range v.Len() {
			fill(t, v.Index(i))
		}
	case reflect.Map:
		v.Set(reflect.ValueOf(map[string]string{"key": "value"}))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(t, v.Elem())
	default:
		t.Fatalf("fill does not know %s", v.Type())
	}
}

func pointers(objects []object.Object) []*object.Object {
	var out []*object.Object
	for i := range objects {
		out = append(out, &objects[i])
	}
	return out
}

func text(t testing.TB, objects ...object.Object) []byte {
	t.Helper()
	b, err := new(saved.Encoder).Encode(written, "dir", pointers(objects))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func equal(a, b object.Object) bool {
	x, xm := a.Spec.(proto.Message)
	y, ym := b.Spec.(proto.Message)
	if xm && ym {
		if !proto.Equal(x, y) {
			return false
		}
		a.Spec, b.Spec = nil, nil
	}
	return reflect.DeepEqual(a, b)
}

func TestRoundTrip(t *testing.T) {
	want := allKinds(t)
	b := text(t, want...)
	set, err := saved.Decode(b)
	if err != nil {
		t.Fatal(err)
	}
	if !set.Written.Equal(written) || set.Place != "dir" || len(set.Objects) != len(want) {
		t.Errorf("%v %q, %d objects, want %d", set.Written, set.Place, len(set.Objects), len(want))
	}
	got := map[object.Key]object.Object{}
	for _, o := range set.Objects {
		got[o.Key] = o
	}
	for _, o := range want {
		if !equal(got[o.Key], o) {
			t.Errorf("%s is decoded as\n%+v, want\n%+v", o.Key, got[o.Key], o)
		}
	}
}

func TestKeySetsAreSaved(t *testing.T) {
	want := []saved.KeySet{
		{Source: jwks.Source{URL: "https://a.example/keys"}, Keys: `{"keys":[]}`, Fetched: written},
		{Source: jwks.Source{Issuer: "https://b.example"}, Keys: "x", Fetched: written.Add(-time.Hour)},
	}
	huge := saved.KeySet{Source: jwks.Source{URL: "https://huge.example"}, Keys: strings.Repeat("x", saved.MaxKeys)}
	e := saved.Encoder{Keys: []saved.KeySet{want[0], huge, want[1]}}
	text, err := e.Encode(written, "dir", pointers(allKinds(t)))
	if err != nil {
		t.Fatal(err)
	}
	set, err := saved.Decode(text)
	if err != nil || !slices.Equal(set.Keys, want) || len(set.Unknown) != 0 || len(set.Objects) != len(allKinds(t)) {
		t.Errorf("%+v, unknown %v, %d objects, error %v", set.Keys, set.Unknown, len(set.Objects), err)
	}
	if !bytes.Contains(text, []byte(`{"keySet":{"url":"https://a.example/keys","keys":"{\"keys\":[]}","fetched":"2026-11-21T12:00:00Z"}}`)) {
		t.Errorf("the format of version 1 is another one:\n%s", text)
	}
}

// A file of version 1 must be decoded and be equal to what is encoded now: a change of the format
// needs another version.
func TestFormatOfVersion1(t *testing.T) {
	const file = "testdata/version1-serving.saved"
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got := text(t, allKinds(t)...); !bytes.Equal(got, want) {
		t.Errorf("%s differs from what is encoded now: increase Version, or, if a field was added whose absence means what it meant before, keep the file for TestDecodesOtherReleases and add another one. Now:\n%s", file, got)
	}
	if _, err := saved.Decode(want); err != nil {
		t.Error(err)
	}
}

// Files of earlier releases are read whole. Of one that a later release wrote in the same version, what this
// release does not know is left out and named.
func TestDecodesOtherReleases(t *testing.T) {
	files, err := filepath.Glob("testdata/version*.saved")
	if err != nil || len(files) == 0 {
		t.Fatalf("files %v, error %v", files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		set, err := saved.Decode(text)
		if err != nil || len(set.Objects) < 13 || len(set.Unknown) > 0 {
			t.Errorf("%s: %d objects, unknown %v, error %v", file, len(set.Objects), set.Unknown, err)
		}
	}
	later, err := os.ReadFile("testdata/later.saved")
	if err != nil {
		t.Fatal(err)
	}
	set, err := saved.Decode(withHeader(string(later)))
	want := []string{`field "shard"`, "a record without a kind", `kind "ProxyPolicy"`, `field "owner"`, `field "Ambient"`, "a field of PeerAuthentication"}
	if err != nil || !slices.Equal(set.Unknown, want) {
		t.Errorf("unknown %q, want %q, error %v", set.Unknown, want, err)
	}
	if len(set.Objects) != 4 || set.Objects[1].Spec.(*object.PodSpec).ServiceAccount != "s" {
		t.Errorf("objects %+v", set.Objects)
	}
}

func TestSecretsAreOmitted(t *testing.T) {
	secret := object.Object{Key: object.Key{Kind: object.Secret, Namespace: "shop", Name: "s"}, Spec: &object.SecretSpec{Data: map[string][]byte{"k": []byte("hunter2")}}}
	service := object.Object{Key: object.Key{Kind: object.Service, Namespace: "shop", Name: "s"}, Spec: &object.ServiceSpec{}}
	b := text(t, secret, service)
	if bytes.Contains(b, []byte("aHVudGVyMg")) || bytes.Contains(b, []byte("Secret")) {
		t.Errorf("the file contains the secret:\n%s", b)
	}
	if set, err := saved.Decode(b); err != nil || len(set.Objects) != 1 {
		t.Errorf("%+v, %v", set, err)
	}
	forged := withHeader(strings.ReplaceAll(string(body(b)), `"kind":"Service"`, `"kind":"Secret"`))
	if _, err := saved.Decode(forged); err == nil || !strings.Contains(err.Error(), "invalid object") {
		t.Errorf("a text with a Secret: %v", err)
	}
}

func body(text []byte) []byte {
	_, b, _ := bytes.Cut(text, []byte("\n"))
	return b
}

// withHeader adds a valid first line to a body.
func withHeader(body string) []byte {
	return fmt.Appendf(nil, "pilothouse-saved-configuration 1 sha256:%x\n%s", sha256.Sum256([]byte(body)), body)
}

func TestDecodeErrors(t *testing.T) {
	good := string(text(t, allKinds(t)...))
	other := string(text(t, allKinds(t)[0]))
	for name, c := range map[string]struct{ text, want string }{
		"nothing":                {"", "invalid first line"},
		"another file":           {"hello world\n", "invalid first line"},
		"a newer version":        {strings.Replace(good, "configuration 1 ", "configuration 2 ", 1), `version "2"`},
		"an older version":       {strings.Replace(good, "configuration 1 ", "configuration 0 ", 1), `version "0"`},
		"truncated":              {good[:len(good)-1], "checksum"},
		"truncated after line 1": {good[:strings.Index(good, "\n")+1], "checksum"},
		"another body":           {good[:strings.Index(good, "\n")+1] + string(body([]byte(other))), "checksum"},
		"one object missing":     {string(withHeader(`{"written":"2026-11-21T12:00:00Z","place":"dir","objects":2}` + "\n" + `{"kind":"Namespace","name":"a"}` + "\n")), "1 objects, want 2"},
		"one object twice":       {string(withHeader(`{"written":"2026-11-21T12:00:00Z","place":"dir","objects":2}` + "\n" + strings.Repeat(`{"kind":"Namespace","name":"a"}`+"\n", 2))), "duplicate"},
		"a message of junk":      {string(withHeader(`{"written":"2026-11-21T12:00:00Z","place":"dir","objects":1}` + "\n" + `{"kind":"Sidecar","name":"a","message":"////"}` + "\n")), "Sidecar a"},
	} {
		set, err := saved.Decode([]byte(c.text))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want one with %q", name, err, c.want)
		}
		if len(set.Objects) > 0 {
			t.Errorf("%s: %d objects are returned", name, len(set.Objects))
		}
	}
	for i := range good {
		b := []byte(good)
		b[i] ^= 0x20
		if _, err := saved.Decode(b); err == nil {
			t.Fatalf("byte %d was modified, and Decode returned no error", i)
		}
	}
}

func TestUnchangedObjectsAreNotEncodedAgain(t *testing.T) {
	objects := many(1000)
	var e saved.Encoder
	first, err := e.Encode(written, "dir", objects)
	if err != nil {
		t.Fatal(err)
	}
	changed := *objects[0]
	changed.Meta.ResourceVersion = "another"
	objects[0] = &changed
	again := testing.AllocsPerRun(1, func() {
		if _, err := e.Encode(written, "dir", objects); err != nil {
			t.Fatal(err)
		}
	})
	if all := testing.AllocsPerRun(1, func() {
		if _, err := new(saved.Encoder).Encode(written, "dir", objects); err != nil {
			t.Fatal(err)
		}
	}); again*10 > all {
		t.Errorf("encoding one changed object of %d makes %v allocations, all of them %v", len(objects), again, all)
	}
	t.Logf("%d objects of 1,000 services take %d bytes", len(objects), len(first))
}

// An Encoder that has encoded other sets encodes as a new one does.
func TestSetsAreEncodedInPlace(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	all := many(30)
	var e saved.Encoder
	inPlace := 0
	var before *byte
	for round := range 400 {
		objects := all[:len(all)-random.IntN(3)]
		if round%50 == 0 {
			objects = all[:random.IntN(len(all))]
		}
		for range random.IntN(5) {
			i := random.IntN(len(all))
			o := *all[i]
			o.Meta.Annotations = map[string]string{"a": strings.Repeat("x", random.IntN(300))}
			all[i] = &o
		}
		at := written.Add(time.Duration(random.IntN(2)*random.IntN(1e9)) * time.Nanosecond)
		got, err := e.Encode(at, "dir", objects)
		if err != nil {
			t.Fatal(err)
		}
		want, err := new(saved.Encoder).Encode(at, "dir", objects)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Fatalf("round %d: encoded after other sets:\n%s\nwant\n%s", round, got, want)
		}
		if &got[0] == before {
			inPlace++
		}
		before = &got[0]
	}
	if inPlace < 200 {
		t.Errorf("%d of 400 sets are encoded in place: want most", inPlace)
	}
}

func TestLimits(t *testing.T) {
	big := object.Object{
		Key:  object.Key{Kind: object.ConfigMap, Namespace: "shop", Name: "big"},
		Spec: &object.ConfigMapSpec{Data: map[string]string{"k": strings.Repeat("x", 5<<20)}},
	}
	if _, err := new(saved.Encoder).Encode(written, "dir", []*object.Object{&big}); err == nil || !strings.Contains(err.Error(), "ConfigMap shop/big") {
		t.Errorf("an object of 5 MiB: %v", err)
	}
	var all []*object.Object
	for i := range 12 {
		o := big
		o.Name, o.Spec = fmt.Sprint("n", i), &object.ConfigMapSpec{Data: map[string]string{"k": strings.Repeat("x", 3<<20)}}
		all = append(all, &o)
	}
	if _, err := new(saved.Encoder).Encode(written, "dir", all); err == nil || !strings.Contains(err.Error(), "at most") {
		t.Errorf("a set of 36 MiB: %v", err)
	}
	if _, err := saved.Decode(make([]byte, saved.MaxBytes+1)); err == nil {
		t.Error("a file of more than MaxBytes is decoded")
	}
}

// many returns the objects of n services: each with two Pods, every fourth with a route.
func many(n int) []*object.Object {
	var text strings.Builder
	for i := range n {
		fmt.Fprintf(&text, "---\n{apiVersion: v1, kind: Service, metadata: {name: s%[1]d, namespace: n%[2]d}, spec: {clusterIP: 10.1.%[3]d.%[4]d, selector: {app: s%[1]d}, ports: [{name: http, port: 80}]}}\n", i, i%20, i/250, i%250)
		for p := range 2 {
			fmt.Fprintf(&text, "---\n{apiVersion: v1, kind: Pod, metadata: {name: s%[1]d-%[5]d, namespace: n%[2]d, labels: {app: s%[1]d, security.istio.io/tlsMode: istio}}, status: {phase: Running, podIP: 10.%[6]d.%[3]d.%[4]d}}\n", i, i%20, i/250, i%250, p, p+2)
		}
		if i%4 == 0 {
			fmt.Fprintf(&text, "---\n{apiVersion: networking.istio.io/v1, kind: VirtualService, metadata: {name: s%[1]d, namespace: n%[2]d}, spec: {hosts: [s%[1]d], http: [{route: [{destination: {host: s%[1]d}}]}]}}\n", i, i%20)
		}
	}
	var out []*object.Object
	for _, o := range decode.Documents("many.yaml", []byte(text.String())).Objects {
		out = append(out, &o)
	}
	return out
}

func BenchmarkEncodeOneOfThousands(b *testing.B) {
	objects, e := many(1000), saved.Encoder{}
	for b.Loop() {
		changed := *objects[0]
		objects[0] = &changed
		if _, err := e.Encode(written, "dir", objects); err != nil {
			b.Fatal(err)
		}
	}
}

// FuzzDecode decodes any text, and any body with a valid first line. What is decoded must be
// encoded and decoded again.
func FuzzDecode(f *testing.F) {
	good := text(f, allKinds(f)...)
	f.Add(good, false)
	f.Add(body(good), true)
	f.Add([]byte(`{"written":"2026-11-21T12:00:00Z","place":"","objects":1}`+"\n"+`{"kind":"Pod","name":"a","spec":{"IPs":[""]}}`+"\n"), true)
	f.Fuzz(func(t *testing.T, b []byte, header bool) {
		if header {
			b = withHeader(string(b))
		}
		set, err := saved.Decode(b)
		if err != nil {
			if len(set.Objects) > 0 {
				t.Errorf("an error, and %d objects", len(set.Objects))
			}
			return
		}
		again, err := new(saved.Encoder).Encode(set.Written, set.Place, pointers(set.Objects))
		if err != nil {
			return // too long, or a time that JSON cannot write
		}
		if _, err := saved.Decode(again); err != nil {
			t.Errorf("decode again: %v\n%s", err, again)
		}
	})
}
