package patch

import (
	"fmt"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/pilothouse/pilothouse/internal/discovery/marshal"
)

func pack(m proto.Message) *anypb.Any { return marshal.MustAny(m) }

// mergeInto merges a message as protobuf does: what src has replaces what dst has, messages are merged, and lists get
// longer, or with MERGE_AND_REPLACE_LIST are replaced. A Duration is a value: it is replaced, so that 1.5s and 2s make 2s.
// [control-plane 1.9.27]
func (p *Patch) mergeInto(dst, src proto.Message) {
	clearReplaced(dst.ProtoReflect(), src.ProtoReflect(), p.Operation == mergeReplace)
	proto.Merge(dst, src)
}

// clearReplaced clears in dst what a merge of src would add to instead of replacing it.
func clearReplaced(dst, src protoreflect.Message, lists bool) {
	src.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsList() && lists:
			dst.Clear(f)
		case f.Message() == nil || f.IsList() || f.IsMap() || !dst.Has(f):
		case f.Message().FullName() == "google.protobuf.Duration":
			dst.Clear(f)
		default:
			clearReplaced(dst.Get(f).Message(), v.Message(), lists)
		}
		return true
	})
}

// mergeConfigured merges filters or transport sockets: their configurations, which must be of one type, and then the rest.
// The name of dst stays.
func (p *Patch) mergeConfigured(dst, src configured) error {
	config, patch := dst.GetTypedConfig(), src.GetTypedConfig()
	src = proto.Clone(src).(configured)
	if config != nil && patch != nil {
		if config.TypeUrl != patch.TypeUrl {
			return fmt.Errorf("the value's typed_config is a %s, the configuration to merge it into is a %s", patch.MessageName(), config.MessageName())
		}
		a, err := p.mergeAny(config, patch)
		if err != nil {
			return err
		}
		setConfig(src, a)
	}
	clearName(src)
	p.mergeInto(dst, src)
	return nil
}

// clearName removes the name of a patch, by which it has been matched.
func clearName(m proto.Message) {
	r := m.ProtoReflect()
	if f := r.Descriptor().Fields().ByName("name"); f != nil {
		r.Clear(f)
	}
}

func (p *Patch) mergeAny(dst, src *anypb.Any) (*anypb.Any, error) {
	into, err := dst.UnmarshalNew()
	if err != nil {
		return nil, err
	}
	from, err := src.UnmarshalNew()
	if err != nil {
		return nil, err
	}
	p.mergeInto(into, from)
	return pack(into), nil
}

// mergeSocket merges the transport socket of a patch into that of a cluster or filter chain. A socket of another name
// replaces it.
func (p *Patch) mergeSocket(dst **corev3.TransportSocket, src *corev3.TransportSocket) error {
	if *dst == nil || (*dst).Name != src.Name {
		*dst = proto.CloneOf(src)
		return nil
	}
	return p.mergeConfigured(*dst, src)
}

// mergeCluster merges a patch into a cluster. If the cluster has several transport sockets, that of the patch is merged
// into those with its name.
func (p *Patch) mergeCluster(dst, src *clusterv3.Cluster) error {
	src = proto.CloneOf(src)
	socket := src.TransportSocket
	src.TransportSocket = nil
	clearName(src)
	p.mergeInto(dst, src)
	if socket == nil {
		return nil
	}
	if len(dst.TransportSocketMatches) == 0 {
		return p.mergeSocket(&dst.TransportSocket, socket)
	}
	merged := false
	for _, m := range dst.TransportSocketMatches {
		if m.GetTransportSocket().GetName() == socket.Name {
			if err := p.mergeConfigured(m.TransportSocket, socket); err != nil {
				return err
			}
			merged = true
		}
	}
	if !merged {
		return fmt.Errorf("transport_socket: the cluster chooses one of several transport sockets, none of them named %q", socket.Name)
	}
	return nil
}

// mergeChain merges a patch into a filter chain.
func (p *Patch) mergeChain(dst, src *listenerv3.FilterChain) error {
	src = proto.CloneOf(src)
	socket := src.TransportSocket
	src.TransportSocket = nil
	clearName(src)
	p.mergeInto(dst, src)
	if socket == nil {
		return nil
	}
	return p.mergeSocket(&dst.TransportSocket, socket)
}
