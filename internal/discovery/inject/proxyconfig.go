package inject

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1 "istio.io/api/mesh/v1alpha1"
	networkingv1beta1 "istio.io/api/networking/v1beta1"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/yamltree"
)

// maxConfigBytes bounds the annotation proxy.istio.io/config.
const maxConfigBytes = 256 << 10

// ProxyConfig is one ProxyConfig object. The Spec is not modified.
type ProxyConfig struct {
	Namespace, Name string
	Created         time.Time
	Spec            *networkingv1beta1.ProxyConfig
}

// effectiveConfig returns the proxy configuration of a Pod: that of the mesh, with the fields of ProxyConfig
// objects of the root namespace, of the Pod's namespace, and of those that select the Pod, in this order,
// and of the annotation over it. [control-plane 1.9.29]
func effectiveConfig(m *meshv1.MeshConfig, objects []ProxyConfig, namespace string, podLabels map[string]string, annotation string) (*meshv1.ProxyConfig, error) {
	config := proto.CloneOf(m.GetDefaultConfig())
	for _, o := range applicable(m.GetRootNamespace(), objects, namespace, podLabels) {
		if o.Concurrency != nil {
			config.Concurrency = wrapperspb.Int32(o.GetConcurrency().GetValue())
		}
		if o.GetImage().GetImageType() != "" {
			config.Image = &networkingv1beta1.ProxyImage{ImageType: o.GetImage().GetImageType()}
		}
		for k, v := range o.GetEnvironmentVariables() {
			if config.ProxyMetadata == nil {
				config.ProxyMetadata = map[string]string{}
			}
			config.ProxyMetadata[k] = v
		}
	}
	if annotation != "" {
		if err := mergeConfig(config, annotation); err != nil {
			return nil, fmt.Errorf("invalid value for annotation '%s': %w", annotationConfig, err)
		}
	}
	return config, nil
}

// applicable returns the objects for a Pod, at most one of each level: the oldest.
func applicable(root string, objects []ProxyConfig, namespace string, podLabels map[string]string) []*networkingv1beta1.ProxyConfig {
	list := slices.Clone(objects)
	slices.SortFunc(list, func(a, b ProxyConfig) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	var levels [3]*networkingv1beta1.ProxyConfig
	for i := range list {
		o := &list[i]
		if o.Spec == nil || o.Namespace != root && o.Namespace != namespace {
			continue
		}
		level := 0
		if want := o.Spec.GetSelector().GetMatchLabels(); len(want) > 0 {
			if o.Namespace != namespace || !subset(want, podLabels) {
				continue
			}
			level = 2
		} else if o.Namespace != root {
			level = 1
		}
		if levels[level] == nil {
			levels[level] = o.Spec
		}
	}
	return slices.DeleteFunc(levels[:], func(o *networkingv1beta1.ProxyConfig) bool { return o == nil })
}

func subset(want, have map[string]string) bool {
	for k, v := range want {
		if got, ok := have[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// mergeConfig merges YAML or JSON into a proxy configuration. Unknown fields are passed over, as those of
// another release of the proxy.
func mergeConfig(config *meshv1.ProxyConfig, text string) error {
	tree, err := configTree(text)
	if err != nil || tree == nil {
		return err
	}
	for _, f := range yamltree.Merge(tree, "", config) {
		if !f.Unknown {
			return f
		}
	}
	return nil
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

func checkProxyConfig(v string) error { return mergeConfig(mesh.DefaultProxyConfig(), v) }

// unknownConfig returns the unknown fields of the annotation.
func unknownConfig(text string) []*yamltree.Fault {
	tree, err := configTree(text)
	if err != nil || tree == nil {
		return nil
	}
	var out []*yamltree.Fault
	for _, f := range yamltree.Merge(tree, "", mesh.DefaultProxyConfig()) {
		if f.Unknown {
			out = append(out, f)
		}
	}
	return out
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
