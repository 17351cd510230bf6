package xds

import (
	"fmt"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// Bounds on what a client may send in one request.
const (
	maxExtensions   = 4096
	maxRequestNames = maxNames
)

// decodeNode reads the node of a stream's first request. The error says what is wrong
// with it, for the client.
func decodeNode(n *corev3.Node) (mesh.Node, error) {
	if n == nil {
		return mesh.Node{}, fmt.Errorf("first request without a node")
	}
	id, err := mesh.DecodeNodeID(n.GetId())
	if err != nil {
		return mesh.Node{}, err
	}
	md, err := mesh.DecodeMetadata(n.GetMetadata().AsMap())
	if err != nil {
		return mesh.Node{}, fmt.Errorf("node %s: %w", n.GetId(), err)
	}
	out := mesh.Node{NodeID: id, Metadata: md, UserAgent: userAgent(n)}
	if l := n.GetLocality(); l != nil {
		out.Locality = mesh.Locality{Region: l.GetRegion(), Zone: l.GetZone(), Subzone: l.GetSubZone()}
	}
	if ext := n.GetExtensions(); len(ext) > maxExtensions {
		return mesh.Node{}, fmt.Errorf("node %s: %d extensions, at most %d are taken", n.GetId(), len(ext), maxExtensions)
	} else if len(ext) > 0 {
		out.Extensions = make(map[string]bool, len(ext))
		for _, e := range ext {
			out.Extensions[e.GetName()] = true
		}
	}
	return out, nil
}

func userAgent(n *corev3.Node) string {
	version := n.GetUserAgentVersion()
	if b := n.GetUserAgentBuildVersion().GetVersion(); b != nil {
		version = fmt.Sprintf("%d.%d.%d", b.GetMajorNumber(), b.GetMinorNumber(), b.GetPatch())
	}
	if version == "" {
		return n.GetUserAgentName()
	}
	return n.GetUserAgentName() + "/" + version
}

// incoming is a request of either flavour, as far as the stream cares.
type incoming struct {
	node *corev3.Node
	url  string
	req  Request
}

func fromDelta(m *discoveryv3.DeltaDiscoveryRequest) incoming {
	return incoming{node: m.GetNode(), url: m.GetTypeUrl(), req: Request{
		Names:       m.GetResourceNamesSubscribe(),
		Unsubscribe: m.GetResourceNamesUnsubscribe(),
		Nonce:       m.GetResponseNonce(),
		Refused:     m.GetErrorDetail() != nil,
		Message:     m.GetErrorDetail().GetMessage(),
		Initial:     m.GetInitialResourceVersions(),
	}}
}

func fromSotW(m *discoveryv3.DiscoveryRequest) incoming {
	return incoming{node: m.GetNode(), url: m.GetTypeUrl(), req: Request{
		Names:   m.GetResourceNames(),
		Nonce:   m.GetResponseNonce(),
		Refused: m.GetErrorDetail() != nil,
		Message: m.GetErrorDetail().GetMessage(),
	}}
}

// check enforces the bounds of one request.
func (in incoming) check() error {
	for _, n := range []int{len(in.req.Names), len(in.req.Unsubscribe), len(in.req.Initial)} {
		if n > maxRequestNames {
			return fmt.Errorf("%d resource names in one request, at most %d are taken", n, maxRequestNames)
		}
	}
	return nil
}
