package reload

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"

	"github.com/pilothouse/pilothouse/internal/agent/bootstrap"
	"github.com/pilothouse/pilothouse/internal/agent/spec"
)

// Change says how the difference of two Specs takes effect.
type Change struct {
	// LogLevel says that Envoy's log levels differ: they are changed at run time.
	LogLevel bool
	// Envoy says that a new Envoy must be started.
	Envoy bool
	// Cold are the fields whose new values take effect with the next agent.
	Cold []string
}

// Compare returns how the difference of two Specs takes effect. Files that a bootstrap names are compared by their names
// only.
func Compare(running, next *spec.Spec) (Change, error) {
	a, err := fingerprint(running)
	if err != nil {
		return Change{}, err
	}
	b, err := fingerprint(next)
	if err != nil {
		return Change{}, err
	}
	return Change{LogLevel: levels(running) != levels(next), Envoy: a != b, Cold: next.Cold}, nil
}

// levels are Envoy's log levels.
func levels(s *spec.Spec) [2]string {
	return [2]string{s.Envoy.Arguments.LogLevel, s.Envoy.Arguments.ComponentLogLevel}
}

// fingerprint is a digest of everything that Envoy is started with, except its log levels. What the metadata
// repeats is left out: a label or an annotation that nothing reads costs no restart.
func fingerprint(s *spec.Spec) (string, error) {
	plain := *s
	plain.Node.Metadata = maps.Clone(s.Node.Metadata)
	for _, key := range []string{"LABELS", "ANNOTATIONS", "PROXY_CONFIG"} {
		delete(plain.Node.Metadata, key)
	}
	b, err := bootstrap.Build(&plain)
	if err != nil {
		return "", err
	}
	text, err := b.Encode()
	if err != nil {
		return "", err
	}
	config, err := proto.MarshalOptions{Deterministic: true}.Marshal(s.Config)
	if err != nil {
		return "", fmt.Errorf("encode proxy configuration: %w", err)
	}
	args := s.Envoy.Arguments
	args.LogLevel, args.ComponentLogLevel = "", ""
	return digest(append([]string{string(text), string(config), s.Envoy.Binary, s.Envoy.CustomBootstrap, string(s.Envoy.Differences)}, args.List()...)...), nil
}

// digest hashes the list with the length of each part, so that different lists have different digests.
func digest(parts ...string) string {
	h := sha256.New()
	for _, part := range parts {
		fmt.Fprintf(h, "%d:%s", len(part), part)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// dataFiles returns the files that bootstraps refer to: the values of the fields called filename, sorted.
func dataFiles(texts ...[]byte) []string {
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
