package decode_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/pilothouse/pilothouse/internal/discovery/source/decode"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/internal/yamltree"
	"github.com/pilothouse/pilothouse/test/wait"
)

// pieces are documents, and what may stand between them.
var pieces = []string{
	"apiVersion: v1\nkind: Service\nmetadata: {name: a, namespace: n}\nspec: {ports: [{port: 80}]}\n",
	"apiVersion: v1\nkind: Service\nmetadata: {name: a, namespace: n}\nspec: {ports: [{port: 81}]}\n",
	"apiVersion: v1\r\nkind: Pod\r\nmetadata: {name: p}\r\nstatus: {podIP: 10.0.0.1}\r\n",
	"apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nstatus: {podIP: 10.0.0.x}\n",
	"kind: List\napiVersion: v1\nitems:\n- {apiVersion: v1, kind: Namespace, metadata: {name: x}}\n- {apiVersion: v1, kind: Namespace}\n- {apiVersion: apps/v1, kind: Deployment, metadata: {name: d}}\n",
	"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata:\n  k: |\n    ---\n     ...\n  l: >-\n\n    # no comment\n",
	"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\n",
	"apiVersion: networking.istio.io/v1\nkind: EnvoyFilter\nmetadata: {name: f}\n",
	"apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: r}\nspec: &s\n  host: a\n  # a comment\n  trafficPolicy: {}\n",
	"apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: r}\nspec: *s\n",
	"apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: r}\nspec:\n  hots: a\n",
	"apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: default, namespace: n}\nspec: {mtls: {mode: STRICT}\n",
	"apiVersion: v1\nkind: Service\nmetadata: {name: a}\nkind: Pod\n",
	"kind: Service\n", "[a, b]\n", "{a: 1} {b: 2}\n", "# a comment\n", "\n", "%YAML 1.2\n", "...\n", "... # the end\n", "--- {apiVersion: v1, kind: Namespace, metadata: {name: y}}\n", "--- # with a comment\n", "----\n", "\ufeff",
}

// A file's text is changed again and again. What is decoded must be what a file gives that was never read.
func TestFileDecodesAsIfNew(t *testing.T) {
	r := rand.New(rand.NewPCG(7, wait.Seed(t, 7)))
	for range 200 {
		f, parts := decode.NewFile("f.yaml"), []string{}
		for range 8 {
			for range 1 + r.IntN(4) {
				at := r.IntN(len(parts) + 1)
				switch {
				case at < len(parts) && r.IntN(3) == 0:
					parts = append(parts[:at:at], parts[at+1:]...)
				default:
					piece := pieces[r.IntN(len(pieces))]
					if r.IntN(3) > 0 {
						piece = "---\n" + piece
					}
					parts = append(parts[:at:at], append([]string{piece}, parts[at:]...)...)
				}
			}
			checkFile(t, f, "f.yaml", strings.Join(parts, ""))
		}
	}
}

// checkFile decodes a text by f and compares the result with that of a new File.
func checkFile(t *testing.T, f *decode.File, name, text string) {
	t.Helper()
	if got, want := f.Documents([]byte(text)), decode.Documents(name, []byte(text)); !sameResult(got, want) {
		t.Fatalf("%s\ngot  %+v\nwant %+v", text, got, want)
	}
}

func sameResult(a, b decode.Result) bool {
	if len(a.Objects) != len(b.Objects) || len(a.Problems) != len(b.Problems) || len(a.Skipped) != len(b.Skipped) {
		return false
	}
	for i := range a.Objects {
		x, y := a.Objects[i], b.Objects[i]
		xs, isMessage := x.Spec.(proto.Message)
		if ys, both := y.Spec.(proto.Message); isMessage && both && proto.Equal(xs, ys) {
			x.Spec, y.Spec = nil, nil
		}
		if !reflect.DeepEqual(x, y) {
			return false
		}
	}
	for i := range a.Problems {
		if a.Problems[i] != b.Problems[i] {
			return false
		}
	}
	for i := range a.Skipped {
		if a.Skipped[i] != b.Skipped[i] {
			return false
		}
	}
	return true
}

func FuzzFile(f *testing.F) {
	f.Add(strings.Join(pieces[:6], "---\n"), strings.Join(pieces[4:12], "---\n"), false)
	f.Add(strings.Join(pieces, ""), strings.Join(pieces[1:], "---\n"), false)
	f.Add(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"}} {"a":1}`, `{"a":1} [`, true)
	f.Fuzz(func(t *testing.T, first, second string, json bool) {
		name := "f.yaml"
		if json {
			name = "f.json"
		}
		f := decode.NewFile(name)
		for _, text := range []string{first, second, first, "\n" + second, first + "\n---\n" + second, second + "\n---\n" + first} {
			checkFile(t, f, name, text)
		}
	})
}

// fileOf returns a file with n Pods; one has another address.
func fileOf(n, other int, ip string) string {
	var b strings.Builder
	for i := range n {
		address := fmt.Sprintf("10.0.%d.%d", i>>8, i&255)
		if i == other {
			address = ip
		}
		fmt.Fprintf(&b, "---\napiVersion: v1\nkind: Pod\nmetadata:\n  name: pod-%d\n  namespace: n\n  labels: {app: a, version: v1, security.istio.io/tlsMode: istio}\nspec: {serviceAccountName: a, nodeName: node-1, containers: [{name: app, ports: [{containerPort: 8080}]}]}\nstatus: {phase: Running, podIP: %s, conditions: [{type: Ready, status: \"True\"}]}\n", i, address)
	}
	return b.String()
}

// One endpoint changes in a file of 100 kB, and then all documents move by two lines: one document, and
// none, is decoded again.
func TestOnlyChangedDocumentsAreDecoded(t *testing.T) {
	const n = 320
	f := decode.NewFile("f.yaml")
	before := f.Documents([]byte(fileOf(n, -1, "")))
	texts := []string{fileOf(n, 100, "10.9.9.9"), "# one\n# two\n" + fileOf(n, 100, "10.9.9.9")}
	if len(texts[0]) < 100_000 {
		t.Fatalf("the file has %d bytes only", len(texts[0]))
	}
	for i, text := range texts {
		after := f.Documents([]byte(text))
		if len(after.Objects) != n {
			t.Fatalf("%d objects, want %d", len(after.Objects), n)
		}
		var again []string
		for j := range after.Objects {
			if after.Objects[j].Spec != before.Objects[j].Spec {
				again = append(again, after.Objects[j].Name)
			}
			if want := 2 + 9*j + 2*i; after.Objects[j].Origin.Line != want {
				t.Fatalf("%s is on line %d, want %d", after.Objects[j].Name, after.Objects[j].Origin.Line, want)
			}
		}
		if want := []string{"[pod-100]", "[]"}[i]; fmt.Sprint(again) != want {
			t.Errorf("decoded again: %v, want %s", again, want)
		}
		before = after
	}
	if ip := before.Objects[100].Spec.(*object.PodSpec).IPs[0].String(); ip != "10.9.9.9" {
		t.Errorf("the changed Pod has the address %s", ip)
	}
}

// A file with too many objects has the same problems whether documents are known or not.
func TestFileOfTooManyObjects(t *testing.T) {
	list := "kind: List\napiVersion: v1\nitems:\n" + strings.Repeat("- {apiVersion: v1, kind: Namespace, metadata: {name: x}}\n", yamltree.MaxDocuments-1)
	two := "---\n{apiVersion: v1, kind: Namespace, metadata: {name: a}}\n---\n{apiVersion: v1, kind: Namespace, metadata: {name: b}}\n"
	f := decode.NewFile("f.yaml")
	for _, text := range []string{two, list + two, two + "---\n" + list, two, list, two + two} {
		checkFile(t, f, "f.yaml", text)
	}
}

// BenchmarkFile decodes a file of 100 kB or 1.2 MB in which one endpoint has changed: as a new File, and as one
// that was read before.
func BenchmarkFile(b *testing.B) {
	for _, size := range []struct {
		name string
		n    int
	}{{"100kB", 320}, {"1.2MB", 3800}} {
		texts := [2][]byte{[]byte(fileOf(size.n, 100, "10.9.9.8")), []byte(fileOf(size.n, 100, "10.9.9.9"))}
		b.Run(size.name+"/whole", func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				decode.Documents("f.yaml", texts[i%2])
			}
		})
		b.Run(size.name+"/changed", func(b *testing.B) {
			b.ReportAllocs()
			f := decode.NewFile("f.yaml")
			texts := [3][]byte{texts[0], texts[1], []byte(fileOf(size.n, 100, "10.9.9.7"))} // a File remembers two
			f.Documents(texts[2])
			for i := 0; b.Loop(); i++ {
				f.Documents(texts[i%3])
			}
		})
	}
}
