package agent

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"maps"
	"os"
	"slices"

	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"

	"github.com/pilothouse/pilothouse/internal/agent/bootstrap"
	"github.com/pilothouse/pilothouse/internal/agent/node"
)

// fingerprint is of all that a new Envoy would be started with. What the metadata repeats is left out: a
// label or an annotation that nothing reads costs no restart.
func (r *restarts) fingerprint(n *node.Facts) (string, error) {
	h := sha256.New()
	in := r.bootstrapInput(n)
	in.Metadata = maps.Clone(n.Metadata)
	for _, key := range []string{"LABELS", "ANNOTATIONS", "PROXY_CONFIG"} {
		delete(in.Metadata, key)
	}
	b, err := bootstrap.Build(in)
	if err != nil {
		return "", err
	}
	text, err := b.Encode()
	if err != nil {
		return "", err
	}
	config := n.Config
	if n != r.o.Node { // a comparison with itself would keep what reflection needs for good
		config = node.Warmed(r.o.Node.Config, n.Config)
	}
	warm, err := proto.MarshalOptions{Deterministic: true}.Marshal(config)
	if err != nil {
		return "", fmt.Errorf("encode proxy configuration: %w", err)
	}
	custom := []byte(nil)
	if path := n.Config.GetCustomConfigFile(); path != "" {
		if custom, err = os.ReadFile(path); err != nil {
			return "", err
		}
	}
	parts := [][]byte{text, warm, custom, []byte(r.made.override), []byte(r.made.binary)}
	for _, part := range parts {
		fmt.Fprintf(h, "%d:", len(part))
		_, _ = h.Write(part) // a hash takes everything
	}
	if !bytes.Contains(text, []byte("filename")) {
		text = nil // as a rule; what the agent encodes has no letters escaped
	}
	r.made.inputs = named(text, custom, []byte(r.made.override))
	hashFiles(h, r.made.inputs)
	return hex.EncodeToString(h.Sum(nil)), nil
}

func hashFiles(h hash.Hash, paths []string) {
	for _, path := range paths {
		sum, err := digest(path)
		if err != nil {
			sum = "none"
		}
		fmt.Fprintf(h, "%s %s\n", path, sum)
	}
}

// named are the files that bootstraps take data from: the strings called filename, sorted.
func named(texts ...[]byte) []string {
	var out []string
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			for key, value := range v {
				if path, ok := value.(string); ok && key == "filename" {
					out = append(out, path)
				}
				walk(value)
			}
		case []any:
			for _, value := range v {
				walk(value)
			}
		}
	}
	for _, text := range texts {
		var v any
		if len(text) > 0 && yaml.Unmarshal(text, &v) == nil {
			walk(v)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// compareBinary notes another binary. The one that runs can still be read, whatever has become of its path.
func (r *restarts) compareBinary() {
	next, err := digest(r.launch.Binary)
	if err != nil {
		r.log.Warn("look at Envoy's binary", "error", err)
		return
	}
	runs, err := digest(fmt.Sprintf("/proc/%d/exe", r.envoy.State().PID))
	if err != nil || runs != next {
		r.made.binary = next
	}
}

func digest(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("read %s: %w", path, err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
