// Package golden compares the output of translators with golden files.
//
// A golden is a txtar file with input.yaml, which the translator's test reads, and
// want.json, the messages in their JSON form. Run the test with -update to write
// want.json; read the difference before committing it.
package golden

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write the wanted part of golden files from what the code makes")

// Run makes a subtest of each dir/*.txtar, named after the file, and returns everything
// that was built, in the order of the files. There must be at least one.
func Run[M proto.Message](t *testing.T, dir string, build func(t *testing.T, input []byte) []M) []M {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.txtar"))
	if err != nil || len(files) == 0 {
		t.Fatalf("golden files in %s: %d found, error %v", dir, len(files), err)
	}
	var all []M
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			a, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := build(t, part(a, "input.yaml"))
			all = append(all, got...)
			compare(t, file, a, JSON(t, got))
		})
	}
	return all
}

func part(a *txtar.Archive, name string) []byte {
	for _, f := range a.Files {
		if f.Name == name {
			return f.Data
		}
	}
	return nil
}

func compare(t *testing.T, file string, a *txtar.Archive, got []byte) {
	t.Helper()
	if *update {
		a.Files = []txtar.File{{Name: "input.yaml", Data: part(a, "input.yaml")}, {Name: "want.json", Data: got}}
		if err := os.WriteFile(file, txtar.Format(a), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(string(part(a, "want.json")), string(got)); diff != "" {
		t.Errorf("%s: want (-), got (+):\n%s", file, diff)
	}
}

// JSON is the messages as one indented JSON list, the same bytes for the same messages.
func JSON[M proto.Message](t *testing.T, list []M) []byte {
	t.Helper()
	var raw []json.RawMessage
	for _, m := range list {
		b, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		raw = append(raw, b)
	}
	joined, err := json.Marshal(raw)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := json.Indent(&out, joined, "", " "); err != nil {
		t.Fatal(err)
	}
	out.WriteByte('\n')
	return out.Bytes()
}

// Proto reads a message from YAML in its JSON form; data may be nothing.
func Proto[M proto.Message](t *testing.T, data []byte, into M) M {
	t.Helper()
	b, err := yaml.YAMLToJSON(data)
	if err != nil {
		t.Fatal(err)
	}
	if len(b) == 0 || string(b) == "null" {
		return into
	}
	if err := protojson.Unmarshal(b, into); err != nil {
		t.Fatalf("%v in %s", err, b)
	}
	return into
}

// ReadYAML reads a file of YAML into a value.
func ReadYAML(t *testing.T, file string, into any) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, into); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}

// Deterministic fails the test where build, given the same, does not make the same bytes
// every time, whatever the order of maps.
func Deterministic(t *testing.T, build func() proto.Message) {
	t.Helper()
	var want []byte
	for i := range 20 {
		got, err := proto.MarshalOptions{Deterministic: true}.Marshal(build())
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			want = got
		}
		if !bytes.Equal(got, want) {
			t.Fatal("the same input gave other bytes")
		}
	}
}
