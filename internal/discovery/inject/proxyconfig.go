package inject

import (
	"bytes"
	"encoding/json"
	"fmt"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/yamltree"
)

// maxConfigBytes bounds the annotation proxy.istio.io/config.
const maxConfigBytes = 256 << 10

// configAnnotation is the parsed annotation proxy.istio.io/config; the zero value is that of an empty one.
type configAnnotation struct {
	tree *yamltree.Tree // nil without fields
	// unknown are fields that are passed over, as those of another release of the proxy.
	unknown []*yamltree.Fault
	err     error
}

func parseConfig(text string) configAnnotation {
	tree, err := configTree(text)
	if err != nil || tree == nil {
		return configAnnotation{err: err}
	}
	a := configAnnotation{tree: tree}
	for _, f := range yamltree.IntoMessage(tree, "", &meshv1.ProxyConfig{}) {
		if !f.Unknown {
			return configAnnotation{err: f}
		}
		a.unknown = append(a.unknown, f)
	}
	return a
}

// over merges the annotation, which has no err, over a proxy configuration.
func (a configAnnotation) over(config *meshv1.ProxyConfig) {
	if a.tree != nil {
		yamltree.Merge(a.tree, "", config) // its faults are a.unknown
	}
}

func configTree(text string) (*yamltree.Tree, error) {
	if len(text) > maxConfigBytes {
		return nil, fmt.Errorf("%d bytes: want at most %d", len(text), maxConfigBytes)
	}
	var tree *yamltree.Tree
	for _, d := range yamltree.Parse([]byte(text), false) {
		switch {
		case d.Fault != nil:
			return nil, d.Fault
		case d.Root.IsNull():
		case tree != nil:
			return nil, fmt.Errorf("line %d: a second document; want one", d.Line)
		case d.Root.Kind != yamltree.Mapping:
			return nil, fmt.Errorf("want a mapping, not %s", d.Root.Kind)
		default:
			tree = d.Root
		}
	}
	return tree, nil
}

// configJSON returns the fields of a proxy configuration that differ from the agent's defaults.
func configJSON(config *meshv1.ProxyConfig) (string, error) {
	differing := proto.CloneOf(config)
	m, base := differing.ProtoReflect(), mesh.DefaultProxyConfig().ProtoReflect()
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if base.Has(fd) && v.Equal(base.Get(fd)) {
			m.Clear(fd)
		}
		return true
	})
	return compactJSON(differing)
}

// compactJSON is a message as JSON without blanks.
func compactJSON(m proto.Message) (string, error) {
	text, err := protojson.Marshal(m)
	if err != nil {
		return "", fmt.Errorf("encode %s: %w", m.ProtoReflect().Descriptor().Name(), err)
	}
	var b bytes.Buffer
	if err := json.Compact(&b, text); err != nil {
		return "", fmt.Errorf("encode %s: %w", m.ProtoReflect().Descriptor().Name(), err)
	}
	return b.String(), nil
}
