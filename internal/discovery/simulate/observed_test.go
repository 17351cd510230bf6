package simulate_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/anypb"
	security "istio.io/api/security/v1beta1"
	"sigs.k8s.io/yaml"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/authz"
	"github.com/pilothouse/pilothouse/internal/discovery/compile/jwt"
	"github.com/pilothouse/pilothouse/internal/discovery/config"
	"github.com/pilothouse/pilothouse/internal/discovery/model"
	"github.com/pilothouse/pilothouse/internal/discovery/simulate"
	"github.com/pilothouse/pilothouse/internal/discovery/source/decode"
	meshvalues "github.com/pilothouse/pilothouse/internal/mesh"
)

const (
	requestsOfObserved = 500
	observedMark       = "# ---- observed ----\n"
)

// observation is a set of objects with the filters that Istio's control plane was observed to send for them.
type observation struct {
	input string
	// istio and own are the filters, of Istio and of this control plane. tcp is set if Istio's for TCP are known.
	istio, own authz.Filters
	tcp        bool
	// values are the texts of the policies, of which requests are made.
	values []string
}

// TestDecisionsAreIstios evaluates requests and TCP connections that are made of the values of policies by the filters that Istio's control
// plane was observed to send, and by those that are compiled here: all decisions are the same.
func TestDecisionsAreIstios(t *testing.T) {
	files, err := filepath.Glob("testdata/observed/*.yaml")
	if err != nil || len(files) < 40 {
		t.Fatalf("%d files, error %v", len(files), err)
	}
	seed := seedOf(t)
	allowed, denied, asked := 0, 0, 0
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			o := observe(t, string(text))
			r := rand.New(rand.NewPCG(seed, 1))
			istio, own := inbound(o.istio), inbound(o.own)
			for range requestsOfObserved {
				c, request := o.request(r)
				want, wantErr := simulate.Evaluate(istio, c, request, time.Now())
				got, gotErr := simulate.Evaluate(own, c, request, time.Now())
				if wantErr != nil || gotErr != nil {
					t.Fatalf("Istio's: %v, own: %v", wantErr, gotErr)
				}
				slices.Sort(want.Asks)
				slices.Sort(got.Asks)
				if got.Allowed != want.Allowed || got.Status != want.Status || !slices.Equal(got.Asks, want.Asks) {
					t.Fatalf("%+v from %v, %+v:\nIstio: %+v\nown:   %+v", request, c.Source, c.TLS, want, got)
				}
				switch {
				case len(got.Asks) > 0:
					asked++
				case got.Allowed:
					allowed++
				default:
					denied++
				}
				if !o.tcp {
					continue
				}
				c.Destination = netip.AddrPortFrom(c.Destination.Addr(), 1003)
				want, wantErr = simulate.Evaluate(istio, c, nil, time.Now())
				got, gotErr = simulate.Evaluate(own, c, nil, time.Now())
				if wantErr != nil || gotErr != nil || got.Allowed != want.Allowed {
					t.Fatalf("TCP from %v, %+v:\nIstio: %+v, error %v\nown:   %+v, error %v", c.Source, c.TLS, want, wantErr, got, gotErr)
				}
			}
		})
	}
	t.Logf("%d allowed, %d denied, %d for an authorizer", allowed, denied, asked)
	if allowed < 4000 || denied < 4000 || asked < 30 {
		t.Error("the requests decide nothing of interest")
	}
}

// observe parses a file.
func observe(t *testing.T, text string) (o observation) {
	t.Helper()
	input, observed, ok := strings.Cut(text, observedMark)
	if !ok {
		t.Fatalf("no line %q", observedMark)
	}
	o.input = input
	o.own = compiled(t, &o)
	var node struct {
		LDS []struct {
			FilterChains []struct {
				Filters []map[string]any
			} `json:"filter_chains"`
		}
	}
	if err := yaml.Unmarshal([]byte(observed), &node); err != nil || len(node.LDS) == 0 || len(node.LDS[0].FilterChains) < 2 {
		t.Fatalf("parse what was observed: %v, %d listeners", err, len(node.LDS))
	}
	http, tcp := node.LDS[0].FilterChains[0].Filters, node.LDS[0].FilterChains[1].Filters
	manager, _ := http[0]["typed_config"].(map[string]any)
	list, _ := manager["http_filters"].([]any)
	var configs []map[string]any
	for _, f := range list {
		f, ok := f.(map[string]any)
		if !ok {
			break // those that are the same for all listeners
		}
		c, _ := f["typed_config"].(map[string]any)
		configs = append(configs, c)
		m := &hcmv3.HttpFilter{Name: fmt.Sprint(f["name"]), ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: packed(t, c)}}
		o.istio.HTTP = append(o.istio.HTTP, m)
	}
	o.tcp = true
	for i, f := range tcp {
		c, _ := f["typed_config"].(map[string]any)
		if typ := fmt.Sprint(c["@type"]); !strings.HasPrefix(typ, "envoy.") {
			o.tcp = typ == "TcpProxy" // which is the same for all listeners; anything else is a chain for HTTP
			break
		}
		for k, v := range c {
			if v, ok := v.(string); ok && strings.Contains(v, "(same as") {
				if !strings.Contains(v, "-http above") || len(tcp) < len(configs) {
					o.tcp = false
					return o
				}
				c[k] = configs[i][k]
			}
		}
		o.istio.TCP = append(o.istio.TCP, &listenerv3.Filter{Name: fmt.Sprint(f["name"]), ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: packed(t, c)}})
	}
	return o
}

// packed parses the configuration of a filter.
func packed(t *testing.T, c map[string]any) *anypb.Any {
	t.Helper()
	c["@type"] = "type.googleapis.com/" + strings.TrimPrefix(fmt.Sprint(c["@type"]), "type.googleapis.com/")
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	out := &anypb.Any{}
	if err := protojson.Unmarshal(text, out); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return out
}

// compiled returns the filters of the objects of an observation, and notes the values in them.
func compiled(t *testing.T, o *observation) authz.Filters {
	t.Helper()
	var mesh, objects strings.Builder
	inMesh := false
	for _, line := range strings.SplitAfter(o.input, "\n") {
		switch {
		case strings.HasPrefix(line, "# mesh config:"):
			inMesh = true
		case inMesh && strings.HasPrefix(line, "#   "):
			mesh.WriteString(strings.TrimPrefix(line, "#   "))
		default:
			inMesh = false
			objects.WriteString(line)
		}
	}
	m, _ := config.MeshConfig(mesh.String())
	res := decode.Documents("observed.yaml", []byte(objects.String()))
	if len(res.Problems) > 0 || len(res.Objects) == 0 {
		t.Fatal(res.Problems)
	}
	var policies []authz.Policy
	var rules []jwt.Rule
	for _, object := range res.Objects {
		text, err := json.Marshal(object.Spec)
		if err != nil {
			t.Fatal(err)
		}
		var any any
		if err := json.Unmarshal(text, &any); err != nil {
			t.Fatal(err)
		}
		o.note(any)
		switch spec := object.Spec.(type) {
		case *security.AuthorizationPolicy:
			policies = append(policies, authz.Policy{Namespace: object.Key.Namespace, Name: object.Key.Name, Spec: spec, DryRun: model.DryRun(object.Meta.Annotations[model.DryRunAnnotation])})
		case *security.RequestAuthentication:
			for _, r := range spec.GetJwtRules() {
				keys, _ := jwt.KeysOf(r)
				rules = append(rules, jwt.Rule{Spec: r, Keys: keys})
			}
		}
	}
	authorizers := map[string]authz.Authorizer{}
	for _, p := range m.GetExtensionProviders() {
		service, port, _ := meshvalues.ExternalAuthorizer(p)
		_, host := meshvalues.ProviderService(service)
		a := authz.Authorizer{Provider: p, Host: host, Cluster: fmt.Sprintf("outbound|%d||%s", port, host)}
		if strings.HasPrefix(host, "nosuch.") {
			a = authz.Authorizer{Fault: "no service"}
		}
		authorizers[p.GetName()] = a
	}
	return authz.Build(policies, append([]string{"cluster.local"}, m.GetTrustDomainAliases()...), authorizers, jwt.Build(rules, false))
}

// note collects the texts in a value, with what may stand for their wildcards.
func (o *observation) note(v any) {
	switch v := v.(type) {
	case string:
		for _, with := range []string{"", "z", "a/b"} {
			o.values = append(o.values, strings.NewReplacer("{**}", with, "{*}", with, "*", with).Replace(v))
		}
	case []any:
		for _, one := range v {
			o.note(one)
		}
	case map[string]any:
		for k, one := range v {
			o.values = append(o.values, k)
			o.note(one)
		}
	}
}

// request makes a connection and a request of the values.
func (o *observation) request(r *rand.Rand) (simulate.Connection, *simulate.Request) {
	value := func() string { return o.values[r.IntN(len(o.values))] }
	one := func(fixed ...string) string {
		if r.IntN(2) == 0 {
			return fixed[r.IntN(len(fixed))]
		}
		return value()
	}
	address := func() netip.Addr {
		for range 10 {
			text := value()
			if p, err := netip.ParsePrefix(text); err == nil {
				return p.Addr()
			}
			if a, err := netip.ParseAddr(text); err == nil {
				return a
			}
		}
		return netip.AddrFrom4([4]byte{10, byte(r.IntN(4)), 0, byte(r.IntN(4))})
	}
	identity := one("cluster.local/ns/shop/sa/client", "cluster.local/ns/bad/sa/b", "old-td/ns/shop/sa/client")
	if !strings.Contains(identity, "/ns/") {
		identity = "cluster.local/ns/" + one("shop", "bad", "a") + "/sa/" + one("client", "a", "b")
		if r.IntN(4) == 0 {
			identity = value() + "/ns/shop/sa/client"
		}
	}
	port := uint16(1002)
	c := simulate.Connection{
		Source: netip.AddrPortFrom(address(), 40000), Destination: netip.AddrPortFrom(netip.MustParseAddr("10.0.0.2"), port),
		TLS: &simulate.TLS{ALPN: []string{"istio-http/1.1", "istio"}, ServerName: one("", "a.example"), Identities: []string{"spiffe://" + identity}},
	}
	if r.IntN(5) == 0 {
		c.TLS, c.Protocol = nil, "http/1.1"
	}
	path := one("/", "/admin", "/admin/x", "/a/b/c")
	if !strings.HasPrefix(path, "/") {
		path = "/" + path
	}
	request := &simulate.Request{Method: one("GET", "PUT", "POST", "PATCH", "HEAD", "OPTIONS"), Authority: one("web", "WEB.example:8080"), Path: path, Headers: map[string][]string{}}
	for _, v := range o.values {
		if name, ok := strings.CutPrefix(v, "request.headers["); ok && r.IntN(3) > 0 {
			request.Headers[strings.ToLower(strings.TrimSuffix(name, "]"))] = []string{value()}
		}
	}
	if r.IntN(3) == 0 {
		request.Headers["x-forwarded-for"] = []string{address().String()}
	}
	if r.IntN(2) == 0 {
		issuer := one("one.example.com", "two.example.com", "root.example.com")
		request.Claims = map[string]any{"iss": issuer, "sub": one("sub-1", "me"), "aud": value(), "azp": value(), "scope": value() + " " + value(), "groups": []any{value(), value()}}
		for _, v := range o.values {
			if claim, ok := strings.CutPrefix(v, "request.auth.claims["); ok {
				outer, inner, nested := strings.Cut(strings.TrimSuffix(claim, "]"), "][")
				if request.Claims[outer] = any(value()); nested {
					request.Claims[outer] = map[string]any{inner: value()}
				}
			}
		}
	}
	return c, request
}
