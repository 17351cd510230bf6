package yamltree_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/yamltree"
)

func TestParse(t *testing.T) {
	deep := strings.Repeat("[", yamltree.MaxDepth+5) + strings.Repeat("]", yamltree.MaxDepth+5)
	bomb := "a: &a [x,x,x,x,x,x,x,x,x,x]\n"
	for c := 'b'; c < 'n'; c++ {
		bomb += string(c) + ": &" + string(c) + " [" + strings.Repeat("*"+string(c-1)+",", 10) + "]\n"
	}
	for _, tt := range []struct{ name, text, want string }{
		{"empty", "", ""},
		{"only markers", "---\n# nothing\n---\n", ""},
		{"two documents", "a: 1\n---\nb: two\n", `1:{"a":1} 3:{"b":"two"}`},
		{"marker with content", "--- {a: 1}\n--- # x\nb: 2", `1:{"a":1} 3:{"b":2}`},
		{"end marker", "a: 1\n...\n---\nb: 2", `1:{"a":1} 4:{"b":2}`},
		{"directive", "%YAML 1.2\n---\na: 1", `3:{"a":1}`},
		{"carriage returns", "a: 1\r\n---\r\nb: 2\r\n", `1:{"a":1} 3:{"b":2}`},
		{"byte order mark", "\ufeffa: 1", `1:{"a":1}`},
		{"scalars", "[yes, true, 0x10, 0o17, 1e3, .inf, ~, 2026-01-02, '5', 1_000, -0]",
			`1:["yes",true,16,15,1000,".inf",null,"2026-01-02","5",1000,0]`},
		{"number keys", "8080: a", `1:{"8080":"a"}`},
		{"alias", "a: &x {k: v}\nb: *x", `1:{"a":{"k":"v"},"b":{"k":"v"}}`},
		{"merge", "a: &x {k: v, l: 1}\nb: {<<: *x, k: w}", `1:{"a":{"k":"v","l":1},"b":{"k":"w","l":1}}`},
		{"broken, then good", "a: 1\n---\na: [\n---\nb: 2", "1:{\"a\":1} 3:the YAML does not parse 5:{\"b\":2}"},
		{"line of an error", "a: 1\n---\nb: 1\nc: 2\n d: 3\n", `1:{"a":1} 5:the YAML does not parse`},
		{"duplicate key", "a: 1\nb: 2\na: 3", `3:key "a" is given twice, first on line 1`},
		{"alias in itself", "a: &a [*a]", `1:alias *a refers to a value that contains it`},
		{"too deep", "x\n---\n" + deep, `1:"x" 3:nested deeper than 200 levels`},
		{"bomb", bomb, `:the document is more than 67108864 bytes with its aliases`},
		{"two values", "{a: 1} {b: 2}", `1:`},
	} {
		t.Run(tt.name, func(t *testing.T) { compare(t, yamltree.Parse([]byte(tt.text), false), tt.want) })
	}
	many := yamltree.Parse([]byte(strings.Repeat("a\n---\n", yamltree.MaxDocuments+10)), false)
	if last := many[len(many)-1]; len(many) != yamltree.MaxDocuments+1 || last.Fault == nil {
		t.Errorf("%d documents, last %+v; want %d and a fault", len(many), last, yamltree.MaxDocuments)
	}
	if big := yamltree.Parse(make([]byte, yamltree.MaxBytes+1), false); len(big) != 1 || big[0].Fault == nil {
		t.Errorf("too long a text: %+v", big)
	}
}

func TestParseJSON(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"several", "{\"a\":\t1}\n{\"b\": [true, null, \"\\ud83d\\ude00\\/\"]}", `1:{"a":1} 2:{"b":[true,null,"😀/"]}`},
		{"broken", "{\"a\": 1}\n{\n\"b\" 1}", `1:{"a":1} 3:the JSON does not parse`},
		{"duplicate", "{\"a\": 1,\n\"a\": 2}", `2:key "a" is given twice, first on line 1`},
		{"too deep", strings.Repeat("[", 300), `1:nested deeper`},
		{"null", "null", ""},
	} {
		t.Run(tt.name, func(t *testing.T) { compare(t, yamltree.Parse([]byte(tt.text), true), tt.want) })
	}
}

// compare writes documents as "line:JSON", or "line:fault" up to the length that want gives it.
func compare(t *testing.T, docs []yamltree.Document, want string) {
	t.Helper()
	rest := want
	for _, d := range docs {
		got := ""
		switch {
		case d.Fault != nil:
			got = d.Fault.Error()
			got = strings.Replace(strings.TrimPrefix(got, "line "), ": ", ":", 1)
			_, text, _ := strings.Cut(got, ":")
			if strings.HasPrefix(rest, ":") {
				got = ":" + text
			}
			n := len(rest)
			for i := 2; i < len(rest); i++ {
				if rest[i-1] == ' ' && rest[i] >= '0' && rest[i] <= '9' && strings.Contains(rest[i:], ":{") {
					n = i - 1
					break
				}
			}
			got = got[:min(len(got), n)]
		case d.Root != nil:
			got = strings.TrimSpace(strings.Join([]string{itoa(d.Line), string(d.Root.JSON())}, ":"))
		default:
			continue
		}
		if !strings.HasPrefix(rest, got) {
			t.Fatalf("got %s, want %s", got, rest)
		}
		rest = strings.TrimPrefix(rest[len(got):], " ")
	}
	if rest != "" {
		t.Errorf("missing: %s", rest)
	}
}

func itoa(n int) string { return string(rune('0' + n%10)) }

func root(t *testing.T, text string) *yamltree.Tree {
	t.Helper()
	docs := yamltree.Parse([]byte(text), false)
	if len(docs) != 1 || docs[0].Root == nil {
		t.Fatalf("parse: %+v", docs)
	}
	return docs[0].Root
}

func TestIntoMessage(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		want       []string
	}{
		{"good", "hosts: [a]\nhttp:\n- timeout: 1m30s\n  retries: {attempts: 2, perTryTimeout: 250ms}\n  route: [{destination: {host: a}, weight: 100}]", nil},
		{"unknown", "hosts: [a]\nhttp:\n- timout: 5s\n  zzzzzz: 1", []string{
			"line 3: spec.http[0].timout: unknown field; did you mean timeout?",
			"line 4: spec.http[0].zzzzzz: unknown field; remove it; the fields here are corsPolicy, "}},
		{"types", "hosts: a\nhttp:\n- timeout: 5\n  name: 3\n  mirrorPercent: x\n  corsPolicy: {allowCredentials: 1}", []string{
			`line 1: spec.hosts: want a list, not a string`,
			`line 3: spec.http[0].timeout: want a duration such as "5s" or "250ms", not "5"`,
			`line 4: spec.http[0].name: want a string, not a number; put it in quotes: "3"`,
			`line 5: spec.http[0].mirrorPercent: want a whole number from 0 to 4294967295, not "x"`,
			`line 6: spec.http[0].corsPolicy.allowCredentials: want true or false, not "1"`}},
		{"one of", "http:\n- match: [{headers: {x-a.b: {exact: '1', prefix: p}}}]", []string{
			"line 2: spec.http[0].match[0].headers[x-a.b].prefix: only one of this and exact can be set"}},
		{"enum and null", "http:\n- corsPolicy: {unmatchedPreflights: NEVER}\n  match: [null]", []string{
			`line 2: spec.http[0].corsPolicy.unmatchedPreflights: invalid value "NEVER": want UNSPECIFIED, FORWARD, IGNORE`,
			"line 3: spec.http[0].match[0]: the value is missing"}},
		{"text name too", "export_to: [a]\nexportTo: [b]", []string{`line 2: spec.exportTo: duplicate field, also given as "export_to"`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var vs networking.VirtualService
			faults := yamltree.IntoMessage(root(t, tt.text), "spec", &vs)
			if len(faults) != len(tt.want) {
				t.Fatalf("faults %v, want %v", faults, tt.want)
			}
			for i, f := range faults {
				if !strings.HasPrefix(f.Error(), tt.want[i]) {
					t.Errorf("fault %q, want %q", f, tt.want[i])
				}
			}
		})
	}
	var vs networking.VirtualService
	yamltree.IntoMessage(root(t, "http: [{timeout: 1m30s, name: &n 1m30s, retries: {perTryTimeout: *n}}]"), "", &vs)
	if r := vs.Http[0]; r.Timeout.Seconds != 90 || r.Name != "1m30s" || r.Retries.PerTryTimeout.Seconds != 90 {
		t.Errorf("durations: %v", r)
	}
}

func TestInto(t *testing.T) {
	type port struct {
		Port int32  `json:"port"`
		Name string `json:"name"`
	}
	type all struct {
		Labels map[string]string `json:"labels"`
		Ports  []port            `json:"ports"`
		Data   map[string][]byte `json:"data"`
	}
	for text, want := range map[string]string{
		"labels: {a: b}\nother: {}\nports: [{port: 1, extra: 2}]": "",
		"labels:\n  app: x\n  version.x/y: 1":                     `line 3: meta.labels[version.x/y]: want a string, not a number; put it in quotes: "1"`,
		"ports:\n- port: 1\n- port: x\n":                          `line 3: meta.ports[1].port: want a whole number of 32 bits, not a string`,
		"ports:\n- port: 99999999999":                             `line 2: meta.ports[0].port: 99999999999 does not fit a whole number of 32 bits`,
		"ports: {a: 1}":                                           `line 1: meta.ports: want a list, not a mapping`,
		"labels: [1]":                                             `line 1: meta.labels: want a mapping, not a list`,
		"ports: [[3]]":                                            `line 1: meta.ports[0]: want a mapping, not a list`,
	} {
		var v all
		got := ""
		if f := yamltree.Into(root(t, text), "meta", &v); f != nil {
			got = f.Error()
		}
		if got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}

func TestMerge(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		change     func(*meshv1.MeshConfig)
	}{
		{"absent and null keep", "trustDomain: null\nenableTracing: null", func(*meshv1.MeshConfig) {}},
		{"zero replaces", "trustDomain: ''\nproxyListenPort: 0\nenableAutoMtls: false\ndefaultServiceExportTo: []", func(m *meshv1.MeshConfig) {
			m.TrustDomain, m.ProxyListenPort, m.DefaultServiceExportTo = "", 0, nil
			m.EnableAutoMtls.Value = false
		}},
		{"lists replaced, messages merged", "defaultServiceExportTo: [.]\ndefaultConfig: {concurrency: 2, proxyMetadata: {A: b}}", func(m *meshv1.MeshConfig) {
			m.DefaultServiceExportTo = []string{"."}
			m.DefaultConfig.Concurrency = wrapperspb.Int32(2)
			m.DefaultConfig.ProxyMetadata["A"] = "b"
		}},
		{"enum zero", "outboundTrafficPolicy: {mode: REGISTRY_ONLY}", func(m *meshv1.MeshConfig) {
			m.OutboundTrafficPolicy.Mode = meshv1.MeshConfig_OutboundTrafficPolicy_REGISTRY_ONLY
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, want := mesh.DefaultMeshConfig(), mesh.DefaultMeshConfig()
			got.DefaultConfig.ProxyMetadata = map[string]string{"K": "v"}
			want.DefaultConfig.ProxyMetadata = map[string]string{"K": "v"}
			tt.change(want)
			if faults := yamltree.Merge(root(t, tt.text), "", got); faults != nil {
				t.Fatal(faults)
			}
			if d := cmp.Diff(want, got, protocmp.Transform()); d != "" {
				t.Error(d)
			}
		})
	}
	got := mesh.DefaultMeshConfig()
	if faults := yamltree.Merge(root(t, "trustDomain: x\nconnectTimeout: soon"), "mesh", got); len(faults) != 1 || !proto.Equal(got, mesh.DefaultMeshConfig()) {
		t.Errorf("a bad value: faults %v, and the message changed", faults)
	}
}
