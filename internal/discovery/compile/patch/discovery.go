package patch

import (
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// Discovery is an extension configuration that a filter in a patch's value takes from this control plane.
type Discovery struct {
	Name string
	// Default is set if the filter has a configuration until it gets that.
	Default bool
}

// maxPacked bounds how deep messages in google.protobuf.Any are looked into.
const maxPacked = 16

// fromHere reports whether a source of configuration is this control plane: over the stream of all types, or one of its own to the agent,
// which passes it on. Envoy asks others by itself.
func fromHere(s *corev3.ConfigSource) bool {
	if s.GetAds() != nil {
		return true
	}
	return slices.ContainsFunc(s.GetApiConfigSource().GetGrpcServices(), func(g *corev3.GrpcService) bool {
		return g.GetEnvoyGrpc().GetClusterName() == mesh.XDSCluster
	})
}

// discoveries returns the extension configurations that filters in a message take from this control plane, however deep, each once.
func discoveries(m proto.Message) (out []Discovery) {
	if m == nil {
		return nil
	}
	add := func(d Discovery) {
		if !slices.Contains(out, d) {
			out = append(out, d)
		}
	}
	discoveriesIn(m.ProtoReflect(), maxPacked, add)
	return out
}

func discoveriesIn(m protoreflect.Message, depth int, add func(Discovery)) {
	if a, ok := m.Interface().(*anypb.Any); ok {
		if inner, err := a.UnmarshalNew(); err == nil && depth > 0 {
			discoveriesIn(inner.ProtoReflect(), depth-1, add)
		}
		return
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.Message() == nil:
		case f.IsList():
			for i := range v.List().Len() {
				discoveriesIn(v.List().Get(i).Message(), depth, add)
			}
		case f.IsMap():
			if f.MapValue().Message() != nil {
				v.Map().Range(func(_ protoreflect.MapKey, e protoreflect.Value) bool {
					discoveriesIn(e.Message(), depth, add)
					return true
				})
			}
		default:
			if s, ok := v.Message().Interface().(*corev3.ExtensionConfigSource); ok && fromHere(s.GetConfigSource()) {
				if named, ok := m.Interface().(interface{ GetName() string }); ok {
					add(Discovery{Name: named.GetName(), Default: s.DefaultConfig != nil})
				}
			}
			discoveriesIn(v.Message(), depth, add)
		}
		return true
	})
}
