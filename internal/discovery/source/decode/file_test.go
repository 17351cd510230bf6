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
	"apiVersion: install.istio.io/v1alpha1\nkind: IstioOperator\nmetadata: {name: f}\n",
	"apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: r}\nspec: &s\n  host: a\n  # a comment\n  trafficPolicy: {}\n",
	"apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: r}\nspec: *s\n",
	"apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: r}\nspec:\n  hots: a\n",
	"apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: default, namespace: n}\nspec: {mtls: {mode: STRICT}\n",
	"apiVersion: v1\nkind: Service\nmetadata: {name: a}\nkind: Pod\n",
	"apiVersion: v1\nitems:\n- apiVersion: v1\n  kind: Namespace\n  metadata:\n    name: x\n- apiVersion: v1\n  kind: Service\n  metadata: {name: l}\n  spec:\n    ports:\n    - port: 80\n# a comment\n\n- kind: Pod\n- apiVersion: apps/v1\n  kind: Deployment\n  metadata: {name: d}\nkind: List\nmetadata:\n  resourceVersion: \"\"\n",
	"kind: Service\n", "[a, b]\n", "{a: 1} {b: 2}\n", "# a comment\n", "\n", "%YAML 1.2\n", "...\n", "... # the end\n", "--- {apiVersion: v1, kind: Namespace, metadata: {name: y}}\n", "--- # with a comment\n", "----\n", "\ufeff",
}

// A file's text is changed again and again. What is decoded must be what decoding all of it gives.
func TestFileDecodesAsIfNew(t *testing.T) {
	r := rand.New(rand.NewPCG(7, wait.Seed(t, 7)))
	for range 50 {
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

// checkFile decodes a text by f and compares the result with that of decoding each document whole.
func checkFile(t *testing.T, f *decode.File, name, text string) {
	t.Helper()
	if got, want := f.Documents([]byte(text)), decode.Whole(name, []byte(text)); !sameResult(got, want) {
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
	list := pieces[13]
	f.Add(list, strings.Replace(list, "name: l", "name: m", 1), false)
	f.Add("a: \"\nitems:\n- a\ny\"\nitems:\nkind: List\n", "kind: List\napiVersion: v1\nitems:\n  - &a {kind: Pod}\n  - *a\n  - \"x\n  - y\"\n", false)
	f.Add("kind: List\napiVersion: v1\nitems:\n- |+\n  x\n\n# c\n\n- >-\n  y\n -\n- ? a\n  : b\n-\n  c: d\n", "--- # x\nkind: List\nitems: # y\n- a: [\n- 1]\n", false)
	f.Add("{\"kind\": \"List\",\n\"items\": [\n{\"kind\":\"Pod\",\n\"apiVersion\":\"v1\"},\n{\"a\":1,\"a\":2}, 7],\n\"apiVersion\":\"v1\"}", "{\"kind\":\"List\",\"apiVersion\":\"v1\",\"items\":[{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"metadata\":{\"name\":\"a\"}}]}", true)
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

// The items of a list are like documents, in YAML and in JSON.
func TestOnlyChangedItemsOfAListAreDecoded(t *testing.T) {
	const n = 300
	item := func(i int, ip string) string {
		return fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod-%d"}, "status": {"podIP": %q}}`, i, ip)
	}
	block := func(i int, ip string) string {
		return fmt.Sprintf("- apiVersion: v1\n  kind: Pod\n  metadata:\n    name: pod-%d\n  status:\n    podIP: %s\n", i, ip)
	}
	for _, form := range []struct {
		file, head, between, end string
		item                     func(int, string) string
		line                     int
	}{
		{"f.yaml", "apiVersion: v1\nitems:\n", "", "kind: List\nmetadata: {}\n", block, 3},
		{"f.json", "{\"apiVersion\": \"v1\",\n\"items\": [\n", ",\n", "\n], \"kind\": \"List\"}\n", item, 3},
	} {
		text := func(first int, ip string) []byte {
			var items []string
			for i := first; i < n; i++ {
				if i == 100 {
					items = append(items, form.item(i, ip))
				} else {
					items = append(items, form.item(i, "10.0.0.1"))
				}
			}
			return []byte(form.head + strings.Join(items, form.between) + form.end)
		}
		f := decode.NewFile(form.file)
		before := f.Documents(text(0, "10.0.0.2"))
		for turn, next := range [][]byte{text(0, "10.0.0.3"), text(2, "10.0.0.3")} {
			after := f.Documents(next)
			if want := decode.Whole(form.file, next); !sameResult(after, want) || len(after.Objects) != n-2*turn {
				t.Fatalf("%s: %d objects, or they differ from those of the whole", form.file, len(after.Objects))
			}
			var again []string
			for i := range after.Objects {
				if after.Objects[i].Spec != before.Objects[i+2*turn].Spec {
					again = append(again, after.Objects[i].Name)
				}
			}
			if want := []string{"[pod-100]", "[]"}[turn]; fmt.Sprint(again) != want {
				t.Errorf("%s: decoded again: %v, want %s", form.file, again, want)
			}
			if line := after.Objects[0].Origin.Line; line != form.line {
				t.Errorf("%s: the first item is on line %d, want %d", form.file, line, form.line)
			}
			before = after
		}
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
